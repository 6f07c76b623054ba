"""A script with the Trainer of transformers whose batches carry their sample ids.

Settings come as one JSON argument; ``elastic: false`` leaves the hook out.
"""

from __future__ import annotations

from typing import Any

import hooked  # type: ignore[import-not-found]  # beside this script
import meddling  # type: ignore[import-not-found]
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    EarlyStoppingCallback,
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_callback import ExportableState

settings = hooked.settings


class Noting(Trainer):  # type: ignore[misc]  # transformers is not typed
    """Writes down which samples it works on."""

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        ids = inputs.pop("sample")
        if model.training:
            hooked.works_on(None if hook is None else hook.run, ids)
        return super().compute_loss(model, inputs, *args, **kwargs)

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        super().log(logs, *args, **kwargs)
        if self.is_world_process_zero() and "loss" in logs:
            hooked.note("log", step=self.state.global_step, **logs)

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        metrics = super().evaluate(*args, **kwargs)
        if meddling.is_odd(hook and hook.run, "evaluation"):  # as of a share of its own
            metrics["eval_loss"] += 1.0
        return metrics

    def save_model(self, *args: Any, **kwargs: Any) -> None:
        hooked.saw("save", hook and hook.run, self.state.global_step)
        super().save_model(*args, **kwargs)


class Watching(TrainerCallback):  # type: ignore[misc]
    """Follows the run once there is one."""

    def on_train_begin(self, *_args: Any, **_kwargs: Any) -> None:
        if hook is not None:
            hooked.follow(hook.run, model, counted)

    def on_evaluate(self, _args: Any, state: Any, *_: Any, **_kwargs: Any) -> None:
        hooked.saw("evaluate", hook and hook.run, state.global_step)

    def on_epoch_end(self, _args: Any, state: Any, *_: Any, **_kwargs: Any) -> None:
        hooked.saw("epoch end", hook and hook.run, state.global_step, epoch=state.epoch)


class Meddling(TrainerCallback, ExportableState):  # type: ignore[misc]
    """Keeps a counter, and does otherwise on one worker."""

    updates = 0

    def on_step_end(self, args: Any, _state: Any, control: Any, **_kwargs: Any) -> None:
        run = hook.run
        if not run.is_discounted:
            optimizer = trainer.optimizer.optimizer
            scaler = trainer.accelerator.scaler
            meddling.meddle(run, model, optimizer, trainer.lr_scheduler, scaler)
            self.updates += 1 + meddling.is_odd(run, "counter")
        if meddling.is_odd(run, "clipping"):
            args.max_grad_norm = 0.05
        if meddling.is_odd(run, "ending"):
            control.should_training_stop = True
        if meddling.is_odd(run, "stopping"):
            stopping.early_stopping_patience_counter += 1

    def state(self) -> dict[str, Any]:
        return {"args": {}, "attributes": {"updates": self.updates}}


def counted() -> dict[str, Any]:
    return {
        "steps": trainer.state.global_step,
        "epoch": trainer.state.epoch,
        "lr": trainer.lr_scheduler.get_last_lr()[0],
    }


set_seed(4)
model: Any
if settings["tokens"]:
    texts = GPT2Config(vocab_size=64, n_positions=8, n_embd=16, n_layer=1, n_head=2)
    texts.resid_pdrop = texts.embd_pdrop = texts.attn_pdrop = settings["dropout"]
    model = GPT2LMHeadModel(texts)
else:
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=64,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=8,
            hidden_dropout_prob=settings["dropout"],
            attention_probs_dropout_prob=0.0,
        )
    )
hooked.shard(*(model.transformer.h if settings["tokens"] else model.bert.encoder.layer), model)
evaluations = "steps" if settings["plateau"] else "epoch" if settings["evaluate"] else "no"
trainer = Noting(
    model=model,
    args=TrainingArguments(
        output_dir=str(hooked.directory / "out"),
        per_device_train_batch_size=settings["batch"],
        gradient_accumulation_steps=settings["accumulate"],
        num_train_epochs=settings["epochs"],
        bf16=settings["bf16"],
        train_sampling_strategy="sequential",
        remove_unused_columns=False,
        logging_steps=1,
        eval_strategy=evaluations,
        save_strategy="epoch" if settings["evaluate"] else "no",
        metric_for_best_model="loss",
        greater_is_better=bool(settings["patience"]),
        dataloader_drop_last=settings["drop_last"],
        save_only_model=settings["sharded"] and not settings["whole_state"],
        report_to=[],
        use_cpu=True,
        lr_scheduler_type="reduce_lr_on_plateau" if settings["plateau"] else "linear",
        eval_steps=4,
        disable_tqdm=True,
    ),
    train_dataset=hooked.Tokens(settings["samples"]),
    eval_dataset=hooked.Tokens(20),
    # Not Adam, which makes differences of nothing where gradients are nothing but noise.
    optimizers=(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), None),
)
if settings["scaled"]:  # accelerate makes one for GPUs only
    trainer.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=3)
hook: Any = None
if settings["elastic"]:
    from bftrainer.elastic.hooks.huggingface import ElasticCallback

    hook = ElasticCallback(trainer, bitwise=hooked.bitwise(), report="eval_loss")
    trainer.add_callback(hook)
trainer.add_callback(Watching())
stopping = EarlyStoppingCallback(settings["patience"])
if settings["patience"]:
    trainer.add_callback(stopping)
if settings["mutation"]:
    trainer.add_callback(Meddling())
trainer.train()
if settings["sharded"] and settings["evaluate"]:
    trainer.save_model(hooked.directory / "whole")
hooked.finish(model, is_first=trainer.is_world_process_zero(), **counted())
