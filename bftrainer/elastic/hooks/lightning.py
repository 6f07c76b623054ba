"""Elastic training with the ``Trainer`` of Lightning, as ``lightning`` or ``pytorch_lightning``.

A script adds ``callbacks=[ElasticCallback()], plugins=[ElasticEnvironment()]`` to its
Trainer and keeps ``trainer.fit()``. The callback replaces the training loader by our batches
and the strategy's update by ours; Lightning keeps its loop, hooks, logging, validation and
schedules. See docs/howto/train-huggingface-lightning.md.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from bftrainer.elastic.gradients.comparison import ERROR
from bftrainer.elastic.gradients.in_common import InCommon, of_callbacks
from bftrainer.elastic.hooks import lightning_compat
from bftrainer.elastic.hooks.driven import Batches, Counted, FrameworkHook, unusable
from bftrainer.elastic.process import control as control_module
from bftrainer.elastic.process.generations import GenerationInfo
from bftrainer.elastic.script.batch import LogicalWorkers
from bftrainer.elastic.script.own_sharding import own_sharding

_library: Any = lightning_compat.module_of()
_strategies: Any = lightning_compat.module_of("strategies")
_loggers: Any = lightning_compat.module_of("loggers")
_environments: Any = lightning_compat.module_of("plugins.environments")
_rank_zero: Any = lightning_compat.module_of("utilities.rank_zero")

_FROM_STEP = "-from-step-"
_LIBRARIES = frozenset({"lightning", "pytorch_lightning"})
_OF_PROCESS = ("ModelCheckpoint", "Timer")  # callbacks whose state has files, or a clock


class ElasticEnvironment(_environments.ClusterEnvironment):  # type: ignore[misc]  # optional
    """Keeps Lightning from treating the pilot's batch job as its own.

    Lightning sees one process: it builds no process group, splits no data and handles no
    signals of the batch system.
    """

    creates_processes_externally = True
    main_address = "127.0.0.1"
    main_port = 0

    @staticmethod
    def detect() -> bool:
        """Return whether bftrainer started this process."""
        return not control_module.current().is_plain

    def world_size(self) -> int:
        """Return 1: the number of processes that Lightning sees."""
        return 1

    def set_world_size(self, size: int) -> None:
        """Nothing to set."""

    def global_rank(self) -> int:
        """Return 0."""
        return 0

    def set_global_rank(self, rank: int) -> None:
        """Nothing to set."""

    def local_rank(self) -> int:
        """Return 0."""
        return 0

    def node_rank(self) -> int:
        """Return 0."""
        return 0


class ElasticCallback(FrameworkHook, _library.Callback):  # type: ignore[misc]
    """Makes the Trainer's next ``fit`` elastic; ``run`` is its run while it trains.

    ``report``: name of the logged metric that is reported, such as ``val_loss``. ``loss``,
    ``equal``: as for ``Run``.
    """

    not_started = (
        "Lightning trains before it has called its callbacks.",
        "Do not change the Trainer's loops.",
    )

    def __init__(
        self,
        *,
        bitwise: LogicalWorkers | None = None,
        report: str | None = None,
        loss: str | None = None,
        equal: str = ERROR,
    ) -> None:
        self.trainer: Any = None
        self.is_first = control_module.current().is_plain  # otherwise not known yet
        self._bitwise, self._report, self._loss = bitwise, report, loss
        self._equal = equal
        if not self.is_first:
            self._place(1)

    def setup(self, trainer: Any, _module: Any, stage: str) -> None:
        """Replace Lightning's strategy for one device."""
        if stage != "fit":
            return
        _refuse(trainer)
        self.trainer, self.run, self._loader = trainer, None, None
        self._passes = trainer.accumulate_grad_batches
        trainer.accumulate_grad_batches = 1
        trainer.strategy.__class__ = _ElasticStrategy
        trainer.strategy.elastic = self
        lightning_compat.replace_environment(trainer, ElasticEnvironment())

    def on_train_start(self, trainer: Any, module: Any) -> None:
        """Build the run from the objects that Lightning has built."""
        if trainer.global_step:
            raise unusable(
                "The Trainer resumes from a checkpoint of its own.",
                "Remove ckpt_path: bftrainer resumes from its own checkpoints.",
            )
        if not module.automatic_optimization or len(trainer.optimizers) != 1:
            raise unusable(
                "The module has several optimizers or calls them itself.",
                "Use one optimizer and Lightning's automatic optimization, or elastic.Run in a"
                " loop of your own.",
            )
        if self._loader is None:
            raise unusable(
                "The Trainer has no training data.", "Give fit() a module with train_dataloader."
            )
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        schedulers = {
            f"scheduler-{i}": config.scheduler
            for i, config in enumerate(trainer.lr_scheduler_configs)
        }
        epochs = trainer.fit_loop.max_epochs
        if not epochs or epochs < 0:  # without a limit
            epochs = sys.maxsize
        extra = schedulers | {"scaler": scaler}
        run = self.build(module, trainer.optimizers[0], _Progress(trainer), extra, epochs=epochs)
        run.on_entered(self._entered)
        lightning_compat.replace_log(trainer, self._log)
        run.open()

    def on_train_epoch_end(self, trainer: Any, _module: Any) -> None:
        """End Lightning's loop when the run ends, which may be earlier."""
        self._report_from(trainer)
        if self.run is not None and self.run.is_trained:
            trainer.fit_loop.max_epochs = trainer.fit_loop.epoch_progress.current.processed

    def on_validation_end(self, trainer: Any, _module: Any) -> None:
        """Report the validation's metric."""
        self._report_from(trainer)

    def on_train_end(self, _trainer: Any, _module: Any) -> None:
        """End the run; only rank 0 continues, or its node."""
        self.close()

    def _log(self, *args: Any, **kwargs: Any) -> None:
        if self.may_log():
            lightning_compat.log_metrics(self.trainer, *args, **kwargs)

    def _report_from(self, trainer: Any) -> None:
        results = lightning_compat.results_of(trainer)
        if results is not None:
            self.report_from(results.metrics(on_step=False)["callback"])

    # ---- called by the strategy ---------------------------------------------------------

    def take_loader(self, loader: Any) -> Batches:
        """Return our batches in place of the Trainer's loader."""
        if self._loader is not None or not isinstance(loader, DataLoader):
            raise unusable(
                "The training data are several loaders, or one that is not a DataLoader.",
                "Return one torch DataLoader from train_dataloader.",
            )
        return self.batches_of(loader)

    def step(self, closure: Callable[[], Any]) -> Any:
        """Train on the present batch and update."""
        outcome = closure()
        self.ready()
        self.started().update()
        return outcome

    # ---- hidden from Lightning ------------------------------------------------------------

    def train(self, batch: Any) -> None:
        """Train as Lightning would."""
        trainer = self.trainer
        batch = lightning_compat.placed(trainer, trainer.precision_plugin.convert_input(batch))
        closure = lightning_compat.closure_of(trainer, batch)
        with _silent(trainer.lightning_module):
            closure()

    def ready(self) -> None:
        """Call the hooks before an update, and clip."""
        trainer = self.trainer
        optimizer = trainer.optimizers[0]
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        if scaler is not None:
            scaler.unscale_(optimizer)
        lightning_compat.after_closure(trainer, optimizer)

    # ---- which process logs -----------------------------------------------------------------

    def _entered(self, info: GenerationInfo) -> None:
        if info.rank == 0 and not self.is_first and info.step:
            _log_elsewhere(self.trainer, info.step)
        self._place(info.rank)

    def _place(self, rank: int) -> None:
        self.is_first = rank == 0
        _rank_zero.rank_zero_only.rank = rank
        if self.trainer is not None:
            self.trainer.strategy.global_rank = rank


