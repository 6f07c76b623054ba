"""The worker processes of long verbs end with them, however those end."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from bftrainer.batch import process
from tests.support.processes import is_running
from tests.support.waiting import wait_for

REPRODUCE = ("reproduce", "ibm", "--processes", "2")
COMPARE = ("compare", "--arena", "idle", "--processes", "2", "--seeds", "50")


@pytest.mark.parametrize("verb", [REPRODUCE, COMPARE], ids=lambda words: words[0])
@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGKILL], ids=lambda sig: sig.name)
def test_workers_end_with_their_verb(
    verb: tuple[str, ...], sig: signal.Signals, tmp_path: Path
) -> None:
    argv = (sys.executable, "-m", "bftrainer.cli.main", *verb)
    with (tmp_path / "out").open("wb") as out:
        parent = process.spawn(argv, cwd=tmp_path, stdout=out, stderr=out)
    try:
        children = wait_for(lambda: _workers(parent.pid, 2), what="two worker processes")
        parent.send_signal(sig)
        parent.wait(60.0)
        wait_for(lambda: not any(map(is_running, children)), what="no worker process is left")
    finally:
        process.kill_group(parent.pid)
        parent.wait()


def _workers(pid: int, n: int) -> list[int]:
    """Return the processes that play for this one, if there are so many; none before."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    found = [int(word) for path in tasks for word in path.read_text().split()]
    workers = [p for p in found if b"spawn_main" in Path(f"/proc/{p}/cmdline").read_bytes()]
    return workers if len(workers) >= n else []
