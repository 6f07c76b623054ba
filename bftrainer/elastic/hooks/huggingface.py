"""Elastic training with the ``Trainer`` of Hugging Face transformers.

A script adds one line, ``trainer.add_callback(ElasticCallback(trainer))``, and keeps
``trainer.train()``. The callback replaces the Trainer's loader by our batches and its
optimizer's update by ours; the Trainer keeps its loop, callbacks, logging, evaluation and
schedule. Uses the Trainer's public interface, its ``_save_checkpoint`` and its loss counters.
See docs/howto/train-huggingface-lightning.md.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from transformers import (
    PrinterCallback,
    ProgressCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer_callback import ExportableState

from bftrainer.elastic.gradients.comparison import ERROR
from bftrainer.elastic.gradients.in_common import InCommon, of_callbacks
from bftrainer.elastic.hooks import huggingface_compat
from bftrainer.elastic.hooks.driven import Batches, Counted, FrameworkHook, unusable
from bftrainer.elastic.process import control as control_module
from bftrainer.elastic.process.generations import GenerationInfo
from bftrainer.elastic.script.batch import LogicalWorkers
from bftrainer.elastic.script.own_sharding import own_sharding, refuse_accelerate
from bftrainer.elastic.script.torch_compat import mark_stepped, replace_step

# Properties of this process, or arguments of this script: not part of the run's state.
_OWN_PLACE = ("is_local_process_zero", "is_world_process_zero", "stateful_callbacks")
_ASKED = ("max_steps", "num_train_epochs", "logging_steps", "eval_steps", "save_steps")
_BEST = ("best_metric", "best_global_step")
_LIBRARIES = frozenset({"transformers"})


class ElasticCallback(FrameworkHook, TrainerCallback):  # type: ignore[misc]  # not required
    """Makes ``trainer`` elastic; ``run`` is its run while it trains.

    ``report``: name of the metric of its evaluations that is reported, such as ``eval_loss``.
    ``loss``, ``equal``: as for ``Run``.
    """

    not_started = (
        "The Trainer trains without its ElasticCallback.",
        "Do not remove it; call train() of the Trainer it was given.",
    )

    def __init__(
        self,
        trainer: Trainer,
        *,
        bitwise: LogicalWorkers | None = None,
        report: str | None = None,
        loss: str | None = None,
        equal: str = ERROR,
    ) -> None:
        _refuse(trainer)
        self.trainer = trainer
        self._scaler: Any = None
        self._bitwise, self._report, self._loss = bitwise, report, loss
        self._equal = equal
        args = trainer.args
        self._passes = args.gradient_accumulation_steps
        args.gradient_accumulation_steps = 1
        self._their_loader = trainer.get_train_dataloader
        trainer.get_train_dataloader = self._get_loader
        self._their_samples = trainer.get_batch_samples
        trainer.get_batch_samples = self._get_samples
        self._their_save, self._their_save_files = huggingface_compat.replace_saving(
            trainer, self._save, self._save_files
        )
        self._their_save_model = trainer.save_model
        trainer.save_model = self._save_model
        self._whole: dict[str, Any] | None = None  # a sharded model, while it is saved
        self._their_log = trainer.callback_handler.on_log
        trainer.callback_handler.on_log = self._log
        if not control_module.current().is_plain:
            self._place(1)  # until the rank is known
            # The progress bar is made once, when training begins; rank 0 may change later.
            if trainer.pop_callback(ProgressCallback) is not None:
                trainer.add_callback(PrinterCallback)

    def on_train_begin(
        self, _args: TrainingArguments, state: TrainerState, _control: TrainerControl, **_: Any
    ) -> None:
        """Build the run from the objects that the Trainer has built."""
        trainer = self.trainer
        if state.global_step:
            raise unusable(
                "The Trainer resumes from a checkpoint of its own.",
                "Remove resume_from_checkpoint: bftrainer resumes from its own checkpoints.",
            )
        if self._loader is None:
            raise unusable(
                "The Trainer has not asked for its training data.",
                "Give ElasticCallback the Trainer whose train() is called.",
            )
        optimizer = trainer.optimizer
        self._scaler = getattr(trainer.accelerator, "scaler", None)
        run = self.build(
            trainer.model,
            getattr(optimizer, "optimizer", optimizer),
            _Sums(trainer),
            {"scaler": self._scaler},
            scheduler=trainer.lr_scheduler,
            epochs=state.num_train_epochs,
        )
        if run.is_sharded:
            _refuse_whole_state(trainer.args)
        run.on_entered(self._entered)
        _replace_step(optimizer, self._update)
        run.open()

    def on_step_end(
        self, _args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        """After a step that does not count, do not log, save or evaluate."""
        if self._loader is not None:
            # The Trainer's loop variables began at 0 in this process.
            state.epoch = state.global_step / len(self._loader)
        if self.run is not None and self.run.is_discounted:
            _ask_nothing(control)
            control.should_training_stop = False
        elif self.run is not None and self.run.is_trained:
            control.should_training_stop = True
        return control

    def on_epoch_end(
        self, _args: TrainingArguments, _state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        """Close the run after the last epoch; only where it goes on are the rest done."""
        if self.run is None:
            return control
        if self.run.is_discounted:
            _ask_nothing(control)
            control.should_training_stop = False
        elif control.should_training_stop and self.run.goes_on:
            self.run.close()  # before a long evaluation
        elif control.should_training_stop:
            _ask_nothing(control)
        return control

    def on_evaluate(self, *_args: object, metrics: Mapping[str, Any], **_: object) -> None:
        """Report the evaluation's metric."""
        self.report_from(metrics)

    def on_train_end(self, *_args: object, **_: object) -> None:
        """End the run; only rank 0 continues, or its node."""
        self.close()

    # ---- replacements of the Trainer's methods ------------------------------------------

    def _get_loader(self) -> Batches:
        return self.batches_of(self._their_loader())

    def _get_samples(self, *args: Any) -> tuple[list[Any], Any]:
        """Also say what the batch counts by, where the Trainer divides the loss by it."""
        batches, items = self._their_samples(*args)
        if items is not None and self.run is not None:
            self.run.weight(items)
        return batches, items

    def _update(self) -> None:
        before = self._scaler.get_scale() if self._scaler else 0.0
        self.started().update()
        if self._scaler:  # a lower scale means that this step was skipped
            is_skipped = self._scaler.get_scale() < before
            huggingface_compat.mark_skipped(self.trainer.optimizer, is_skipped=is_skipped)

    def _save(self, *args: Any, **kwargs: Any) -> None:
        if self.run is None or self.run.goes_on:
            self._their_save(*args, **kwargs)

    def _save_model(self, *args: Any, **kwargs: Any) -> None:
        run = self.run
        if run is None or not run.is_sharded:
            self._their_save_model(*args, **kwargs)
        elif run.goes_on:
            self._whole = run.gathered(self.trainer.model.state_dict())
            try:
                if run.is_first:
                    self._their_save_model(*args, **kwargs)
            finally:
                self._whole = None

    def _save_files(self, output_dir: Any = None, state_dict: Any = None) -> None:
        whole = self._whole if state_dict is None else state_dict
        self._their_save_files(output_dir, state_dict=whole)

    def _log(self, args: Any, state: Any, control: TrainerControl, logs: Any) -> Any:
        if self.may_log():
            return self._their_log(args, state, control, logs)
        control.should_log = False  # as their own does
        return control

    # ---- hidden from the Trainer -------------------------------------------------------

    def train(self, batch: Any) -> None:
        """Train as the Trainer would."""
        trainer = self.trainer
        model = trainer.model_wrapped
        model.zero_grad()
        (inputs,), items = trainer.get_batch_samples(iter([batch]), 1, trainer.args.device)
        trainer.current_gradient_accumulation_steps = 1
        trainer.training_step(model, inputs, items)

    def ready(self) -> None:
        """Clip."""
        limit = self.trainer.args.max_grad_norm
        if limit is not None and limit > 0:
            self.trainer.accelerator.clip_grad_norm_(self.trainer.model_wrapped.parameters(), limit)

    # ---- which process logs -------------------------------------------------------------

    def _entered(self, info: GenerationInfo) -> None:
        self._place(info.rank)

    def _place(self, rank: int) -> None:
        trainer = self.trainer
        place = trainer.args.distributed_state
        place.process_index = place.local_process_index = rank
        trainer.state.is_world_process_zero = trainer.state.is_local_process_zero = rank == 0