class _ElasticStrategy(_strategies.SingleDeviceStrategy):  # type: ignore[misc]
    """Lightning's strategy for one device, with our batches and our update."""

    elastic: ElasticCallback

    @property
    def is_global_zero(self) -> bool:
        """Return whether this process logs and saves."""
        return self.elastic.is_first

    def reduce_boolean_decision(self, decision: bool, *_: object, **__: object) -> bool:
        """Decide to stop or save; never in work that does not count."""
        run = self.elastic.run
        if run is None:
            return decision
        return run.of_first(decision and not run.is_discounted)

    def broadcast(self, obj: Any, *_: object, **__: object) -> Any:
        """Let the node's first worker decide what a clock decides."""
        run = self.elastic.run
        if run is None or type(obj) is not bool:
            return obj
        return run.of_first(obj)

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Return the model's state, whole."""
        return self._whole(super().lightning_module_state_dict())

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        """Return an optimizer's state, whole."""
        return self._whole(super().optimizer_state(optimizer))

    def _whole(self, state: dict[str, Any]) -> dict[str, Any]:
        run = self.elastic.run
        if run is not None:
            state = run.gathered(state)
        return state

    def process_dataloader(self, dataloader: Any) -> Any:
        """Replace the training loader."""
        if not self.elastic.trainer.training:
            return dataloader
        return self.elastic.take_loader(dataloader)

    def optimizer_step(
        self, optimizer: Any, closure: Callable[[], Any], model: Any = None, **kwargs: Any
    ) -> Any:
        """Update once all members have their gradients."""
        del optimizer, model, kwargs
        return self.elastic.step(closure)


