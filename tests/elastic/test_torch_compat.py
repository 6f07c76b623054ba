"""What is used of torch and frameworks beside what they promise is there."""

from __future__ import annotations

import importlib
from functools import reduce
from typing import Any

import pytest
import torch
from torch import nn

from bftrainer.elastic.script import accelerate_compat, torch_compat
from bftrainer.ground import versions


def looked_up(name: str) -> Any:
    """Return what a dotted name stands for."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            module = importlib.import_module(".".join(parts[:end]))
        except ImportError:
            continue
        return reduce(getattr, parts[end:], module)
    raise ImportError(name)


@pytest.mark.parametrize("name", torch_compat.NAMES)
def test_this_torch_has_what_is_used(name: str) -> None:
    assert looked_up(name) is not None


@pytest.mark.parametrize("name", torch_compat.NAMES_OF_SHARDS)
def test_this_torch_has_what_sharded_models_use(name: str) -> None:
    if versions.release_of(torch.__version__) >= versions.LEAST_TORCH_OF_SHARDS:  # type: ignore[operator]
        assert looked_up(name) is not None


@pytest.mark.parametrize(
    ("package", "names"),
    [("accelerate", accelerate_compat.NAMES), ("transformers", ()), ("lightning.pytorch", ())],
)
@pytest.mark.long  # imports them
def test_the_frameworks_have_what_is_used(package: str, names: tuple[str, ...]) -> None:
    pytest.importorskip(package)
    if package != "accelerate":
        hook = {"transformers": "huggingface", "lightning.pytorch": "lightning"}[package]
        names = importlib.import_module(f"bftrainer.elastic.hooks.{hook}_compat").NAMES
    for name in names:
        assert looked_up(f"{package}.{name}") is not None


def test_the_graph_of_a_loss_has_what_is_read() -> None:
    model = nn.Linear(3, 2)
    out = model(torch.randn(4, 3))
    mean, loss = out.mean(), nn.functional.cross_entropy(out, torch.zeros(4, dtype=torch.long))
    assert list(torch_compat.saved_of(mean.grad_fn, "self_sym_sizes")) == [4, 2]
    assert torch_compat.saved_of(loss.grad_fn, "reduction") == 1
    assert torch_compat.saved_of(loss.grad_fn, "self").shape == (4, 2)
    assert float(torch_compat.saved_of(loss.grad_fn, "total_weight")) == 4.0
    assert torch_compat.saved_of((out * 2.0).grad_fn, "other") == 2.0
    assert torch_compat.metadata_of(loss.grad_fn)[0].dtype == torch.float32
    assert torch_compat.all_saved(loss.grad_fn)


def test_scalers_schedules_and_modules_have_what_is_read() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    assert torch_compat.scale_of(scaler) is None
    assert torch_compat.first_scale(scaler) == (8.0, 0)
    loss = scaler.scale(torch.ones(1))
    assert float(loss) == float(torch_compat.scale_of(scaler)) == 8.0  # type: ignore[arg-type]
    assert int(torch_compat.growth_of(scaler)) == 0
    assert torch_compat.scaler_state(scaler, 8.0, 0) == scaler.state_dict()
    model = nn.BatchNorm1d(2)
    assert isinstance(model, torch_compat.BATCH_NORM)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    chain = torch.optim.lr_scheduler.SequentialLR(optimizer, [schedule, schedule], [1])
    assert len(torch_compat.schedules_within(chain)) == 2
    assert {"_last_lr", "_step_count"} <= schedule.state_dict().keys()
    assert set(torch_compat.parameters_of(model)) == {"weight", "bias"}
    assert "running_mean" in torch_compat.buffers_of(model)
    assert torch_compat.modules_of(nn.Sequential(model)) == {"0": model}
    torch_compat.raise_for_lost_loader()


def test_a_group_without_abort_is_only_let_go() -> None:
    """Gloo of torch before 2.7: it ends with the last reference to it."""
    torch_compat.abort(object())
