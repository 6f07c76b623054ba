"""Watches the losses: tells of a loss that is NaN or infinite for several updates in a row.

Each worker watches the losses of its own share; any member's count. A loss on a GPU is copied to
the host behind the work that makes it, and looked at when it has arrived, some updates later: the
host never waits for it, unless it is ``MOST_WAITING`` updates ahead. Used by ``run``. The mean of
the same losses is reported (``training_loss``).

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

from bftrainer.elastic.gradients.loss_rule import LossRule
from bftrainer.elastic.gradients.training_loss import reporter_for
from bftrainer.elastic.network.shards import local_of
from bftrainer.elastic.process.control import Control
from bftrainer.elastic.process.generations import GenerationInfo
from bftrainer.elastic.process.reports import trial_mark
from bftrainer.elastic.script import torch_compat
from bftrainer.ground.errors import ElasticError
from bftrainer.ground.protocol import NAN_UPDATES, Diverged

IN_A_ROW = 3  # updates, by default
MOST_WAITING = 64  # updates whose losses are still on their way


@dataclass(slots=True)
class HostValue:
    """A loss that has been looked at; not frozen, which takes longer to make."""

    number: float

    @property
    def is_finite(self) -> bool:
        """Whether it is a finite number."""
        return math.isfinite(self.number)

    def has_come(self) -> bool:
        """Return whether it can be looked at without waiting."""
        return True


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
    def number(self) -> float:
        """The loss; waits until it is there."""
        self._is_copied.synchronize()
        return self._copy.item()

    @property
    def is_finite(self) -> bool:
        """Whether it is a finite number; waits until it is there."""
        return math.isfinite(self.number)


LossValue: TypeAlias = HostValue | DeviceValue


def value_of(root: torch.Tensor, scale: torch.Tensor | None = None) -> LossValue | None:
    """Return a loss as it can be looked at later; None: it cannot, as a graph is being captured.

    ``scale``: what it was multiplied by, which is taken away again.
    """
    loss = local_of(root)
    if loss.numel() != 1:
        loss = loss.detach().sum()
    is_on_gpu = loss.device.type == "cuda"
    if is_on_gpu and torch.cuda.is_current_stream_capturing():
        return None
    if scale is not None:
        loss = loss.detach() / scale.to(loss.device, non_blocking=True)
    if not is_on_gpu:
        return HostValue(loss.item())
    return DeviceValue(loss.detach().reshape(()))


def is_scaled(root: torch.Tensor, scale: torch.Tensor) -> bool:
    """Return whether a ``GradScaler`` made this of a loss, and nothing was done to it since."""
    node = root.grad_fn
    if node is None or not node.name().startswith("Mul"):
        return False
    factor = torch_compat.saved_of(node, "other")
    return isinstance(factor, torch.Tensor) and factor.data_ptr() == scale.data_ptr()


@dataclass(slots=True, kw_only=True)
class PassLoss:
    """The losses of one pass over some of this worker's samples."""

    number: int  # of the pass
    weight: float  # its samples, or what the script says that it counts by
    values: list[LossValue]
    n_counted: int  # of these, the first, for the mean
    is_unclear: bool  # what some of these are was not to be told: there is no mean

    def is_finite(self) -> bool:
        """Return whether all are finite numbers; waits until they are there."""
        return all(value.is_finite for value in self.values)

    def has_come(self) -> bool:
        """Return whether all can be looked at without waiting."""
        return all(value.has_come() for value in self.values)


