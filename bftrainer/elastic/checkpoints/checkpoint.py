"""Checkpoints of tensors: state trees as JSON plus a list of tensors; never pickle.

Handles the ``state_dict()``s of models, optimizers, schedulers and users' own objects. The
structure refers to tensors by number; they are not copied. Used by the transfer between
members and by checkpoint files (``files``), which ``writer`` writes in the background.
"""

from __future__ import annotations

import base64
import ctypes
import logging
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bftrainer.elastic.network.shards import Cut, is_sharded, local_of
from bftrainer.ground import files
from bftrainer.ground.errors import ElasticError
from bftrainer.ground.fence import write_whole
from bftrainer.ground.files import ForeignError, UnreadableError

log = logging.getLogger("bftrainer.elastic")

_PLAIN = (bool, int, float, str)
# Errors that a table of tensors from a foreign file may cause.
_NO_TABLE = (ElasticError, KeyError, ValueError, TypeError, OverflowError, RuntimeError)


def encode(tree: Any, name: str = "state") -> tuple[Any, list[torch.Tensor]]:
    """Return the structure of ``tree`` and the tensors it refers to, not copied.

    Raises:
        ElasticError: BFT-1407, a part of it cannot be encoded.
    """
    tensors: list[torch.Tensor] = []

    def add(tensor: torch.Tensor) -> int:
        tensors.append(tensor)
        return len(tensors) - 1

    def items(value: Any, path: str) -> Any:
        return [
            [encoded(k, f"a key of {path}"), encoded(v, f"{path}[{k!r}]")] for k, v in value.items()
        ]

    def each(value: Any, path: str) -> Any:
        return [encoded(v, f"{path}[{i}]") for i, v in enumerate(value)]

    kinds: tuple[tuple[type[Any], str, Callable[[Any, str], Any]], ...] = (
        (torch.Tensor, "t", lambda value, _: add(value.detach())),
        (Counter, "c", items),  # MultiStepLR keeps its milestones in one
        (dict, "d", items),
        (list, "l", each),
        (tuple, "u", each),
        (set, "s", each),
        (deque, "q", each),
        (bytes, "b", lambda value, _: base64.b64encode(value).decode()),
        (complex, "z", lambda value, _: [value.real, value.imag]),
    )

    def encoded(value: Any, path: str) -> Any:
        if value is None or type(value) in _PLAIN:
            return value
        if is_sharded(value):
            return {"h": [add(local_of(value)), Cut.of(value).body()]}
        if type(value).__module__ == "numpy":
            is_array = bool(getattr(value, "ndim", 0))
            return {"n": add(torch.as_tensor(value))} if is_array else value.item()
        for kind, tag, body_of in kinds:
            if isinstance(value, kind):
                return {tag: body_of(value, path)}
        for base in _PLAIN:  # subclasses such as enums of int or str
            if isinstance(value, base):
                return base(value)
        raise ElasticError(
            "BFT-1407",
            f"The state at {path} is a {type(value).__name__}, which cannot be encoded.",
            "Return only tensors, numbers, strings, lists and dicts from state_dict().",
        )

    return encoded(tree, name), tensors


