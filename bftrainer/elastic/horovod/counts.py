"""Counts the steps and samples of a script that does not report them.

A step is one of the first optimizer in the script's ``TorchState`` (without one: a
``commit()``). Its samples are those that went into the state's models in training mode since
the previous step, times the number of workers. Called by ``session``.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from bftrainer.elastic.batch import Terms
from bftrainer.elastic.membership import GenerationInfo
from bftrainer.elastic.protocol import Commit
from bftrainer.elastic.run_info import StepDurations


class Counts:
    """Steps and samples so far, and those at the last commit."""

    def __init__(self) -> None:
        self.step = self.samples = 0
        self.pace = StepDurations()
        self.stepped_s: float | None = None  # end of the last step
        self.on_step: Callable[[], object] = lambda: None
        self.size = 1
        self._pending = 0  # samples of this worker since the last step
        self._committed = (0, 0)
        self._by_commit = True

    def watch(self, state: Any) -> None:
        """Hook the optimizer and the models in a script's state."""
        values = [handler.value for handler in getattr(state, "_handlers", {}).values()]
        optimizers = [v for v in values if isinstance(v, torch.optim.Optimizer)]
        for model in (v for v in values if isinstance(v, torch.nn.Module)):
            model.register_forward_pre_hook(self._forward, with_kwargs=True)
        if optimizers:
            self._by_commit = False
            optimizers[0].step = self._counted(optimizers[0].step)  # type: ignore[method-assign]

    def _counted(self, step: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(step)  # schedulers set attributes on it
        def counted(*args: Any, **kwargs: Any) -> Any:
            result = step(*args, **kwargs)
            self._stepped()
            return result

        return counted

    def _forward(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        if not module.training or not torch.is_grad_enabled():
            return
        tensors = (v for v in (*args, *kwargs.values()) if isinstance(v, torch.Tensor) and v.dim())
        self._pending += next((int(tensor.shape[0]) for tensor in tensors), 0)

    def _stepped(self) -> None:
        batch, self._pending = self._pending * self.size, 0
        self.step += 1
        self.samples += batch
        self.stepped_s = time.monotonic()
        self.pace.note(batch)
        self.on_step()

    # ---- with the state ------------------------------------------------------------------

    def commit(self) -> None:
        """Record that the script committed its state."""
        if self._by_commit:
            self._stepped()
        self.keep()

    def keep(self) -> None:
        """Record the present counters as those of the committed state."""
        self._committed = (self.step, self.samples)

    @property
    def committed(self) -> tuple[int, int]:
        """Steps and samples at the last commit."""
        return self._committed

    @property
    def is_ahead(self) -> bool:
        """Return whether there were steps since the last commit."""
        return self._committed != (self.step, self.samples)

    def restore(self) -> None:
        """Reset the counters to the last commit, like the script's state."""
        self.step, self.samples = self._committed

    def enter(self, step: int, samples: int, size: int) -> None:
        """Set the counters that all members agreed on."""
        self.step, self.samples, self.size = step, samples, size
        self._pending = 0
        self.pace.forget()

    def info(self, commit: Commit, rank: int, epoch: int) -> GenerationInfo:
        """Return this worker's position."""
        return GenerationInfo(
            generation=commit.generation,
            attempt=commit.attempt,
            step=self.step,
            epoch=epoch,
            samples=self.samples,
            rank=rank,
            size=self.size,
            terms=Terms(),
        )
