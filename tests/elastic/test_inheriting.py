"""A trial that goes on from another one's state: its settings stay, all else comes along."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler as schedules

from bftrainer.elastic.process import reports
from bftrainer.elastic.process.reports import is_inherited, trial_mark
from bftrainer.elastic.state.continuing import OwnOptions
from bftrainer.elastic.state.state import Counters, State
from tests.elastic import journal
from tests.elastic.controller import SCRIPTS, Controller, TemplateProcess

TRAIN = SCRIPTS / "train_ids.py"
STEPS = 5


def train(c: Controller, trial: str, *, lr: float, **length: int) -> tuple[int, journal.Entry]:
    """Train as a trial; return the process and its result."""
    settings = {"optimizer": "sgd", "lr": lr, "per_epoch": True, "samples": 60}
    study = (("BFT_STUDY", "digits-1"), ("BFT_TRIAL", trial)) if trial else ()
    environment = (("BFT_TEST_DIR", str(c.directory)), ("OMP_NUM_THREADS", "1"), *study)
    ids = c.begin(TRAIN, [json.dumps(settings)], environment=environment, **length)
    c.finished()
    return c.workers[ids[0]].pid, journal.result(c.directory)


@pytest.mark.parametrize(
    ("parent", "child", "own_lr"),
    [("0", "1", True), ("", "1", True), ("0", "0", False)],
    ids=["another", "no-trial", "itself"],
)
def test_learning_rates_are_the_script_s_where_another_trial_s_state_goes_on(
    tmp_path: Path, template: TemplateProcess, parent: str, child: str, own_lr: bool
) -> None:
    with Controller(tmp_path, template) as c:
        before, first = train(c, parent, lr=0.05, epochs=1)
        after, then = train(c, child, lr=0.02, epochs=3)
    assert then["lr"] == pytest.approx((0.02 if own_lr else 0.05) * 0.97**3)
    assert (then["samples"], then["updates"]) == (180, 3 * first["updates"])
    (left,) = (e for e in journal.entries(tmp_path, "end") if e["pid"] == before)
    (found,) = (e for e in journal.entries(tmp_path, "entered") if e["pid"] == after)
    assert (found["step"], found["hash"]) == (left["step"], left["hash"])
    (ended,) = (e for e in journal.entries(tmp_path, "end") if e["pid"] == after)
    assert ended["moments"] == left["moments"] > 0


def test_the_same_where_the_other_trial_s_budget_ended_within_an_epoch(
    tmp_path: Path, template: TemplateProcess
) -> None:
    with Controller(tmp_path, template) as c:
        train(c, "0", lr=0.05, samples=48)
        _, then = train(c, "1", lr=0.02, samples=180)
    assert then["lr"] == pytest.approx(0.02 * 0.97**3)
    assert {n for ids in journal.committed_ids(tmp_path).values() for n in ids.values()} == {1}


Build = Callable[[torch.optim.Optimizer], Any]
BUILDS: dict[str, Build] = {
    "none": lambda _optimizer: None,
    "step": lambda o: schedules.StepLR(o, 2, 0.5),
    "lambda": lambda o: schedules.LambdaLR(o, lambda step: 1.0 / (1 + step)),
    "cosine": lambda o: schedules.CosineAnnealingLR(o, 20),
    "one cycle": lambda o: schedules.OneCycleLR(o, 10 * o.param_groups[0]["lr"], total_steps=20),
    "two": lambda o: schedules.SequentialLR(
        o, [schedules.LinearLR(o, total_iters=3), schedules.ExponentialLR(o, 0.9)], [3]
    ),
}


def state(lr: float, build: Build, *, weight_decay: float) -> State:
    torch.manual_seed(1)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=weight_decay)
    return State(model, optimizer, build(optimizer), {reports.KEY: reports.Reports()})


def steps(of: State, count: int = STEPS) -> list[float]:
    """Train; return the learning rate of each step."""
    rates = []
    for _ in range(count):
        of.optimizer.zero_grad()
        of.model(torch.ones(4, 3)).sum().backward()
        rates.append(of.optimizer.param_groups[0]["lr"])
        of.optimizer.step()
        if of.scheduler is not None:
            of.scheduler.step()
    return rates


@pytest.mark.parametrize("name", BUILDS)
def test_a_schedule_goes_on_where_it_was_at_the_script_s_own_rate(name: str) -> None:
    build = BUILDS[name]
    parent, child = (state(lr, build, weight_decay=lr) for lr in (0.4, 0.1))
    alone = state(0.1, build, weight_decay=0.1)
    steps(parent)
    steps(alone)
    own = OwnOptions(child, child.options())
    child.decode_rest(*parent.encode_rest(Counters(seed=1, step=STEPS)))
    own.put_back()
    assert steps(child) == pytest.approx(steps(alone))
    assert child.optimizer.param_groups[0]["weight_decay"] == 0.1


def test_the_moments_come_along() -> None:
    parent, child = (state(lr, BUILDS["none"], weight_decay=0.0) for lr in (0.4, 0.1))
    steps(parent)
    own = OwnOptions(child, child.options())
    child.decode_rest(*parent.encode_rest(Counters(seed=1)))
    own.put_back()
    theirs, ours = (
        [s["momentum_buffer"] for s in one.optimizer.state.values()] for one in (parent, child)
    )
    assert all(torch.equal(a, b) for a, b in zip(theirs, ours, strict=True))


def test_a_checkpoint_is_a_trial_s_own_by_study_and_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BFT_STUDY", "digits-1")
    monkeypatch.setenv("BFT_TRIAL", "3")
    mark = trial_mark()
    assert not is_inherited({"layout": 1, **mark})
    assert is_inherited({"layout": 1})
    monkeypatch.setenv("BFT_TRIAL", "4")
    assert is_inherited(mark)
    monkeypatch.delenv("BFT_STUDY")
    assert not is_inherited(mark)
    assert not trial_mark()
