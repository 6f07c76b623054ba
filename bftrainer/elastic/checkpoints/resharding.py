"""Checkpoints of sharded models: each worker of a node writes its part, any number reads them.

Part 0 is the checkpoint; it is written when all others are there, so it is complete if it exists.
The others lie beside it under its name. Each has the format of every checkpoint (``files``) and
says of each tensor which range of the whole it holds. A reader goes through all parts, tensor by
tensor, and keeps what belongs to it: at most one tensor of another part is in memory at a time. A
whole checkpoint is one of one part, and a worker that holds the whole model reads all ranges.
"""

from __future__ import annotations

import errno
import itertools
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from bftrainer.elastic.checkpoints import checkpoint
from bftrainer.elastic.network.shards import Box, Cut, NodeTeam, Shards, is_sharded, whole_box
from bftrainer.elastic.script.models import parts_of
from bftrainer.ground import files
from bftrainer.ground.errors import ElasticError
from bftrainer.ground.files import UnreadableError

log = logging.getLogger("bftrainer.elastic")
T = TypeVar("T")
LOOK_S = 0.02  # between two looks for parts of others
_DAMAGED = (LookupError, TypeError, ValueError, AttributeError, RuntimeError)


# ---- writing ---------------------------------------------------------------------------


def marks(node: NodeTeam, cuts: Sequence[Cut | None]) -> dict[str, Any]:
    """Return what the header says of this worker's part; ``cuts``: of each tensor."""
    return {"part": node.rank, "parts": node.size, "boxes": list(map(_body_of, cuts))}


def _body_of(cut: Cut | None) -> list[list[int]] | None:
    """Return the range of a tensor that a worker has, as ``_box_of`` reads it; None: all of it."""
    if cut is None:
        return None
    box = cut.box()
    return [list(box.whole), list(box.shape), list(box.offset)]


def await_parts(path: Path, count: int, limit_s: float) -> None:
    """Wait until all parts but the first are there.

    Raises:
        OSError: another worker has not written its part in time.
    """
    ends_s = time.monotonic() + limit_s
    while not all(files.part_of(path, part).exists() for part in range(1, count)):
        if time.monotonic() > ends_s:
            raise OSError(errno.ETIMEDOUT, "another worker of the node has not written its part")
        time.sleep(LOOK_S)


# ---- reading ---------------------------------------------------------------------------


def reader(
    parameters: Sequence[Any], optimizer: Any, extra: Mapping[str, Any], shards: Shards | None
) -> checkpoint.Reader:
    """Return a function that reads this worker's part of a checkpoint in any number of parts."""

    def read(path: Path) -> tuple[dict[str, Any], list[torch.Tensor]]:
        header = files.peek(path)
        try:
            count = int(header.get("parts", 1))
            if shards is None and count == 1:
                return checkpoint.read(path)
            sharded: Sequence[Any] = ()
            if shards is not None:
                structure = _followed(header, parameters, optimizer, extra)
                header = {**header, "structure": structure}
                sharded = parameters
            boxes = _own_boxes(header, sharded)
            kinds = [[name, box.shape] for (name, _), box in _pairs(header["tensors"], boxes)]
            tensors = checkpoint.allocate(kinds)
            for part in range(count):
                _read_part(path, part, header, list(zip(tensors, boxes, strict=True)))
        except ElasticError as problem:
            raise UnreadableError(problem.cause) from problem
        except _DAMAGED as problem:
            raise UnreadableError(f"its parts do not fit ({problem})") from problem
        return header, tensors

    return read


def _pairs(first: Sequence[T], second: Sequence[Box]) -> Iterator[tuple[T, Box]]:
    return zip(first, second, strict=True)


def _own_boxes(header: dict[str, Any], parameters: Sequence[Any]) -> list[Box]:
    """Return what this worker keeps of each tensor; the whole, unless it has ``parameters``."""
    shapes = [_box_of(header, i).whole for i in range(len(header["tensors"]))]
    cuts: list[Cut | None] = [None] * len(shapes)
    if parameters:
        count = len(shapes) - _count(header["structure"])
        cuts[count:] = checkpoint.cuts_of(header["structure"], [torch.empty(0)] * len(cuts[count:]))
        for i, p in enumerate(parameters):
            cuts[i] = Cut.of(p) if is_sharded(p) else None
    boxes = []
    for shape, cut in zip(shapes, cuts, strict=True):
        box = whole_box(shape) if cut is None else cut.box()
        if box.whole != shape:
            raise UnreadableError(f"a tensor has the shape {shape} and should have {box.whole}")
        boxes.append(box)
    return boxes


def _count(structure: Any) -> int:
    """Return the number of tensors to which a structure refers."""
    numbers = [-1]
    for tag in ("t", "n"):
        checkpoint.replaced(structure, tag, numbers.append)

    def note(body: list[Any]) -> None:
        number, _ = body
        numbers.append(number)

    checkpoint.replaced(structure, "h", note)
    return max(numbers) + 1