def decode(
    structure: Any,
    tensors: Sequence[Any],
    wrap: Callable[[Any, list[Any]], Any] | None = None,
) -> Any:
    """Return the tree of a structure and its tensors.

    ``wrap`` makes a ``DTensor`` of this worker's part and a ``Cut``'s body; None: it is the whole.

    Raises:
        ElasticError: BFT-1413, it is not a structure that ``encode`` returns.
    """

    def decoded(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        ((tag, body),) = value.items()
        return decoders[tag](body)

    def items(body: list[list[Any]]) -> dict[Any, Any]:
        return {decoded(k): decoded(v) for k, v in body}

    def part(body: list[Any]) -> Any:
        number, cut = body
        if wrap is None:
            return tensors[number]
        return wrap(tensors[number], cut)

    decoders: dict[str, Callable[[Any], Any]] = {
        "t": lambda number: tensors[number],
        "h": part,
        "n": lambda number: tensors[number].numpy(),
        "d": items,
        "c": lambda body: Counter(items(body)),
        "l": lambda body: list(map(decoded, body)),
        "u": lambda body: tuple(map(decoded, body)),
        "s": lambda body: set(map(decoded, body)),
        "q": lambda body: deque(map(decoded, body)),
        "b": base64.b64decode,
        "z": lambda parts: complex(*parts),
    }
    try:
        return decoded(structure)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as problem:
        raise ElasticError(
            "BFT-1413",
            f"The structure of a saved state is damaged ({type(problem).__name__}: {problem}).",
            "Remove that checkpoint, or name another --checkpoint-dir.",
        ) from problem


def cuts_of(structure: Any, tensors: Sequence[torch.Tensor]) -> list[Cut | None]:
    """Return how each tensor of a structure is cut; None: it is not."""
    cuts: list[Cut | None] = [None] * len(tensors)

    def note(body: list[Any]) -> None:
        number, cut = body
        cuts[number] = Cut.read(cut)

    replaced(structure, "h", note)
    return cuts


def replaced(structure: Any, tag: str, change: Callable[[Any], Any]) -> Any:
    """Return a structure in which ``change`` was asked about all that has ``tag``; None: as it is.

    It is given the body and returns what replaces it, with a tag.
    """
    if isinstance(structure, list):
        return [replaced(part, tag, change) for part in structure]
    if not isinstance(structure, dict):
        return structure
    if tag in structure:
        replacement = change(structure[tag])
        return structure if replacement is None else replacement
    return {name: replaced(body, tag, change) for name, body in structure.items()}


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
        dtype = getattr(torch, name, None)
        if not isinstance(dtype, torch.dtype):
            raise ElasticError(
                "BFT-1413",
                f"The state names a tensor type {name!r} that this torch does not know.",
                "Use the version of torch that wrote it.",
            )
        fitting = at_hand.get((dtype, tuple(shape)))
        tensors.append(fitting.pop() if fitting else torch.empty(shape, dtype=dtype))
    return tensors


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
    return files.parts_of(described, (bytes_of(t.contiguous().cpu()) for t in tensors))


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
        return list(map(bytes_of, tensors))

    with files.opened(path) as file:
        return files.read_from(file, allocated), tensors


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """Return the memory of a contiguous CPU tensor, without numpy and without a copy."""
    size_bytes = tensor.numel() * tensor.element_size()
    if size_bytes == 0:
        return memoryview(bytearray())
    raw = (ctypes.c_char * size_bytes).from_address(tensor.data_ptr())
    raw.owner = tensor  # type: ignore[attr-defined]  # lives as long as the view does
    return memoryview(raw).cast("B")


Reader = Callable[[Path], tuple[dict[str, Any], list[torch.Tensor]]]
Newest = Callable[
    [Path | None, Callable[[Path], VerifiedCheckpoint]], VerifiedCheckpoint | None
]  # as files.newest


def find(
    directory: Path | None,
    layouts: Collection[int],
    read: Reader = read,
    newest: Newest = files.newest,
) -> VerifiedCheckpoint | None:
    """Return the checkpoint with the most steps that is of this model and can be verified.

    Raises:
        ElasticError: BFT-1408, when the only states are of another model; BFT-1343, when the file
            system does not let them be read now.
    """
    foreign: list[Path] = []

    def load(path: Path) -> VerifiedCheckpoint:
        header, tensors = read(path)
        if header.get("layout") not in layouts:
            foreign.append(path)
            raise ForeignError("it was written by a different model")
        if "structure" not in header:
            raise UnreadableError("it has no structure")
        try:  # its checksum does not prove that
            decode(header["structure"], tensors)
        except ElasticError as problem:
            raise UnreadableError(problem.cause) from problem
        return VerifiedCheckpoint(source=str(path), header=header, tensors=tensors)

    checkpoint = newest(directory, load)
    if checkpoint is None and foreign:
        # Starting from scratch here would look like a resume.
        raise ElasticError(
            "BFT-1408",
            f"The saved state was written by a different model: checkpoint {foreign[0]}.",
            "Name another --checkpoint-dir, or remove the old checkpoints.",
        )
    return checkpoint