class _Progress(Counted):
    """The progress of Lightning's loops and the state of its callbacks."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._before: dict[str, Any] | None = None  # the batch in hand was counted

    def remember(self) -> None:
        """Save the progress before a batch."""
        self._before = self._trainer.fit_loop.state_dict()

    def forget(self) -> None:
        """Discard it."""
        self._before = None

    def begin(self) -> None:
        """Count as Lightning does before an update."""
        loop = self._trainer.fit_loop.epoch_loop
        loop.batch_progress.increment_ready()
        loop.batch_progress.increment_started()
        loop.automatic_optimization.optim_progress.optimizer.step.increment_ready()

    def reopen(self) -> None:
        """Undo the end of the epoch, which Lightning counts again."""
        progress = self._trainer.fit_loop.epoch_progress
        for count in (progress.total, progress.current):
            count.processed -= 1
            count.completed -= 1

    def state_dict(self) -> dict[str, Any]:
        """Return the state between two steps."""
        return {
            "loops": self._before or self._trainer.fit_loop.state_dict(),
            "callbacks": [callback.state_dict() for callback in self._callbacks()],
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Restore it into the running loops."""
        self._before = None
        for path, value in saved["loops"].items():
            *parts, last = path.split(".")
            owner = self._trainer.fit_loop
            for part in parts:
                owner = getattr(owner, part)
            if last == "state_dict":
                vars(owner).update(value)  # the loop's own counters
            else:
                getattr(owner, last).load_state_dict(value)
        for callback, state in zip(self._callbacks(), saved["callbacks"], strict=True):
            callback.load_state_dict(state)

    def in_common(self) -> InCommon:
        """Return the counters of Trainer and callbacks, and what these have measured."""
        trainer = self._trainer
        states = [
            (callback, callback.state_dict())
            for callback in self._callbacks()
            if type(callback).__name__ not in _OF_PROCESS
        ]
        callbacks = of_callbacks(states, _LIBRARIES)
        counters = {"global_step": trainer.global_step, "current_epoch": trainer.current_epoch}
        return InCommon(
            steering={"Trainer": counters, **callbacks.steering}, measured=callbacks.measured
        )

    def _callbacks(self) -> list[Any]:
        callbacks = self._trainer.callbacks
        return [callback for callback in callbacks if not isinstance(callback, ElasticCallback)]


@contextmanager
def _silent(module: torch.nn.Module) -> Iterator[None]:
    """Disable logging: a hidden pass must not appear in Lightning's averages."""
    vars(module)["log"] = lambda *_args, **_kwargs: None
    try:
        yield
    finally:
        del vars(module)["log"]


def _log_elsewhere(trainer: Any, step: int) -> None:
    """Give the CSV loggers of a new rank 0 their own directory.

    A CSVLogger deletes an existing file, and the previous rank 0 may still add the line of its
    last step.
    """
    for logger in trainer.loggers:
        if isinstance(logger, _loggers.CSVLogger):
            name = Path(logger.log_dir).name.partition(_FROM_STEP)[0]
            lightning_compat.rename_log(logger, f"{name}{_FROM_STEP}{step}")


def _refuse(trainer: Any) -> None:
    name = type(trainer.strategy).__name__
    if name in ("FSDPStrategy", "ModelParallelStrategy"):
        raise own_sharding(f"The Trainer uses {name}", "strategy")
    if type(trainer.strategy) not in (_strategies.SingleDeviceStrategy, _ElasticStrategy):
        raise unusable(
            f"The Trainer uses {name}: several processes, or a model that is split.",
            "Give it devices=1 and no strategy: bftrainer starts the workers and needs the whole"
            " model on each.",
        )
    reloads = trainer.reload_dataloaders_every_n_epochs > 0
    if reloads or trainer.overfit_batches > 0:
        raise unusable(
            "The Trainer replaces its training data (reload_dataloaders_every_n_epochs,"
            " overfit_batches).",
            "Remove these options.",
        )
    kinds = {type(callback).__name__ for callback in trainer.callbacks}
    if "GradientAccumulationScheduler" in kinds:
        raise unusable(
            "A GradientAccumulationScheduler changes the batch while training.",
            "Use accumulate_grad_batches=N.",
        )
