"""The checkpoint file format, and patience with file systems that answer with errors.

A checkpoint is a magic line, a JSON header and raw bytes, followed by their SHA-256; a copy in
another agent's memory has the same format. The two newest files are kept. ``fence`` decides which
worker may write. The raw bytes are defined by the callers, ``checkpoint`` (tensors) and
``mpi.disk`` (arrays).

A checkpoint that cannot be read now is not one that is damaged: a training that began without it
would do its work again, and remove it. So the readers of all runtimes read ``patiently``. Standard
library only.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from bftrainer.ground.errors import ElasticError
from bftrainer.ground.fence import SUFFIX
from bftrainer.ground.regular_file import REFUSALS, open_stream

T = TypeVar("T")
log = logging.getLogger("bftrainer.elastic")

MAGIC = b"bftrainer checkpoint 1\n"
_ANY_MAGIC = b"bftrainer checkpoint "  # of a later release, perhaps
KEEP = 2
MAX_HEADER_BYTES = 256 << 20
DIGEST_BYTES = hashlib.sha256().digest_size
PATIENCE_S = 20.0  # less than the time-out of a group, whose members wait
PAUSE_S = 0.5
# nfs(5): of soft mounts, of files whose server forgot them; errno(3).
_PASSING = frozenset(
    {errno.EIO, errno.EREMOTEIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.EHOSTDOWN}
)


class UnreadableError(Exception):
    """Not a complete checkpoint of ours; the text says why."""


class DamagedError(UnreadableError):
    """It was one, and its bytes are not those that were written."""


class ForeignError(UnreadableError):
    """It is sound, and of another model."""


def newest_first(directory: Path) -> list[Path]:
    """Return the checkpoints of a directory, most steps first."""
    with suppress(FileNotFoundError):
        names = sorted(os.listdir(directory), reverse=True)  # noqa: PTH208
        return [directory / n for n in names if n.endswith(SUFFIX) and not n.startswith(".")]
    return []


def step_of(path: Path) -> int:
    """Return the committed steps in a file's name, -1 if there are none."""
    number = path.name.removeprefix("step-").split("-")[0]
    return int(number) if number.isascii() and number.isdecimal() else -1


def part_of(path: Path, number: int) -> Path:
    """Return where a part of a checkpoint lies (``resharding``); the first is at ``path``."""
    if number == 0:
        return path
    return path.with_name(f"{path.name}.part{number}")


def parts_beside(path: Path) -> list[Path]:
    """Return the other parts of a checkpoint, those that there are."""
    return sorted(path.parent.glob(f"{glob.escape(path.name)}.part*"))


# ---- writing ---------------------------------------------------------------------