class _Sums(Counted):
    """A Trainer's state, which changes only after an update, and its sums of losses."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def state_dict(self) -> dict[str, Any]:
        """Return the Trainer's state, its sums of losses and its callbacks' counters."""
        trainer = self._trainer
        state = dataclasses.asdict(dataclasses.replace(trainer.state, stateful_callbacks=[]))
        for name in (*_OWN_PLACE, *_ASKED):
            state.pop(name, None)
        return {
            "state": state,
            "losses": huggingface_compat.sums_of(trainer),
            "callbacks": [callback.state()["attributes"] for callback in self._counting()],
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Restore them."""
        trainer = self._trainer
        for name, value in saved["state"].items():
            if name not in _ASKED:  # an earlier release kept them
                setattr(trainer.state, name, value)
        huggingface_compat.set_sums(trainer, saved["losses"])
        for callback, attributes in zip(self._counting(), saved["callbacks"], strict=True):
            for name, value in attributes.items():
                setattr(callback, name, value)

    def in_common(self) -> InCommon:
        """Return the counters of Trainer and callbacks, and the best metric so far."""
        state = self._trainer.state
        states = [(callback, callback.state()["attributes"]) for callback in self._counting()]
        callbacks = of_callbacks(states, _LIBRARIES)
        best = {name: getattr(state, name, None) for name in _BEST}
        return InCommon(
            steering={"Trainer": {"global_step": state.global_step}, **callbacks.steering},
            measured={"TrainerState": best, **callbacks.measured},
        )

    def _counting(self) -> list[Any]:
        handler = self._trainer.callback_handler
        callbacks = handler.callbacks
        return [callback for callback in callbacks if isinstance(callback, ExportableState)]


