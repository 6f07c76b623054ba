"""Checkpoints of tensors: ``files`` with a table of tensors in the header.

Used by ``resuming`` and by ``writer`` in the background.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bftrainer.elastic import codec, files
from bftrainer.elastic.errors import ElasticError
from bftrainer.elastic.fence import write_whole
from bftrainer.elastic.files import (
    DIGEST_BYTES,
    KEEP,
    MAGIC,
    UnreadableError,
    newest_first,
    peek,
    prune,
    step_of,
)

__all__ = [
    "DIGEST_BYTES",
    "KEEP",
    "MAGIC",
    "UnreadableError",
    "VerifiedCheckpoint",
    "newest_first",
    "parts_of",
    "peek",
    "prune",
    "read",
    "step_of",
    "write",
]

# Errors that a table of tensors from a foreign file may cause.
_NO_TABLE = (ElasticError, KeyError, ValueError, TypeError, OverflowError, RuntimeError)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedCheckpoint:
    """A checkpoint whose every byte has been verified."""

    source: str  # its file
    header: dict[str, Any]
    tensors: list[torch.Tensor]


def parts_of(
    header: dict[str, Any], tensors: Sequence[torch.Tensor]
) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a checkpoint, its digest last; tensors are not copied."""
    described = {**header, "tensors": codec.describe(tensors)}
    return files.parts_of(described, (_bytes_of(t.contiguous().cpu()) for t in tensors))


def write(path: Path, header: dict[str, Any], tensors: Sequence[torch.Tensor]) -> None:
    """Write one checkpoint; complete and synced when this returns."""
    write_whole(path, parts_of(header, tensors))


def read(path: Path) -> tuple[dict[str, Any], list[torch.Tensor]]:
    """Return header and tensors of a checkpoint, every byte verified."""
    tensors: list[torch.Tensor] = []

    def allocate(header: dict[str, Any]) -> list[memoryview]:
        try:
            tensors.extend(codec.allocate(header["tensors"]))
        except _NO_TABLE as problem:
            raise UnreadableError(f"bad tensor table: {problem}") from problem
        return [_bytes_of(tensor) for tensor in tensors]

    with files.opened(path) as file:
        return files.read_from(file, allocate), tensors


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    """Return the memory of a contiguous CPU tensor, without numpy and without a copy."""
    size_bytes = tensor.numel() * tensor.element_size()
    if size_bytes == 0:
        return memoryview(bytearray())
    raw = (ctypes.c_char * size_bytes).from_address(tensor.data_ptr())
    raw.owner = tensor  # type: ignore[attr-defined]  # lives as long as the view does
    return memoryview(raw).cast("B")