def parts_of(header: dict[str, Any], states: Iterable[memoryview]) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a checkpoint, its digest last; ``states`` is consumed lazily."""
    digest = hashlib.sha256()
    text = json.dumps(header).encode()
    for part in (MAGIC, len(text).to_bytes(8, "little"), text):
        digest.update(part)
        yield part
    for data in states:
        digest.update(data)
        yield data
    yield digest.digest()


def prune(directory: Path, written: Path, layout: int | None) -> None:
    """Remove the files that ``written``, the newest checkpoint, has superseded.

    Removed: our model's checkpoints except the newest two up to ``written``; those with more
    steps, from which the run did not continue; temporary files of crashed writers. Unreadable
    files and those of other models are neither counted nor removed. Nor are parts that are not
    older: other workers of the node may be writing them, the last step's perhaps again.
    """
    ours = [path for path in newest_first(directory) if _has_layout(path, layout)]
    newest_ones = [path for path in ours if path.name <= written.name][:KEEP]
    for path in ours:
        if path not in newest_ones:
            path.unlink(missing_ok=True)
    for part in directory.glob(f"[!.]*{SUFFIX}.part*"):  # of those, and of writers that were killed
        whole = part.with_suffix("")
        if whole.name < written.name and not whole.exists():
            part.unlink(missing_ok=True)
    for draft in directory.glob(f".*{SUFFIX}.*.tmp"):
        name, _, ending = draft.name[1:].partition(SUFFIX)
        if not ending.startswith(".part") or name + SUFFIX < written.name:
            draft.unlink(missing_ok=True)


def _has_layout(path: Path, layout: int | None) -> bool:
    try:
        return bool(peek(path).get("layout") == layout)
    except (OSError, UnreadableError):
        return False


# ---- reading ---------------------------------------------------------------------


def read_from(
    file: BinaryIO, allocate: Callable[[dict[str, Any]], Iterable[memoryview]]
) -> dict[str, Any]:
    """Read and verify a checkpoint up to the end of ``file``; return its header.

    Args:
        file: a buffered reader.
        allocate: returns memory for the bytes that the header announces; filled here, invalid
            if this raises.

    Raises:
        UnreadableError: it is not one complete checkpoint, or ``allocate`` says so.
        OSError: as ``file`` raises it.
    """
    digest = hashlib.sha256()
    header = _read_header(file, digest)
    for data in allocate(header):
        if file.readinto(data) != len(data):  # type: ignore[attr-defined]  # buffered readers have it
            raise DamagedError("it is cut short")
        digest.update(data)
    if file.read() != digest.digest():
        raise DamagedError("its checksum does not match")
    return header


def peek(path: Path) -> dict[str, Any]:
    """Return the header alone, not verified."""
    with opened(path) as file:
        return _read_header(file, hashlib.sha256())


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a checkpoint for reading.

    Raises:
        UnreadableError: it is not a regular file of this user or root.
        OSError: it cannot be opened.
    """
    try:
        stream = open_stream(path)  # a file of others would become our parameters
    except OSError as problem:
        if problem.errno in REFUSALS:
            raise UnreadableError(problem.strerror) from problem
        raise
    with stream as file:
        yield file


def _read_header(file: BinaryIO, digest: Any) -> dict[str, Any]:
    start = file.read(len(MAGIC) + 8)
    if not start.startswith(MAGIC) or len(start) != len(MAGIC) + 8:
        is_later = start.startswith(_ANY_MAGIC) and not MAGIC.startswith(start[: len(MAGIC)])
        kind = UnreadableError if is_later else DamagedError
        raise kind("it does not start like a checkpoint")
    length = int.from_bytes(start[len(MAGIC) :], "little")
    if length > MAX_HEADER_BYTES:
        raise DamagedError("its header is too long")
    text = file.read(length)
    digest.update(start)
    digest.update(text)
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise DamagedError(f"its header is damaged: {problem}") from problem
    if not isinstance(header, dict):
        raise DamagedError("its header is damaged")
    return header


def patiently(read: Callable[[], T], place: Path) -> T:
    """Return what ``read`` returns, calling it again while the file system is in trouble.

    Raises:
        ElasticError: BFT-1343, when that lasts.
        Exception: whatever else ``read`` raises.
    """
    ends_s = time.monotonic() + PATIENCE_S
    is_told = False
    while True:
        try:
            return read()
        except OSError as problem:
            if problem.errno not in _PASSING:
                raise
            why = problem.strerror or str(problem)
        if time.monotonic() >= ends_s:
            raise ElasticError(
                "BFT-1343",
                f"The file system does not let {place} be read ({why}), and without it the training"
                " would begin anew.",
                "It is tried again. Check the mount on this node; remove the file if only it is"
                " damaged.",
            )
        if not is_told:
            log.warning("BFT-1343: cannot read %s: %s; tried again", place, why)
        is_told = True
        time.sleep(PAUSE_S)


SkipNote = Callable[[Path, Exception], None]  # is told a checkpoint that is skipped, and why


def log_skipped(path: Path, problem: Exception) -> None:
    """Say in the log why a checkpoint is skipped."""
    log.warning("BFT-1413: skipped checkpoint %s: %s", path, problem)


def newest(
    directory: Path | None, read: Callable[[Path], T], note: SkipNote = log_skipped
) -> T | None:
    """Return what ``read`` returns of the newest checkpoint that it does not refuse.

    ``note`` is told why others are skipped. None: there is none.

    Raises:
        ElasticError: BFT-1343, when the file system does not let them be read now.
    """
    if directory is None:
        return None
    for path in patiently(partial(newest_first, directory), directory):
        try:
            return patiently(partial(read, path), path)
        except (OSError, UnreadableError) as problem:
            note(path, problem)
    return None
