"""Checkpoints on a shared file system: written whole or not at all, never by a ghost.

A file is a magic line, a JSON header (structure, tensor table) and raw tensor bytes,
closed by their SHA-256. It is written beside its final name, synced, renamed and the
directory synced; the two newest stay. A fence file names the newest (incarnation,
generation) that wrote here: whoever has a smaller one is refused. Used by
``membership`` for resume and by ``writer`` in the background.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import json
import logging
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

import torch

from bftrainer.elastic import codec
from bftrainer.elastic.errors import ElasticError

log = logging.getLogger("bftrainer.elastic")

MAGIC = b"bftrainer checkpoint 1\n"
KEEP = 2
MAX_HEADER_BYTES = 256 << 20
_SUFFIX = ".bft"
_FENCE = "fence.json"


class UnreadableError(Exception):
    """A file that is not a complete checkpoint of ours; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """Who writes: compared by incarnation, then generation."""

    incarnation: int
    generation: int
    token: str

    @property
    def order(self) -> tuple[int, int]:
        """Return what decides between two writers."""
        return (self.incarnation, self.generation)


def newest_first(directory: Path) -> list[Path]:
    """Return the checkpoints of a directory, the one with most steps first."""
    with suppress(FileNotFoundError):
        names = [n for n in os.listdir(directory) if n.endswith(_SUFFIX)]  # noqa: PTH208
        return [directory / n for n in sorted(names, reverse=True) if not n.startswith(".")]
    return []


def path_for(directory: Path, step: int, generation: int) -> Path:
    """Return a name that sorts by steps; a redone step in a later generation wins."""
    return directory / f"step-{step:012d}-generation-{generation:08d}{_SUFFIX}"


# ---- writing ---------------------------------------------------------------------


def write(path: Path, header: dict[str, Any], tensors: Sequence[torch.Tensor]) -> None:
    """Write one checkpoint; complete and synced when this returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(temporary, flags, 0o600), "wb") as file:
            digest = hashlib.sha256()
            text = json.dumps({**header, "tensors": codec.describe(tensors)}).encode()
            for part in (MAGIC, len(text).to_bytes(8, "little"), text):
                digest.update(part)
                file.write(part)
            for tensor in tensors:
                flat = tensor.contiguous().cpu()  # named, so that it outlives its bytes
                data = _bytes_of(flat)
                digest.update(data)
                file.write(data)
            file.write(digest.digest())
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)


def prune(directory: Path) -> None:
    """Remove all but the newest checkpoints and what crashed writers left."""
    for old in newest_first(directory)[KEEP:]:
        old.unlink(missing_ok=True)
    for left in directory.glob(f".*{_SUFFIX}.*.tmp"):
        left.unlink(missing_ok=True)


def claim(directory: Path, fence: Fence) -> bool:
    """Make ``fence`` the directory's writer; False when a later one already is."""
    directory.mkdir(parents=True, exist_ok=True)
    with _locked(directory):
        held = read_fence(directory)
        if held is not None and held.order > fence.order:
            log.warning(
                "BFT-1412: %s belongs to generation %d of daemon %d; generation %d of %d may"
                " not write there any more.",
                directory, held.generation, held.incarnation, fence.generation,
                fence.incarnation,
            )  # fmt: skip
            return False
        if held != fence:
            _write_fence(directory, fence)
    return True


def read_fence(directory: Path) -> Fence | None:
    """Return who wrote last, None when nobody did or the file is damaged."""
    try:
        body = json.loads((directory / _FENCE).read_text())
        return Fence(
            incarnation=int(body["incarnation"]),
            generation=int(body["generation"]),
            token=str(body["token"]),
        )
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as problem:
        log.warning("ignored a damaged %s: %s", directory / _FENCE, problem)
        return None


def _write_fence(directory: Path, fence: Fence) -> None:
    temporary = directory / f".{_FENCE}.{os.getpid()}"
    body = {
        "incarnation": fence.incarnation,
        "generation": fence.generation,
        "token": fence.token,
    }
    with temporary.open("w") as file:
        file.write(json.dumps(body))
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(directory / _FENCE)
    _sync_directory(directory)


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    fd = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        # Some shared file systems have no locks; the fence then still holds between
        # writers that are more than one write apart.
        with suppress(OSError):
            fcntl.lockf(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


# ---- reading ---------------------------------------------------------------------


def read(path: Path) -> tuple[dict[str, Any], list[torch.Tensor]]:
    """Return header and tensors of a checkpoint, every byte verified."""
    with _opened(path) as file:
        digest = hashlib.sha256()
        header = _read_header(file, digest)
        try:
            tensors = codec.allocate(header["tensors"])
        except (ElasticError, KeyError, ValueError, RuntimeError) as problem:
            raise UnreadableError(f"bad tensor table: {problem}") from problem
        for tensor in tensors:
            data = _bytes_of(tensor)
            if file.readinto(data) != len(data):
                raise UnreadableError("it is cut short")
            digest.update(data)
        if file.read() != digest.digest():
            raise UnreadableError("its checksum does not match")
    return header, tensors


def peek(path: Path) -> dict[str, Any]:
    """Return the header alone, not verified: good for a guess."""
    with _opened(path) as file:
        return _read_header(file, hashlib.sha256())


def newest_valid(directory: Path) -> tuple[Path, dict[str, Any], list[torch.Tensor]] | None:
    """Return the newest checkpoint that can be trusted; log why others are not."""
    for path in newest_first(directory):
        try:
            return (path, *read(path))
        except (OSError, UnreadableError) as problem:
            log.warning("BFT-1413: skipped checkpoint %s: %s", path, problem)
    return None


@contextmanager
def _opened(path: Path) -> Iterator[BufferedReader]:
    # Refuses symbolic links and files another user put there: their content would
    # become our parameters.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise UnreadableError("it is not a regular file")
        if status.st_uid != os.geteuid():
            raise UnreadableError(f"it belongs to another user (uid {status.st_uid})")
        yield file


def _read_header(file: BufferedReader, digest: Any) -> dict[str, Any]:
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
    return memoryview(raw).cast("B")
