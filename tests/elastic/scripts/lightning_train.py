"""A script with the Trainer of Lightning whose batches carry their sample ids.

Settings come as one JSON argument; ``elastic: false`` leaves the hook out.
"""

from __future__ import annotations

import signal
import sys
from typing import Any

import hooked  # type: ignore[import-not-found]  # beside this script
import lightning
import meddling  # type: ignore[import-not-found]
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.plugins import MixedPrecision, TorchCheckpointIO
from torch.distributed.fsdp import FSDPModule
from torch.utils.data import DataLoader

settings = hooked.settings


class Classifier(lightning.LightningModule):  # type: ignore[misc]  # skipped by mypy
    """Learns a label from embedded tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(64, 8)
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(48, 16),
            torch.nn.BatchNorm1d(16) if settings["norm"] else torch.nn.Identity(),
            torch.nn.Tanh(),
            torch.nn.Dropout(settings["dropout"]),
            torch.nn.Linear(16, 2),
        )

    def configure_model(self) -> None:
        if not isinstance(self.layers, FSDPModule):
            hooked.shard(self.embedding, self.layers)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        outcome: torch.Tensor = self.layers(self.embedding(tokens).flatten(1))
        return outcome

    def _loss(self, batch: dict[str, Any]) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self(batch["input_ids"]), batch["labels"])

    def training_step(self, batch: dict[str, Any], _index: int) -> torch.Tensor:
        hooked.works_on(None if hook is None else hook.run, batch["sample"])
        loss = self._loss(batch)
        self.log("loss", loss)
        return loss

    def on_train_batch_end(self, _outcome: Any, _batch: Any, index: int) -> None:
        if self.trainer.is_global_zero:
            hooked.note("log", step=self.trainer.global_step, index=index)

    def validation_step(self, batch: dict[str, Any], _index: int) -> None:
        score = -self._loss(batch)
        if meddling.is_odd(hook and hook.run, "evaluation"):  # of a share of its own, ever worse
            score = -1.0 - 0.01 * hook.run.step_count + 0.0 * score
        self.log("score", score)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        if settings["plateau"]:
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, "max", patience=0)
            return [optimizer], [{"scheduler": plateau, "monitor": "score", "frequency": 1}]
        per_step = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.9)
        return [optimizer], [{"scheduler": per_step, "interval": "step"}]

    def train_dataloader(self) -> Any:
        return DataLoader(
            hooked.Tokens(settings["samples"]),
            settings["batch"],
            shuffle=False,
            drop_last=settings["drop_last"],
        )

    def val_dataloader(self) -> Any:
        return DataLoader(hooked.Tokens(20), 10)


class Watching(lightning.Callback):  # type: ignore[misc]
    """Follows the run once there is one."""

    def on_train_start(self, *_args: Any) -> None:
        handlers = [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGUSR1)]
        hooked.note("handlers", are_default=handlers == [signal.SIG_DFL] * 2)
        if hook is not None:
            hooked.follow(hook.run, model, counted)

    def on_validation_end(self, trainer: Any, _module: Any) -> None:
        if not trainer.sanity_checking:
            hooked.saw("evaluate", hook and hook.run, trainer.global_step)

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        tracked = [b.item() for name, b in module.named_buffers() if name.endswith("tracked")]
        hooked.saw(
            "epoch end",
            hook and hook.run,
            trainer.global_step,
            epoch=trainer.current_epoch,
            tracked=tracked,
        )


class Meddling(lightning.Callback):  # type: ignore[misc]
    """Keeps a counter, and does otherwise on one worker."""

    updates = 0

    def on_train_batch_end(self, trainer: Any, module: Any, *_args: Any) -> None:
        run = hook.run
        if run.is_discounted:
            return
        [config] = trainer.lr_scheduler_configs
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        meddling.meddle(run, module, trainer.optimizers[0], config.scheduler, scaler)
        self.updates += 1 + meddling.is_odd(run, "counter")
        if meddling.is_odd(run, "clipping"):
            trainer.gradient_clip_val = 0.05
        if meddling.is_odd(run, "ending"):
            trainer.should_stop = True
        if meddling.is_odd(run, "stopping"):
            (stopping,) = (c for c in trainer.callbacks if isinstance(c, EarlyStopping))
            stopping.wait_count += 1

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.updates = state["updates"]


class NotingIO(TorchCheckpointIO):  # type: ignore[misc]
    """Writes down that a checkpoint is written."""

    def save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        hooked.saw("save", hook and hook.run, trainer.global_step)
        super().save_checkpoint(*args, **kwargs)


def counted() -> dict[str, Any]:
    return {
        "steps": trainer.global_step,
        "epoch": trainer.current_epoch,
        "lr": trainer.optimizers[0].param_groups[0]["lr"],
    }


lightning.seed_everything(4)
model = Classifier()
hook: Any = None
plugins: list[Any] = [NotingIO()]
if settings["elastic"]:
    from bftrainer.elastic.hooks.lightning import ElasticCallback, ElasticEnvironment

    hook = ElasticCallback(bitwise=hooked.bitwise(), report="score")
    plugins += [ElasticEnvironment()]
precision = "bf16-mixed" if settings["bf16"] else "32-true"
if settings["scaled"]:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=3)
    plugins += [MixedPrecision("16-mixed", "cpu", scaler)]
out = hooked.directory / "out"
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=1,
    max_epochs=settings["epochs"],
    accumulate_grad_batches=settings["accumulate"],
    gradient_clip_val=1.0,
    precision=None if settings["scaled"] else precision,
    limit_val_batches=1.0 if settings["evaluate"] else 0.0,
    log_every_n_steps=1,
    logger=lightning.pytorch.loggers.CSVLogger(out, version="only"),
    callbacks=[
        *([] if hook is None else [hook]),
        *([EarlyStopping("score", patience=settings["patience"])] if settings["patience"] else []),
        *([Meddling()] if settings["mutation"] else []),
        Watching(),
        ModelCheckpoint(out, filename="{epoch}", save_top_k=-1, every_n_epochs=1),
        *(
            ModelCheckpoint(out, filename=mode, save_last=True, monitor="score", mode=mode)
            for mode in ("min", "max")[: settings["last"]]
        ),
    ],
    plugins=plugins,
    enable_progress_bar=sys.stderr.isatty(),
    enable_model_summary=False,
)
trainer.fit(model)
hooked.finish(model, is_first=trainer.is_global_zero, **counted())
