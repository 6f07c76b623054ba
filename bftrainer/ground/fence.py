"""Decides who may write checkpoints into a directory, and writes files atomically.

A fence file names the newest writer by incarnation, trainer and generation. Writers of lower
order are refused, and so is one of equal order with a different token. Standard library only.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from bftrainer.ground.process import own_name
from bftrainer.ground.regular_file import REFUSALS, open_file, read_file

log = logging.getLogger("bftrainer.elastic")

SUFFIX = ".bft"
MAX_FENCE_BYTES = 4096
MAX_NUMBER = 1 << 63
MAX_DIGITS = 18
_FENCE = "fence.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """A writer; ordered by incarnation, then trainer, then generation."""

    incarnation: int
    generation: int
    token: str
    trainer_id: str = ""  # "": a run without a daemon, or a writer of an earlier release

    @property
    def order(self) -> tuple[int, int, int]:
        """Return the sort key of writers.

        A trainer submitted later for the same directory follows an earlier one, even if that
        one's generation numbers are higher.
        """
        digits = "".join(c for c in self.trainer_id if c in "0123456789")[:MAX_DIGITS]
        return (self.incarnation, int(digits or 0), self.generation)


def path_for(directory: Path, step: int, generation: int) -> Path:
    """Return a name that sorts by step; a step repeated in a later generation sorts last."""
    return directory / f"step-{step:012d}-generation-{generation:08d}{SUFFIX}"


def write_whole(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    """Write a file beside its name, sync it, rename it, sync the directory.

    Raises:
        OSError: it could not be written; nothing is left of it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{own_name()}.tmp")
    try:
        fd = open_file(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        with os.fdopen(fd, "wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def claim(directory: Path, fence: Fence) -> bool:
    """Make ``fence`` the directory's writer; False when a writer of higher order holds it."""
    directory.mkdir(parents=True, exist_ok=True)
    with _locked(directory):
        holder = read_fence(directory)
        if holder is not None and _forbids(holder, fence):
            log.warning(
                "BFT-1412: %s belongs to generation %d%s of daemon %d; generation %d%s of %d may"
                " no longer write there.",
                directory, holder.generation, _of(holder), holder.incarnation, fence.generation,
                _of(fence), fence.incarnation,
            )  # fmt: skip
            return False
        if holder != fence:
            write_whole(directory / _FENCE, [json.dumps(asdict(fence)).encode()])
    return True


def _forbids(holder: Fence, fence: Fence) -> bool:
    """Return whether ``holder`` excludes ``fence``; at equal order, it excludes other tokens."""
    if holder.order == fence.order:
        return holder.token != fence.token
    return holder.order > fence.order


def _of(fence: Fence) -> str:
    return f" of trainer {fence.trainer_id}" if fence.trainer_id else ""


def read_fence(directory: Path) -> Fence | None:
    """Return the last writer, None if there was none or the file is damaged.

    Raises:
        OSError: it cannot be read at the moment; nothing may be written then.
    """
    path = directory / _FENCE
    try:
        body = json.loads(_read_small(path))
        fence = Fence(
            incarnation=body["incarnation"],
            generation=body["generation"],
            token=str(body["token"]),
            trainer_id=str(body.get("trainer_id", "")),
        )
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
        log.warning("ignored a damaged %s: %s", path, problem)
        return None
    if not all(type(n) is int and 0 <= n < MAX_NUMBER for n in fence.order):
        log.warning("ignored a damaged %s: its numbers are invalid", path)
        return None
    return fence


def _read_small(path: Path) -> bytes:
    try:
        return read_file(path, MAX_FENCE_BYTES)
    except OSError as problem:
        if problem.errno in REFUSALS:
            raise ValueError(problem.strerror) from problem
        raise


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    fd = open_file(directory / ".lock", os.O_RDWR | os.O_CREAT)
    try:
        # Some shared file systems have no locks; the fence then fails only for writers that
        # claim at the same moment.
        with suppress(OSError):
            fcntl.lockf(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
