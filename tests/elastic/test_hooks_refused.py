"""What the hooks cannot serve is said before anything trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from bftrainer.elastic.errors import ElasticError
from bftrainer.elastic.hooks import driven

pytestmark = pytest.mark.filterwarnings("ignore")  # the libraries' own, of which they have many
DATA = TensorDataset(torch.randn(10, 2), torch.randn(10, 1))


def hf_trainer(directory: Path, **arguments: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    settings = {"output_dir": str(directory), "report_to": [], "use_cpu": True, **arguments}
    return transformers.Trainer(
        model=torch.nn.Linear(2, 1),
        args=transformers.TrainingArguments(**settings),
        train_dataset=DATA,
    )


def refused(action: Any, *words: str) -> None:
    with pytest.raises(ElasticError) as caught:
        action()
    assert caught.value.code == "BFT-1420"
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("attribute", "word"), [("is_deepspeed_enabled", "DeepSpeed"), ("is_fsdp_enabled", "FSDP")]
)
def test_a_model_in_pieces(tmp_path: Path, attribute: str, word: str) -> None:
    trainer = hf_trainer(tmp_path)
    from bftrainer.elastic.hooks.huggingface import ElasticCallback

    setattr(trainer, attribute, True)
    refused(lambda: ElasticCallback(trainer), word, "whole model")


def test_a_script_started_as_one_of_several(tmp_path: Path) -> None:
    trainer = hf_trainer(tmp_path)
    from bftrainer.elastic.hooks.huggingface import ElasticCallback

    place = trainer.args.distributed_state
    place.num_processes = 2
    place.distributed_type = "MULTI_CPU"
    try:
        refused(lambda: ElasticCallback(trainer), "accelerate", "Submit the script itself")
    finally:
        place._reset_state()


def test_a_batch_that_changes(tmp_path: Path) -> None:
    trainer = hf_trainer(tmp_path, auto_find_batch_size=True)
    from bftrainer.elastic.hooks.huggingface import ElasticCallback

    refused(lambda: ElasticCallback(trainer), "auto_find_batch_size")


def test_a_handler_of_its_own(tmp_path: Path) -> None:
    trainer = hf_trainer(tmp_path, enable_jit_checkpoint=True)
    from bftrainer.elastic.hooks.huggingface import ElasticCallback

    refused(lambda: ElasticCallback(trainer), "enable_jit_checkpoint", "Remove it")


def module_with(lightning: Any, **changes: Any) -> Any:
    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)
            self.automatic_optimization = changes.get("automatic", True)

        def training_step(self, batch: Any, _index: int) -> Any:
            x, y = batch
            return torch.nn.functional.mse_loss(self.layer(x), y)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

        def train_dataloader(self) -> Any:
            loader = DataLoader(DATA, 5)
            return {"a": loader, "b": loader} if changes.get("two") else loader

    return Module()


@pytest.mark.parametrize(
    ("arguments", "changes", "words"),
    [
        ({"strategy": "ddp"}, {}, ("DDPStrategy", "no strategy")),
        ({}, {"two": True}, ("several loaders",)),
        ({}, {"automatic": False}, ("automatic optimization",)),
        ({"overfit_batches": 1}, {}, ("overfit_batches",)),
    ],
)
def test_a_lightning_trainer(
    tmp_path: Path, arguments: dict[str, Any], changes: dict[str, Any], words: tuple[str, ...]
) -> None:
    lightning = pytest.importorskip("lightning")
    from bftrainer.elastic.hooks.lightning import ElasticCallback, ElasticEnvironment

    def fit() -> None:
        trainer = lightning.Trainer(
            accelerator="cpu",
            devices=1,
            max_epochs=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=tmp_path,
            callbacks=[ElasticCallback()],
            plugins=[ElasticEnvironment()],
            **arguments,
        )
        trainer.fit(module_with(lightning, **changes))

    refused(fit, *words)


def test_a_loader_becomes_a_plain_one() -> None:
    plain = driven.plain_loader(DataLoader(DATA, 3, shuffle=True, drop_last=True), passes=2)
    assert plain.batch_size == 6
    assert plain.drop_last
    assert type(plain.sampler) is torch.utils.data.RandomSampler
