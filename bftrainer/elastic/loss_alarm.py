"""Tells of a loss that is NaN or infinite for several updates in a row.

Each worker watches the losses of its own share; any member's count. A loss on a GPU is copied to
the host behind the work that makes it, and looked at when it has arrived, some updates later: the
host never waits for it, unless it is ``MOST_WAITING`` updates ahead. Used by ``run``.

A training goes on, as a warning may be all there is to it; a trial of a study ends, as its nodes
can be of use to others.
"""

from __future__ import annotations

import math
import os
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from bftrainer.elastic.control import Control
from bftrainer.elastic.errors import ElasticError
from bftrainer.elastic.loss_rule import LossRule
from bftrainer.elastic.protocol import NAN_UPDATES, Diverged
from bftrainer.elastic.reports import trial_mark
from bftrainer.elastic.shards import local_of

IN_A_ROW = 3  # updates, by default
MOST_WAITING = 64  # updates whose losses are still on their way


@dataclass(frozen=True, slots=True, kw_only=True)
class HostValue:
    """A loss that has been looked at."""

    is_finite: bool

    def has_come(self) -> bool:
        """Return whether it can be looked at without waiting."""
        return True


_FINITE, _NOT_FINITE = HostValue(is_finite=True), HostValue(is_finite=False)


class DeviceValue:
    """A loss that a GPU still has to compute and to copy to the host."""

    def __init__(self, loss: torch.Tensor) -> None:
        self._copy = torch.empty((), dtype=torch.float32, pin_memory=True)
        self._copy.copy_(loss, non_blocking=True)
        self._is_copied = torch.cuda.Event()
        self._is_copied.record(torch.cuda.current_stream(loss.device))

    def has_come(self) -> bool:
        """Return whether it can be looked at without waiting."""
        return bool(self._is_copied.query())

    @property
    def is_finite(self) -> bool:
        """Whether it is a finite number; waits until it is there."""
        self._is_copied.synchronize()
        return math.isfinite(self._copy.item())


LossValue: TypeAlias = HostValue | DeviceValue


def value_of(root: torch.Tensor) -> LossValue | None:
    """Return a loss as it can be looked at later; None: it cannot, as a graph is being captured."""
    loss = local_of(root)
    if loss.numel() != 1:
        loss = loss.detach().sum()
    if loss.device.type != "cuda":
        return _FINITE if math.isfinite(loss.item()) else _NOT_FINITE
    if torch.cuda.is_current_stream_capturing():
        return None
    return DeviceValue(loss.detach().reshape(()))


class FiniteLosses:
    """The updates in a row in which a loss of this worker was no finite number."""

    def __init__(self, limit: int, tell: Callable[[int, int], object]) -> None:
        """Watch for ``limit`` updates in a row.

        ``tell`` is called with their number and the step of the last, once for each row.
        """
        self._limit, self._tell = limit, tell
        self._pending: list[LossValue] = []  # of the update under way
        self._waiting: deque[tuple[int, list[LossValue]]] = deque()  # by step
        self._in_a_row = 0
        self._is_told = False

    def saw(self, roots: Sequence[Any]) -> None:
        """Note what the script takes the gradient of; passes of one update count together."""
        values = [value_of(root) for root in roots if isinstance(root, torch.Tensor)]
        self._pending += [value for value in values if value is not None]

    def committed(self, step: int) -> None:
        """Count the update that was under way, and those before whose losses have come."""
        if self._pending:  # else this worker had no samples in it
            self._waiting.append((step, self._pending))
            self._pending = []
        self.look()

    def entered(self) -> None:
        """Forget the update under way: it is void. In a new generation a row is told again."""
        self._pending = []
        self._is_told = False

    def look(self, most_left: int = MOST_WAITING) -> None:
        """Count the updates whose losses have come; wait for all but ``most_left``."""
        while self._waiting and (len(self._waiting) > most_left or self._has_come()):
            step, values = self._waiting.popleft()
            if all(value.is_finite for value in values):
                self._in_a_row, self._is_told = 0, False
                continue
            self._in_a_row += 1
            if self._in_a_row >= self._limit and not self._is_told:
                self._is_told = True
                self._tell(self._in_a_row, step)

    def _has_come(self) -> bool:
        return all(value.has_come() for value in self._waiting[0][1])


def diverged(count: int, step: int) -> ElasticError:
    """Return BFT-1435."""
    return ElasticError(
        "BFT-1435",
        f"The loss was NaN or infinite in {count} updates in a row, the last of them step {step}.",
        "Lower the learning rate, clip gradients or look at the data, and start again with --fresh;"
        " a mean over words needs run.weight(n), as a share may have none of them; --allow-nan is"
        " for scripts that deal with it.",
    )


def limit_of(environment: str | None) -> int:
    """Return the updates in a row that ``$BFT_NAN_UPDATES`` names; 0: losses are not watched."""
    text = environment or ""
    return int(text) if text.isdecimal() else IN_A_ROW


class LossAlarm:
    """Tells the daemon, and the worker's log once; ends a trial."""

    def __init__(self, control: Control) -> None:
        self._control = control
        limit = limit_of(os.environ.get(NAN_UPDATES))
        self.losses = FiniteLosses(limit, self._tell) if limit else None
        self._is_printed = False

    def watch(self, losses: FiniteLosses, rule: LossRule, is_real: Callable[[], bool]) -> None:
        """Look at the losses that the rule sees, where ``is_real`` says that they count."""

        def saw(roots: Sequence[Any]) -> None:
            if rule.given != 0.0 and is_real():  # of no samples it may be anything
                losses.saw(roots)

        rule.on_roots = saw

    def _tell(self, count: int, step: int) -> None:
        problem = diverged(count, step)
        if trial_mark():
            raise problem
        self._control.send(Diverged(step=step, cause=str(problem)))
        if not self._is_printed:
            self._is_printed = True
            sys.stderr.write(f"bftrainer: warning: {problem}\n")
