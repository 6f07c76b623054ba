"""Checkpoints on a shared file system: written whole or not at all, never by a ghost.

A checkpoint is a magic line, a JSON header (structure, tensor table) and raw tensor
bytes, closed by their SHA-256; a copy in another agent's memory is the same bytes. The
two newest files stay. ``fence`` says who may write. Used by ``resuming`` and by
``writer`` in the background.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import logging
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch

from bftrainer.elastic import codec
from bftrainer.elastic.errors import ElasticError
from bftrainer.elastic.fence import SUFFIX, write_whole

log = logging.getLogger("bftrainer.elastic")

MAGIC = b"bftrainer checkpoint 1\n"
KEEP = 2
MAX_HEADER_BYTES = 256 << 20
DIGEST_BYTES = hashlib.sha256().digest_size


class UnreadableError(Exception):
    """Something that is not a complete checkpoint of ours; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A checkpoint whose every byte has been verified."""

    source: str  # its file, or who held it
    header: dict[str, Any]
    tensors: list[torch.Tensor]


def newest_first(directory: Path) -> list[Path]:
    """Return the checkpoints of a directory, the one with most steps first."""
    with suppress(FileNotFoundError):
        names = [n for n in os.listdir(directory) if n.endswith(SUFFIX)]  # noqa: PTH208
        return [directory / n for n in sorted(names, reverse=True) if not n.startswith(".")]
    return []


def step_of(path: Path) -> int:
    """Return the committed steps a file's name tells, -1 when it tells none."""
    number = path.name.removeprefix("step-").split("-")[0]
    return int(number) if number.isdecimal() else -1


# ---- writing ---------------------------------------------------------------------


def parts_of(
    header: dict[str, Any], tensors: Sequence[torch.Tensor]
) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a checkpoint, its digest last; tensors are not copied."""
    digest = hashlib.sha256()
    text = json.dumps({**header, "tensors": codec.describe(tensors)}).encode()
    for part in (MAGIC, len(text).to_bytes(8, "little"), text):
        digest.update(part)
        yield part
    for tensor in tensors:
        data = _bytes_of(tensor.contiguous().cpu())
        digest.update(data)
        yield data
    yield digest.digest()


def write(path: Path, header: dict[str, Any], tensors: Sequence[torch.Tensor]) -> None:
    """Write one checkpoint; complete and synced when this returns."""
    write_whole(path, parts_of(header, tensors))


def prune(directory: Path, written: Path, layout: int | None) -> None:
    """Remove what ``written``, the newest checkpoint, has made useless.

    Goes: all of our model's but the newest two up to it; those of our model that claim
    more steps, for we did not go on from them; what crashed writers left. Files that
    cannot be read, or of another model, are neither counted nor touched.
    """
    ours = [path for path in newest_first(directory) if _has_layout(path, layout)]
    kept = [path for path in ours if path.name <= written.name][:KEEP]
    for path in ours:
        if path not in kept:
            path.unlink(missing_ok=True)
    for left in directory.glob(f".*{SUFFIX}.*.tmp"):
        left.unlink(missing_ok=True)


def _has_layout(path: Path, layout: int | None) -> bool:
    try:
        return bool(peek(path).get("layout") == layout)
    except (OSError, UnreadableError):
        return False


# ---- reading ---------------------------------------------------------------------


def read(path: Path) -> tuple[dict[str, Any], list[torch.Tensor]]:
    """Return header and tensors of a checkpoint, every byte verified."""
    with _opened(path) as file:
        return read_from(file)


def read_from(file: BinaryIO, expected: str = "") -> tuple[dict[str, Any], list[torch.Tensor]]:
    """Return header and tensors of what comes out of ``file`` until its end, verified.

    Args:
        file: a buffered reader.
        expected: its SHA-256 in hex, where somebody trusted has told it.

    Raises:
        UnreadableError: it is not one complete checkpoint.
        OSError: as ``file`` raises it.
    """
    digest = hashlib.sha256()
    header = _read_header(file, digest)
    try:
        tensors = codec.allocate(header["tensors"])
    except (ElasticError, KeyError, ValueError, RuntimeError) as problem:
        raise UnreadableError(f"bad tensor table: {problem}") from problem
    for tensor in tensors:
        data = _bytes_of(tensor)
        if file.readinto(data) != len(data):  # type: ignore[attr-defined]  # buffered readers have it
            raise UnreadableError("it is cut short")
        digest.update(data)
    if file.read() != digest.digest():
        raise UnreadableError("its checksum does not match")
    if expected and digest.hexdigest() != expected:
        raise UnreadableError("it is not what its holder was given")
    return header, tensors


def peek(path: Path) -> dict[str, Any]:
    """Return the header alone, not verified: good for a guess."""
    with _opened(path) as file:
        return _read_header(file, hashlib.sha256())


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    # Refuses symbolic links and files another user put there: their content would
    # become our parameters.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise UnreadableError("it is not a regular file")
        if status.st_uid != os.geteuid():
            raise UnreadableError(f"it belongs to another user (uid {status.st_uid})")
        yield file


def _read_header(file: BinaryIO, digest: Any) -> dict[str, Any]:
    start = file.read(len(MAGIC) + 8)
    if not start.startswith(MAGIC) or len(start) != len(MAGIC) + 8:
        raise UnreadableError("it does not start like a checkpoint")
    length = int.from_bytes(start[len(MAGIC) :], "little")
    if length > MAX_HEADER_BYTES:
        raise UnreadableError("its header is too long")
    text = file.read(length)
    digest.update(start)
    digest.update(text)
    try:
        header = json.loads(text)
    except ValueError as problem:
        raise UnreadableError(f"its header is damaged: {problem}") from problem
    if not isinstance(header, dict):
        raise UnreadableError("its header is damaged")
    return header


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    """Return the memory of a contiguous CPU tensor, without numpy and without a copy."""
    size_bytes = tensor.numel() * tensor.element_size()
    if size_bytes == 0:
        return memoryview(bytearray())
    raw = (ctypes.c_char * size_bytes).from_address(tensor.data_ptr())
    raw.owner = tensor  # type: ignore[attr-defined]  # lives as long as the view does
    return memoryview(raw).cast("B")