def _ask_nothing(control: TrainerControl) -> None:
    control.should_log = control.should_save = control.should_evaluate = False


def _replace_step(optimizer: Any, update: Callable[[], None]) -> None:
    def step(closure: Any = None) -> None:
        if closure is not None:
            raise unusable(
                "The Trainer's optimizer needs a closure.", "Use an optimizer without one."
            )
        update()
        mark_stepped(optimizer)

    replace_step(optimizer, step)


def _refuse_whole_state(args: TrainingArguments) -> None:
    saves = str(getattr(args.save_strategy, "value", args.save_strategy)) != "no"
    if args.load_best_model_at_end or (saves and not args.save_only_model):
        raise unusable(
            "The model is sharded, and the Trainer would write or load one worker's shards.",
            'Use save_strategy="no", or save_only_model=True without load_best_model_at_end.',
        )


def _refuse(trainer: Trainer) -> None:
    args, accelerator = trainer.args, trainer.accelerator
    state = accelerator.state
    if getattr(trainer, "is_fsdp_enabled", False):
        raise own_sharding("The Trainer is set up for FSDP")
    if getattr(trainer, "is_distributed_loading_by_transformers", False):
        raise own_sharding("The model was sharded by transformers when it was loaded")
    refuse_accelerate()
    for name, is_used in (
        ("DeepSpeed", getattr(trainer, "is_deepspeed_enabled", False)),
        ("Megatron-LM", getattr(state, "megatron_lm_plugin", None) is not None),
    ):
        if is_used:
            raise unusable(
                f"The Trainer is set up for {name}, which splits the model.",
                f"Remove {name}: bftrainer needs the whole model on every worker.",
            )
    if args.world_size > 1:
        raise unusable(
            f"The script was started as one of {args.world_size} processes (accelerate, torchrun).",
            "Submit the script itself: bftrainer starts the workers.",
        )
    if args.n_gpu > 1:
        raise unusable(
            f"The Trainer would use {args.n_gpu} GPUs in one process (DataParallel).",
            "Show it one: CUDA_VISIBLE_DEVICES=0.",
        )
    if getattr(args, "enable_jit_checkpoint", False):
        raise unusable(
            "enable_jit_checkpoint answers SIGTERM, which belongs to the pilot, after 3 s.",
            "Remove it: bftrainer keeps the state of a worker that leaves.",
        )
    if args.auto_find_batch_size:
        raise unusable(
            "auto_find_batch_size changes the batch while training.", "Set the batch size."
        )
