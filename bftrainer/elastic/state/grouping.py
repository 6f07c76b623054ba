"""The parameters in each group of the optimizers, as numbers that all workers share.

A script may add groups while it trains, take some away, or move parameters between them
(unfreezing layer by layer). Those who join or restart build the groups of the beginning; the
shared state tells them which parameters of the model each group has now. Used by ``state`` and
``resharding``.

What an optimizer keeps of parameters that are in no group any more stays in it, and counts again
when they come back. ``torch`` cannot save that, so such parameters travel in a last group of
their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any

import torch

from bftrainer.elastic.script.models import parts_of
from bftrainer.ground.errors import ElasticError

Grouping = list[list[list[int]]]  # of each optimizer, of each group: numbers of parameters

unfit = partial(ElasticError, "BFT-1401")


def foreign() -> ElasticError:
    """Return the error of an optimizer with parameters that the model does not have."""
    return unfit(
        "The optimizer holds parameters that are not in the model.",
        "Register one module that holds all parameters of the optimizer, and build it before Run.",
    )


def grouping_of(optimizer: Any, parameters: Sequence[Any]) -> Grouping:
    """Return which of ``parameters`` are in which group.

    Raises:
        ElasticError: BFT-1401, a group has others.
    """
    numbers = {id(p): number for number, p in enumerate(parameters)}
    grouping: Grouping = []
    for part in parts_of(optimizer):
        groups = [_numbers_of(group["params"], numbers) for group in part.param_groups]
        grouping.append(groups)
    return grouping


def _numbers_of(members: Iterable[Any], numbers: Mapping[int, int]) -> list[int]:
    try:
        return [numbers[id(p)] for p in members]
    except KeyError:
        raise foreign() from None


def regroup(optimizer: Any, parameters: Sequence[Any], grouping: Grouping) -> None:
    """Give the optimizers these groups; their options are to be set afterwards.

    Raises:
        ValueError: it is a grouping of other optimizers or of another model.
    """
    parts = parts_of(optimizer)
    if len(grouping) != len(parts):
        raise ValueError(f"{len(grouping)} optimizers were saved, {len(parts)} are here")
    for numbers in chain.from_iterable(grouping):
        if not all(0 <= number < len(parameters) for number in numbers):
            raise ValueError("a group has parameters that the model does not have")
    for part, groups in zip(parts, grouping, strict=True):
        for group, numbers in zip(part.param_groups, groups, strict=False):
            group["params"] = [parameters[number] for number in numbers]
        del part.param_groups[len(groups) :]
        for numbers in groups[len(part.param_groups) :]:
            part.param_groups.append(_group(part, [parameters[number] for number in numbers]))


@contextmanager
def with_apart(optimizer: Any, parameters: Sequence[Any]) -> Iterator[list[bool]]:
    """Put parameters whose state an optimizer still has into a last group while this lasts.

    Yields for each optimizer whether it has such a group.

    Raises:
        ElasticError: BFT-1401, an optimizer keeps the state of parameters that the model lacks.
    """
    apart = [_apart(part, parameters) for part in parts_of(optimizer)]
    for part, members in zip(parts_of(optimizer), apart, strict=True):
        if members:
            part.param_groups.append(_group(part, members))
    has_apart = list(map(bool, apart))
    try:
        yield has_apart
    finally:
        drop_apart(optimizer, has_apart)


def drop_apart(optimizer: Any, has_apart: Sequence[bool]) -> None:
    """Remove these last groups; what the optimizers keep of their parameters stays."""
    for part, has in zip(parts_of(optimizer), has_apart, strict=True):
        if has:
            del part.param_groups[-1]


def _group(part: Any, members: list[Any]) -> dict[str, Any]:
    return {"params": members, **getattr(part, "defaults", {})}


def _apart(part: Any, parameters: Sequence[Any]) -> list[Any]:
    grouped_ids: set[int] = set()
    for group in part.param_groups:
        grouped_ids.update(map(id, group["params"]))
    apart_ids: set[int] = set()
    for key in getattr(part, "state", {}):
        if isinstance(key, torch.Tensor) and id(key) not in grouped_ids:
            apart_ids.add(id(key))
    members = [p for p in parameters if id(p) in apart_ids]
    if len(members) != len(apart_ids):
        raise foreign()
    return members