def _box_of(header: dict[str, Any], i: int) -> Box:
    """Return which range of a tensor a part holds."""
    body = header["boxes"][i] if "boxes" in header else None
    if body is None:
        _, shape = header["tensors"][i]
        return whole_box(shape)
    whole, shape, offset = (tuple(map(int, numbers)) for numbers in body)
    return Box(whole=whole, shape=shape, offset=offset)


def _read_part(
    path: Path, part: int, first: dict[str, Any], targets: Sequence[tuple[torch.Tensor, Box]]
) -> None:
    """Copy what a part has of each target; ``first``: the header of the first part."""

    def landing(header: dict[str, Any]) -> Iterator[memoryview]:
        for name in ("layout", "counters", "parts"):
            if header.get(name) != first.get(name):
                raise UnreadableError(f"part {part} is of another checkpoint")
        if header.get("part", 0) != part or len(header["tensors"]) != len(targets):
            raise UnreadableError(f"part {part} is not the one that it should be")
        for i, (target, box) in enumerate(targets):
            stored = _box_of(header, i)
            # What all parts have whole is taken from the first.
            is_taken = part == 0 or stored.shape != stored.whole
            if is_taken and stored == box:
                yield checkpoint.bytes_of(target)
                continue
            dtype, _ = header["tensors"][i]
            (values,) = checkpoint.allocate([[dtype, stored.shape]])
            yield checkpoint.bytes_of(values)
            if is_taken:
                box.copy(target, stored, values)

    with files.opened(files.part_of(path, part)) as file:
        files.read_from(file, landing)


class _Slot(int):
    """The number of a tensor, in its place in a tree."""

    def numpy(self) -> _Slot:
        """Return it, also where an array belongs."""
        return self


def _followed(
    header: dict[str, Any], parameters: Sequence[Any], optimizer: Any, extra: Mapping[str, Any]
) -> Any:
    """Return the structure with those tensors cut that an optimizer keeps for cut parameters.

    In a whole checkpoint nothing says that they are; they have the shape of their parameter. So are
    those cut that the script's extra state has cut.
    """
    structure = header["structure"]
    first = len(header["tensors"]) - _count(structure)
    shapes = [tuple(_box_of(header, i).whole) for i in range(first, len(header["tensors"]))]
    whole = checkpoint.decode(structure, list(map(_Slot, range(len(shapes)))))
    saved, cuts = whole["optimizer"], {}
    for name, thing in extra.items():
        for slot, tensor in _matching(whole["extra"].get(name), thing.state_dict()):
            if shapes[slot] == tuple(tensor.shape):
                cuts[slot] = Cut.of(tensor)
    parameters_of_each = _parameters_of_each(whole, optimizer, parameters)
    for members, part in zip(parameters_of_each, saved.get("parts", [saved]), strict=True):
        for p, number in zip(members, _members(part["param_groups"]), strict=True):
            for slot in part["state"].get(number, {}).values():
                if isinstance(slot, _Slot) and is_sharded(p) and shapes[slot] == tuple(p.shape):
                    cuts[slot] = Cut.of(p)

    def as_cut(number: int) -> Any:
        if number not in cuts:
            return None
        return {"h": [number, cuts[number].body()]}

    return checkpoint.replaced(structure, "t", as_cut)


def _parameters_of_each(
    whole: dict[str, Any], optimizer: Any, parameters: Sequence[Any]
) -> Iterator[list[Any]]:
    """Yield the parameters of each saved optimizer, which may have got other groups since."""
    if "grouping" in whole:
        for groups in whole["grouping"]:
            yield [parameters[number] for number in itertools.chain.from_iterable(groups)]
        return
    for part in parts_of(optimizer):  # earlier releases tell none
        yield _members(part.param_groups)


def _members(groups: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return the parameters of all groups, or their numbers in a saved state."""
    members: list[Any] = []
    for group in groups:
        members += group["params"]
    return members


def _matching(saved: Any, own: Any) -> Iterator[tuple[int, Any]]:
    """Yield the numbers of the tensors in a saved state that are cut in our own."""
    if isinstance(saved, _Slot) and is_sharded(own):
        yield saved, own
    elif isinstance(saved, dict) and isinstance(own, dict):
        for key in saved.keys() & own.keys():
            yield from _matching(saved[key], own[key])
    elif isinstance(saved, list | tuple) and isinstance(own, list | tuple):
        for saved_item, own_item in zip(saved, own, strict=False):
            yield from _matching(saved_item, own_item)


def newest_of_node(
    node: NodeTeam,
    directory: Path | None,
    read: Callable[[Path], T],
    note: files.SkipNote = files.log_skipped,
) -> T | None:
    """Return the same as ``files.newest`` for all workers of a node, each its own part."""
    names = ""
    if node.rank == 0 and directory is not None:
        paths = files.patiently(partial(files.newest_first, directory), directory)
        names = "/".join(path.name for path in paths)
    for name in filter(None, node.first(names).split("/")):
        result: T | None = None
        problem: Exception = UnreadableError("another worker of the node cannot read it")
        path = Path(directory or "", name)
        try:
            result = files.patiently(partial(read, path), path)
        except (OSError, UnreadableError) as error:
            problem = error
        if node.all(result is not None):
            return result
        note(path, problem)  # when nobody reads it any more
    return None
