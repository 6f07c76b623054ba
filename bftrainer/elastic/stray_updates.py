"""Finds optimizers that step beside the run: what they train is not alike on all members.

Every step of an optimizer of torch in this thread comes in while a run lasts; the error
of one that a script steps by itself goes out, at that very call. An optimizer that is
made and used up within one batch (to perturb an input, say) is the script's own business.
Used by ``run``.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.optim.optimizer import register_optimizer_step_pre_hook

from bftrainer.elastic.errors import ElasticError

_watching: list[Callable[[], None]] = []  # what ends the watch of the run that began last


class StrayUpdates:
    """Sees all steps between the first batch of a run and its end."""

    def __init__(self, registered: tuple[Any, ...]) -> None:
        # By its number: a wrapper is not what steps in the end.
        self._registered = {id(optimizer) for optimizer in registered}
        self._thread = 0
        self._batch = 0
        self._is_ours = False
        self._first: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def next_batch(self) -> None:
        """The script gets a batch."""
        self._batch += 1
        if self._batch > 1:
            return
        self._thread = threading.get_ident()
        end_watch()  # of a run that this one replaces
        _watching.append(register_optimizer_step_pre_hook(self._see).remove)

    @contextmanager
    def updating(self) -> Iterator[None]:
        """What steps now does so for the run."""
        self._is_ours = True
        try:
            yield
        finally:
            self._is_ours = False

    def _see(self, optimizer: Any, _args: object, _kwargs: object) -> None:
        if self._is_ours or threading.get_ident() != self._thread:
            return
        name = type(optimizer).__name__
        if id(optimizer) in self._registered:
            raise ElasticError(
                "BFT-1422",
                f"The script calls step() of its {name}, which run.step() does.",
                "Leave the call out.",
            )
        if self._first.setdefault(optimizer, self._batch) == self._batch:
            return
        groups = optimizer.param_groups
        count = sum(p.numel() for group in groups for p in group["params"])
        raise ElasticError(
            "BFT-1422",
            f"A second optimizer ({name}, {count} parameters) steps beside run.step(): what it"
            " trains would differ from worker to worker and be in no checkpoint.",
            "Register it with its model and leave out its step():"
            " elastic.Run([model_a, model_b], [opt_a, opt_b], ...); see"
            " docs/howto/train-pytorch.md, Several models.",
        )


def end_watch() -> None:
    """The run is over: what steps now is the script's own."""
    while _watching:
        _watching.pop()()
