"""Checkpoints of tensors: state trees as JSON plus a list of tensors; never pickle.

Handles the ``state_dict()``s of models, optimizers, schedulers and users' own objects. The
structure refers to tensors by number; they are not copied. Used by the transfer between
members and by checkpoint files, which ``writer`` writes in the background and ``resume`` reads.
"""

from __future__ import annotations

import base64
import ctypes
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bftrainer.elastic import files
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

_PLAIN = (bool, int, float, str)


class Encoder:
    """Turns one tree into its structure; collects the tensors on the way."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []

    def encode(self, value: Any, path: str) -> Any:
        """Return the JSON-able form of ``value``; ``path`` is for error messages."""
        if value is None or type(value) in _PLAIN:
            return value
        if isinstance(value, torch.Tensor):
            self.tensors.append(value.detach())
            return {"t": len(self.tensors) - 1}
        if type(value).__module__ == "numpy":
            return self._encode_numpy(value)
        return self._encode_container(value, path)

    def _encode_numpy(self, value: Any) -> Any:
        if hasattr(value, "ndim") and value.ndim > 0:
            self.tensors.append(torch.as_tensor(value))
            return {"n": len(self.tensors) - 1}
        return value.item()

    def _encode_container(self, value: Any, path: str) -> Any:
        if isinstance(value, Counter):  # MultiStepLR keeps its milestones in one
            return {"c": self._items(value, path)}
        if isinstance(value, dict):
            return {"d": self._items(value, path)}
        for kind, tag in ((list, "l"), (tuple, "u"), (set, "s"), (deque, "q")):
            if isinstance(value, kind):
                return {tag: [self.encode(v, f"{path}[{i}]") for i, v in enumerate(value)]}
        if isinstance(value, bytes):
            return {"b": base64.b64encode(value).decode()}
        if isinstance(value, complex):
            return {"z": [value.real, value.imag]}
        if isinstance(value, _PLAIN):  # subclasses such as enums of int or str
            return next(base(value) for base in _PLAIN if isinstance(value, base))
        raise ElasticError(
            "BFT-1407",
            f"The state at {path} is a {type(value).__name__}, which cannot be encoded.",
            "Return only tensors, numbers, strings, lists and dicts from state_dict().",
        )

    def _items(self, value: dict[Any, Any], path: str) -> list[list[Any]]:
        return [
            [self.encode(k, f"a key of {path}"), self.encode(v, f"{path}[{k!r}]")]
            for k, v in value.items()
        ]


def encode(tree: Any, name: str = "state") -> tuple[Any, list[torch.Tensor]]:
    """Return the structure of ``tree`` and the tensors it refers to, not copied."""
    encoder = Encoder()
    return encoder.encode(tree, name), encoder.tensors


def decode(structure: Any, tensors: Sequence[torch.Tensor]) -> Any:
    """Return the tree of a structure and its tensors.

    Raises:
        ElasticError: BFT-1413, it is not a structure that ``encode`` returns.
    """
    try:
        return _decode(structure, tensors)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as problem:
        raise ElasticError(
            "BFT-1413",
            f"The structure of a saved state is damaged ({type(problem).__name__}: {problem}).",
            "Remove that checkpoint, or name another --checkpoint-dir.",
        ) from problem


def _decode(structure: Any, tensors: Sequence[torch.Tensor]) -> Any:
    if not isinstance(structure, dict):
        return structure
    ((tag, body),) = structure.items()
    return _DECODERS[tag](body, tensors)


def _items(body: list[list[Any]], tensors: Sequence[torch.Tensor]) -> dict[Any, Any]:
    return {_decode(k, tensors): _decode(v, tensors) for k, v in body}


def _values(body: list[Any], tensors: Sequence[torch.Tensor]) -> list[Any]:
    return [_decode(v, tensors) for v in body]


_DECODERS: dict[str, Callable[[Any, Sequence[torch.Tensor]], Any]] = {
    "t": lambda body, tensors: tensors[body],
    "n": lambda body, tensors: tensors[body].numpy(),
    "d": _items,
    "c": lambda body, tensors: Counter(_items(body, tensors)),
    "l": _values,
    "u": lambda body, tensors: tuple(_values(body, tensors)),
    "s": lambda body, tensors: set(_values(body, tensors)),
    "q": lambda body, tensors: deque(_values(body, tensors)),
    "b": lambda body, _: base64.b64decode(body),
    "z": lambda body, _: complex(*body),
}


def describe(tensors: Sequence[torch.Tensor]) -> list[list[Any]]:
    """Return type and shape of each tensor, JSON-able."""
    return [[str(t.dtype).removeprefix("torch."), list(t.shape)] for t in tensors]


def allocate(
    descriptions: Sequence[Sequence[Any]], spare: Iterable[torch.Tensor] = ()
) -> list[torch.Tensor]:
    """Return CPU tensors of the described types and shapes, from ``spare`` ones first.

    Memory that is already mapped causes no page faults while others wait.
    """
    at_hand: dict[Any, list[torch.Tensor]] = {}
    for tensor in spare:
        if tensor.is_contiguous() and tensor.device.type == "cpu":
            at_hand.setdefault((tensor.dtype, tuple(tensor.shape)), []).append(tensor)
    tensors = []
    for name, shape in descriptions:
        fitting = at_hand.get((dtype_of(name), tuple(shape)))
        tensors.append(fitting.pop() if fitting else torch.empty(shape, dtype=dtype_of(name)))
    return tensors


def dtype_of(name: str) -> torch.dtype:
    """Return the torch type of a name; raise BFT-1413 for an unknown one."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ElasticError(
            "BFT-1413",
            f"The state names a tensor type {name!r} that this torch does not know.",
            "Use the version of torch that wrote it.",
        )
    return dtype


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
    described = {**header, "tensors": describe(tensors)}
    return files.parts_of(described, (_bytes_of(t.contiguous().cpu()) for t in tensors))


def write(path: Path, header: dict[str, Any], tensors: Sequence[torch.Tensor]) -> None:
    """Write one checkpoint; complete and synced when this returns."""
    write_whole(path, parts_of(header, tensors))


def read(path: Path) -> tuple[dict[str, Any], list[torch.Tensor]]:
    """Return header and tensors of a checkpoint, every byte verified."""
    tensors: list[torch.Tensor] = []

    def allocated(header: dict[str, Any]) -> list[memoryview]:
        try:
            tensors.extend(allocate(header["tensors"]))
        except _NO_TABLE as problem:
            raise UnreadableError(f"bad tensor table: {problem}") from problem
        return [_bytes_of(tensor) for tensor in tensors]

    with files.opened(path) as file:
        return files.read_from(file, allocated), tensors


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    """Return the memory of a contiguous CPU tensor, without numpy and without a copy."""
    size_bytes = tensor.numel() * tensor.element_size()
    if size_bytes == 0:
        return memoryview(bytearray())
    raw = (ctypes.c_char * size_bytes).from_address(tensor.data_ptr())
    raw.owner = tensor  # type: ignore[attr-defined]  # lives as long as the view does
    return memoryview(raw).cast("B")
