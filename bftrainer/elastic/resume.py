"""Loads a run's state from disk, or a trial's from another trial's.

Of the checkpoints in the directory, it loads the one with the most steps that can be verified
and is of this model; the log says why others were skipped. Called by ``state_transfer`` on
rank 0.

Population based training (Jaderberg et al., "Population Based Training of Neural Networks",
2017) copies weights and perturbs settings. Where a checkpoint is of another trial (``trial``), the
options of the optimizers stay those that this script set, and learning rates are taken to where
the schedule is; all else is the checkpoint's.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from torch.optim.lr_scheduler import LRScheduler

from bftrainer.elastic import checkpoint
from bftrainer.elastic.checkpoint import UnreadableError, VerifiedCheckpoint
from bftrainer.elastic.errors import ElasticError
from bftrainer.elastic.files import patiently
from bftrainer.elastic.state import State

log = logging.getLogger("bftrainer.elastic")


class _OtherModelError(Exception):
    """A readable state of another model."""


def find(directory: Path | None, layout: int) -> VerifiedCheckpoint | None:
    """Return the usable checkpoint with the most steps, None if there is none.

    Raises:
        ElasticError: BFT-1408, when the only states are of another model; BFT-1343, when the file
            system does not let them be read now.
    """
    others = []
    for path in (
        []
        if directory is None
        else patiently(partial(checkpoint.newest_first, directory), directory)
    ):
        try:
            return patiently(partial(_load, path, layout), path)
        except _OtherModelError as problem:
            others.append(path)
            log.warning("BFT-1413: skipped checkpoint %s: %s", path, problem)
        except (OSError, UnreadableError) as problem:
            log.warning("BFT-1413: skipped checkpoint %s: %s", path, problem)
    if others:
        # Starting from scratch here would look like a resume.
        raise ElasticError(
            "BFT-1408",
            f"The saved state was written by a different model: checkpoint {others[0]}.",
            "Name another --checkpoint-dir, or remove the old checkpoints.",
        )
    return None


def _load(path: Path, layout: int) -> VerifiedCheckpoint:
    """Return a verified state whose structure can be decoded, which its checksum does not prove."""
    header, tensors = checkpoint.read(path)
    if header.get("layout") != layout:
        raise _OtherModelError("it was written by a different model")
    try:
        checkpoint.decode(header["structure"], tensors)
    except KeyError:
        raise UnreadableError("it has no structure") from None
    except ElasticError as problem:
        raise UnreadableError(problem.cause) from problem
    return VerifiedCheckpoint(source=str(path), header=header, tensors=tensors)


class OwnOptions:
    """The options that this script gave to its optimizers and schedulers."""

    def __init__(self, state: State, groups: list[dict[str, Any]]) -> None:
        self._state = state
        self._groups = groups  # without parameters
        self._base = [list(one.base_lrs) for one in self._schedulers()]

    def put_back(self) -> None:
        """Set them again, after a checkpoint was loaded."""
        for group, own in zip(self._state.optimizer.param_groups, self._groups, strict=True):
            began, now = group.get("initial_lr"), group.get("lr")
            group.update(own)
            if began and "initial_lr" in own:
                # A schedule has got this far from its beginning.
                group["lr"] = own["initial_lr"] * (now / began)
        for scheduler, rates in zip(self._schedulers(), self._base, strict=True):
            scheduler.base_lrs = rates

    def _schedulers(self) -> Iterator[LRScheduler]:
        return _within([self._state.scheduler, *self._state.extra.values()])


def _within(things: Iterable[Any]) -> Iterator[LRScheduler]:
    """Yield the schedulers with learning rates of their own, also those within others."""
    for thing in things:
        if isinstance(thing, LRScheduler):
            if hasattr(thing, "base_lrs"):
                yield thing
            yield from _within(getattr(thing, "_schedulers", ()))
