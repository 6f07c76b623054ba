"""Schedulers that a script builds over the run's optimizer after its loops have begun.

Such a scheduler is in no checkpoint, and a worker that joins or starts again builds another one, at
its beginning: rates then differ between workers, or from those of a run that nobody disturbed. So
it is an error at the next update. Used by ``run``.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any, Final

from torch.optim import lr_scheduler

from bftrainer.ground.errors import ElasticError

# Those whose __init__ does not call that of the first.
_CLASSES: Final = (
    lr_scheduler.LRScheduler,
    lr_scheduler.ReduceLROnPlateau,
    lr_scheduler.SequentialLR,
    lr_scheduler.ChainedScheduler,
)


class LateSchedules:
    """Watches which schedulers are built from the beginning of the loops on."""

    def __init__(self, optimizers: tuple[Any, ...]) -> None:
        """Watch for schedulers over these."""
        self._optimizers = set(map(id, optimizers))
        self._thread = 0
        self._built: weakref.WeakKeyDictionary[Any, None] = weakref.WeakKeyDictionary()

    def begin(self) -> Callable[[], None]:
        """Watch; return what ends it."""
        self._thread = threading.get_ident()
        ends = list(map(self._watch, _CLASSES))

        def end() -> None:
            for end_watch in ends:
                end_watch()

        return end

    def _watch(self, kind: Any) -> Callable[[], None]:
        real = kind.__init__

        def build(scheduler: Any, *args: Any, **options: Any) -> None:
            real(scheduler, *args, **options)
            self._see(scheduler)

        def end() -> None:
            if kind.__init__ is build:
                kind.__init__ = real

        kind.__init__ = build
        return end

    def _see(self, scheduler: Any) -> None:
        if threading.get_ident() == self._thread:
            self._built.pop(scheduler, None)
            self._built[scheduler] = None  # after the ones that it is made of

    def require_none(self) -> None:
        """Require that none of them is over the run's optimizer.

        Raises:
            ElasticError: BFT-1448.
        """
        for scheduler in reversed(list(self._built)):
            if id(getattr(scheduler, "optimizer", None)) not in self._optimizers:
                continue
            raise ElasticError(
                "BFT-1448",
                f"The script has built a {type(scheduler).__name__} over the run's optimizer since"
                " its loops began: it is in no checkpoint, and workers that join or start again"
                " begin it anew.",
                "Build it once, before Run, and register it: Run(..., scheduler=scheduler). For one"
                " that begins anew every epoch: CosineAnnealingWarmRestarts, or LambdaLR; see"
                " docs/howto/same-on-all-workers.md.",
            )