class FiniteLosses:
    """The updates in a row in which a loss of this worker was no finite number."""

    def __init__(
        self,
        limit: int,
        tell: Callable[[int, int], object],
        add: Callable[[Sequence[PassLoss]], object] = lambda _passes: None,
    ) -> None:
        """Watch for ``limit`` updates in a row; 0: not.

        Args:
            limit: updates.
            tell: is called with their number and the step of the last, once for each row.
            add: is called with the losses of each update once they have come.
        """
        self._limit, self._tell, self._add = limit, tell, add
        self._pending: list[PassLoss] = []  # of the update under way
        self._waiting: deque[tuple[int, list[PassLoss]]] = deque()  # by step
        self._in_a_row = 0
        self._is_told = False

    def saw(
        self,
        roots: Sequence[Any],
        *,
        number: int = 0,
        weight: float = 1.0,
        scale: torch.Tensor | None = None,
        is_added_up: bool = True,
    ) -> None:
        """Note what the script takes the gradient of; passes of one update count together.

        Args:
            roots: as the script gives them to ``backward``.
            number: of the pass over samples.
            weight: what this pass counts by.
            scale: of mixed precision, if losses have one.
            is_added_up: several backward passes of one pass are; else the first one counts.
        """
        losses = [root for root in roots if isinstance(root, torch.Tensor)]
        # A loss that was changed after it was scaled is not to be told from others.
        is_plain = scale is None or all(is_scaled(loss, scale) for loss in losses)
        values: list[LossValue] = []
        for loss in losses:
            value = value_of(loss, scale)
            if value is not None:
                values.append(value)
        is_unclear = not is_plain or len(values) < len(losses)
        if not (self._pending and self._pending[-1].number == number):
            part = PassLoss(
                number=number,
                weight=weight,
                values=values,
                n_counted=len(values),
                is_unclear=is_unclear,
            )
            self._pending.append(part)
            return
        part = self._pending[-1]
        part.values += values
        if is_added_up:
            part.n_counted = len(part.values)
            part.is_unclear = part.is_unclear or is_unclear

    def committed(self, step: int) -> None:
        """Count the update that was under way, and those before whose losses have come."""
        if any(part.values for part in self._pending):
            self._waiting.append((step, self._pending))
        else:  # this worker had no samples in it
            self._add(())
        self._pending = []
        self.look()

    def entered(self) -> None:
        """Forget the update under way: it is void. In a new generation a row is told again."""
        self._pending = []
        self._is_told = False

    def look(self, most_left: int = MOST_WAITING) -> None:
        """Count the updates whose losses have come; wait for all but ``most_left``."""
        while self._waiting and (len(self._waiting) > most_left or self._has_come()):
            step, passes = self._waiting.popleft()
            self._add(passes)
            if all(part.is_finite() for part in passes):
                self._in_a_row, self._is_told = 0, False
                continue
            self._in_a_row += 1
            if 0 < self._limit <= self._in_a_row and not self._is_told:
                self._is_told = True
                self._tell(self._in_a_row, step)

    def _has_come(self) -> bool:
        _, passes = self._waiting[0]
        return all(part.has_come() for part in passes)


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
    """Tells the daemon, and the worker's log once; ends a trial. Reports the mean, if asked."""

    def __init__(
        self, control: Control, rule: LossRule, scale: Callable[[], torch.Tensor | None]
    ) -> None:
        """``scale``: returns the loss scale of mixed precision; None: there is none."""
        self._control, self._rule, self._scale = control, rule, scale
        limit = limit_of(os.environ.get(NAN_UPDATES))
        self._reporter = reporter = reporter_for(control)
        self.losses: FiniteLosses | None = None  # None: nobody wants to know
        if reporter is not None:
            self.losses = FiniteLosses(limit, self._tell, reporter.mean.add)
        elif limit:
            self.losses = FiniteLosses(limit, self._tell)
        self._is_printed = False

    def watch(self, losses: FiniteLosses, is_real: Callable[[], bool]) -> None:
        """Look at the losses that the rule sees, where ``is_real`` says that they count."""
        rule = self._rule

        def saw(roots: Sequence[Any]) -> None:
            if rule.given == 0.0 or not is_real():  # the loss of no samples may be anything
                return
            weight = rule.samples if rule.given is None else rule.given
            losses.saw(
                roots,
                number=rule.passes,
                weight=weight,
                scale=self._scale(),
                is_added_up=rule.is_added_up,
            )

        rule.on_roots = saw

    def committed(self, info: GenerationInfo) -> None:
        """Take an update that is committed."""
        if self.losses is not None:
            self.losses.committed(info.step)
        if self._reporter is not None and self._reporter.is_due():
            self._reporter.send(info.generation, info.step, is_sum=self._rule.is_sum)

    def ended(self, info: GenerationInfo) -> None:
        """Wait for all that is on its way where the run is over, and only there.

        A broken collective may keep a GPU from the others.
        """
        if self.losses is None or not self._control.is_over:
            return
        self.losses.look(0)
        if self._reporter is not None:
            self._reporter.send(info.generation, info.step, is_sum=self._rule.is_sum)

    def _tell(self, count: int, step: int) -> None:
        problem = diverged(count, step)
        if trial_mark():
            raise problem
        self._control.send(Diverged(step=step, cause=str(problem)))
        if not self._is_printed:
            self._is_printed = True
            sys.stderr.write(f"bftrainer: warning: {problem}\n")
