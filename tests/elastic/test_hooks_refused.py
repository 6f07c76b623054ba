"""What the hooks cannot serve is said before anything trains."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

from bftrainer import elastic
from bftrainer.elastic import worker
from bftrainer.elastic.hooks import driven
from bftrainer.ground.errors import ElasticError
from bftrainer.ground.protocol import Failed

pytestmark = pytest.mark.filterwarnings("ignore")  # the libraries' own, of which they have many
QUIET = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}
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
    ("attribute", "words"),
    [
        ("is_deepspeed_enabled", ("DeepSpeed", "whole model")),
        ("is_fsdp_enabled", ("FSDP", "node_mesh()")),
        ("is_distributed_loading_by_transformers", ("transformers", "node_mesh()")),
    ],
)
def test_a_model_in_pieces(tmp_path: Path, attribute: str, words: tuple[str, ...]) -> None:
    trainer = hf_trainer(tmp_path)
    from bftrainer.elastic.hooks.huggingface import ElasticCallback

    setattr(trainer, attribute, True)
    refused(lambda: ElasticCallback(trainer), *words)


def told_in_a_worker(action: Any) -> Failed:
    """Return what is reported of a script that does this."""
    with pytest.raises(Exception, match=r".") as caught:
        action()
    return worker._failure_of(caught.value)


def assert_told(failed: Failed, *words: str) -> None:
    assert failed.code == "BFT-1420"
    assert "node_mesh()" in failed.next_step
    for word in words:
        assert word in failed.cause + failed.next_step


@pytest.mark.usefixtures("accelerate")
def test_transformers_with_fsdp(tmp_path: Path) -> None:
    failed = told_in_a_worker(lambda: hf_trainer(tmp_path, fsdp=True, fsdp_config={"version": 2}))
    assert_told(failed, "FSDP", "Remove fsdp")


@pytest.fixture
def accelerate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    library: Any = pytest.importorskip("accelerate")
    state = library.state.AcceleratorState
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "false")  # so that it is put back
    state._reset_state(reset_partial_state=True)
    yield library
    state._reset_state(reset_partial_state=True)


@pytest.fixture(autouse=True)
def _no_group() -> Iterator[None]:
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def test_accelerate_that_would_not_shard_says_nothing_but_we_do(accelerate: Any) -> None:
    plugin = accelerate.FullyShardedDataParallelPlugin(fsdp_version=2)
    accelerate.Accelerator(cpu=True, fsdp_plugin=plugin)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(DATA, 5)
    refused(lambda: elastic.Run(model, optimizer, loader, epochs=1), "Accelerate", "FSDP plugin")


def test_accelerate_with_a_mesh_of_its_own(accelerate: Any) -> None:
    def asked() -> None:
        accelerate.Accelerator(
            cpu=True, parallelism_config=accelerate.ParallelismConfig(dp_shard_size=2)
        )

    assert_told(told_in_a_worker(asked), "ParallelismConfig")


@pytest.mark.parametrize("strategy", ["FSDPStrategy", "ModelParallelStrategy"])
def test_lightning_that_shards(tmp_path: Path, strategy: str) -> None:
    lightning = pytest.importorskip("lightning")
    from bftrainer.elastic.hooks.lightning import ElasticCallback, ElasticEnvironment

    def fit() -> None:
        trainer = lightning.Trainer(
            strategy=getattr(lightning.pytorch.strategies, strategy)(),
            callbacks=[ElasticCallback()],
            plugins=[ElasticEnvironment()],
            devices=1,
            max_epochs=1,
            **QUIET,
            default_root_dir=tmp_path,
        )
        trainer.fit(module_with(lightning))

    assert_told(told_in_a_worker(fit), strategy, "Remove strategy")


def test_a_copy_of_a_sharded_model() -> None:
    problem = AssertionError("FSDP does not support deepcopy. Please use state dict.")
    failed = worker._failure_of(problem)
    assert failed.code == "BFT-1401"
    assert "before fully_shard" in failed.next_step


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
            **QUIET,
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
