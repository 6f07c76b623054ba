"""Detects optimizers that step outside the run, whose parameters would diverge among members.

While a run lasts, a torch hook sees every optimizer step of the training thread and raises if
the script made it itself. Optimizers that are created and discarded within one batch (to perturb
an input, say) are allowed. Used by ``run``.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.optim.optimizer import register_optimizer_step_pre_hook

from bftrainer.elastic.errors import ElasticError

_watching: list[Callable[[], None]] = []  # removes the hook of the latest run


class StrayUpdates:
    """Watches optimizer steps from the first batch of a run to its end."""

    def __init__(self, registered: tuple[Any, ...]) -> None:
        # By id, because the hook sees the wrapped optimizer, not a wrapper.
        self._registered = {id(optimizer) for optimizer in registered}
        self._thread = 0
        self._batch = 0
        self._is_ours = False
        self._first: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def next_batch(self) -> None:
        """Count the batch that the script gets; watch from the first one on."""
        self._batch += 1
        if self._batch > 1:
            return
        self._thread = threading.get_ident()
        end_watch()  # of a run that this one replaces
        _watching.append(register_optimizer_step_pre_hook(self._see).remove)

    @contextmanager
    def updating(self) -> Iterator[None]:
        """Allow optimizer steps in here: they are the run's."""
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
                "Remove the call.",
            )
        if self._first.setdefault(optimizer, self._batch) == self._batch:
            return
        groups = optimizer.param_groups
        count = sum(p.numel() for group in groups for p in group["params"])
        raise ElasticError(
            "BFT-1422",
            f"A second optimizer ({name}, {count} parameters) steps outside run.step(): its"
            " parameters would differ between workers and not be in checkpoints.",
            "Register it with its model and remove its step():"
            " elastic.Run([model_a, model_b], [opt_a, opt_b], ...); see"
            " docs/howto/train-pytorch.md, Several models.",
        )


def end_watch() -> None:
    """Stop watching: the run is over."""
    while _watching:
        _watching.pop()()


@contextmanager
def quiet_schedulers() -> Iterator[None]:
    """Silence torch's warning that ``lr_scheduler.step()`` came before an update."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
        yield
