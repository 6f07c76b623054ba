"""A trial that goes on from another trial's state keeps its own hyper-parameters.

Population based training (Jaderberg et al., "Population Based Training of Neural Networks",
2017) copies weights and perturbs settings. Where a checkpoint is of another trial
(``parentage``), the options of the optimizers stay those that this script set, and learning rates
are taken to where the schedule is; all else is the checkpoint's. Used by ``state_transfer``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch.optim.lr_scheduler import LRScheduler

from bftrainer.elastic.state import State


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
