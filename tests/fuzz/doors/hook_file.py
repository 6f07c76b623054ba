"""What is in the file that Slurm's scripts append to, in whatever pieces it is read."""

from __future__ import annotations

from hypothesis import strategies as st

from bftrainer.batch.tail import MOST_BYTES, MOST_LINE_BYTES, Lines
from tests.fuzz.door import Door
from tests.fuzz.hostile import bytestrings

_LINES = (
    b"bftrainer-hook 1\n",
    b"submit\t1000\t0\tbatch\t4\t\t\t\t10\ta&b\tn[1-2]\tgres:gpu:2\t0\t\t\t\tbatch\n",
    b"end\t1000\t17\tbatch\tn[1-3]\nmodify\t1000\t17\tbatch\t\n",
    b"x" * 3 * MOST_LINE_BYTES,
)


def _read(drawn: tuple[bytes, int]) -> None:
    said, length = drawn
    lines = Lines()
    for at in range(0, min(len(said), MOST_BYTES), length):
        found = lines.add(said[at : at + length])
        assert max(map(len, found), default=0) <= MOST_LINE_BYTES


DOORS = (
    Door(
        name="hook-file",
        call=_read,
        inputs=st.tuples(bytestrings(*_LINES), st.sampled_from((512, 4096, MOST_BYTES))),
        from_bytes=lambda raw: (raw, MOST_BYTES),
    ),
)
