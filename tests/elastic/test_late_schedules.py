"""Schedulers that are built in the loops: an error at the update that follows."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler as schedules
from torch.optim.swa_utils import SWALR
from torch.utils.data import DataLoader, TensorDataset

from bftrainer.elastic import ElasticError, Run
from bftrainer.elastic.script.models import end_watch

Optimizer = torch.optim.Optimizer
Build = Callable[[Optimizer], Any]
UPDATES = 3  # of an epoch


@pytest.fixture(autouse=True)
def _ended() -> Iterator[None]:
    yield
    end_watch()


def train(
    build: Build, *, epoch: int, registered: Build | None = None, made: list[int] | None = None
) -> None:
    """Train three epochs, with what ``build`` returns from one on; note each update in ``made``."""
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = None if registered is None else registered(optimizer)
    data = TensorDataset(torch.randn(5 * UPDATES, 4))
    loader = DataLoader(data, batch_size=5)
    run = Run(model, optimizer, loader, scheduler=scheduler, epochs=3)
    kept = []
    for now in run.epochs():
        if now == epoch:
            kept.append(build(optimizer))
        for (x,) in run.batches():
            optimizer.zero_grad()
            model(x).sum().backward()
            run.step()
            if made is not None:
                made.append(run.step_count)


def chained(optimizer: Optimizer) -> Any:
    return schedules.ChainedScheduler([schedules.ExponentialLR(optimizer, 0.9)])


def sequential(optimizer: Optimizer) -> Any:
    parts = [schedules.ConstantLR(optimizer), schedules.ExponentialLR(optimizer, 0.9)]
    return schedules.SequentialLR(optimizer, parts, milestones=[2])


@pytest.mark.parametrize("epoch", [0, 2])
@pytest.mark.parametrize(
    ("name", "build"),
    [
        ("CosineAnnealingLR", lambda o: schedules.CosineAnnealingLR(o, T_max=10)),
        ("LambdaLR", lambda o: schedules.LambdaLR(o, lambda n: 0.9**n)),
        ("OneCycleLR", lambda o: schedules.OneCycleLR(o, max_lr=1.0, total_steps=9)),
        ("CyclicLR", lambda o: schedules.CyclicLR(o, 0.1, 0.2)),
        ("SWALR", lambda o: SWALR(o, swa_lr=0.01)),
        ("ReduceLROnPlateau", schedules.ReduceLROnPlateau),
        ("ChainedScheduler", chained),
        ("SequentialLR", sequential),
    ],
)
def test_it_is_named_before_the_update_that_would_take_its_rate(
    name: str, build: Build, epoch: int
) -> None:
    made: list[int] = []
    with pytest.raises(ElasticError, match=f"has built a {name} over") as refused:
        train(build, epoch=epoch, made=made)
    assert refused.value.code == "BFT-1448"
    assert "Run(..., scheduler=scheduler)" in refused.value.next_step
    assert len(made) == epoch * UPDATES


def nothing(_optimizer: Optimizer) -> None:
    """Build none."""


def for_a_plot(optimizer: Optimizer) -> Any:
    """Build one over a copy, to show what the rates will be."""
    other = copy.deepcopy(optimizer)
    return schedules.CosineAnnealingLR(other, T_max=10)


def thrown_away(optimizer: Optimizer) -> None:
    """Build one that nobody keeps: the next one does not go on from it either."""
    schedules.ConstantLR(optimizer, factor=1.0)


@pytest.mark.parametrize("build", [nothing, for_a_plot, thrown_away])
def test_what_does_not_change_the_runs_rates_later_is_none(build: Build) -> None:
    made: list[int] = []
    train(build, epoch=1, registered=lambda o: schedules.StepLR(o, 3), made=made)
    assert len(made) == 3 * UPDATES


def test_after_the_loops_schedulers_are_built_as_ever() -> None:
    kinds = (schedules.LRScheduler, schedules.ReduceLROnPlateau, schedules.SequentialLR)
    before = [kind.__init__ for kind in kinds]
    train(nothing, epoch=0)
    end_watch()  # as the end of a script does
    assert [kind.__init__ for kind in kinds] == before
