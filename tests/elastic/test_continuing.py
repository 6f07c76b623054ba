"""A state goes on under other arguments: rates, options and schedules, against one trained so."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler as schedules

from bftrainer.elastic.checkpoints.origin_check import CONTINUE
from bftrainer.elastic.process import reports
from bftrainer.elastic.script.schedules import settings_of
from bftrainer.elastic.state.continuing import Continuing
from bftrainer.elastic.state.state import Counters, Snapshots, State
from bftrainer.ground.errors import ElasticError
from bftrainer.ground.protocol import WorkerConfig

STEPS = 5
Build = Callable[[torch.optim.Optimizer, int], Any]


def halves(horizon: int) -> Callable[[int], float]:
    return lambda step: 0.5 ** (step / horizon)


BUILDS: dict[str, Build] = {
    "step": lambda o, n: schedules.StepLR(o, n, 0.5),
    "milestones": lambda o, n: schedules.MultiStepLR(o, [2, n], 0.5),
    "exponential": lambda o, n: schedules.ExponentialLR(o, 1 - 1 / n),
    "cosine": lambda o, n: schedules.CosineAnnealingLR(o, 4 * n),
    "restarts": schedules.CosineAnnealingWarmRestarts,
    "polynomial": lambda o, n: schedules.PolynomialLR(o, 4 * n),
    "one cycle": lambda o, n: schedules.OneCycleLR(o, o.param_groups[0]["lr"], total_steps=9 * n),
    "two": lambda o, n: schedules.SequentialLR(
        o, [schedules.LinearLR(o, total_iters=n), schedules.ExponentialLR(o, 0.9)], [n]
    ),
    "lambda": lambda o, n: schedules.LambdaLR(o, halves(n)),
}


class Script:
    """A script as far as it has built its state, and where its checkpoints are."""

    def __init__(self, lr: float, build: Build | None, horizon: int = 3, *, way: str = "") -> None:
        torch.manual_seed(1)
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=lr)
        schedule = None if build is None else build(optimizer, horizon)
        self.state = State(model, optimizer, schedule, {reports.KEY: reports.Reports()})
        config = WorkerConfig(
            trainer_id="t1",
            worker_id="w1",
            node="n1",
            script=__file__,
            args=(f"--lr={lr}", f"--horizon={horizon}", str(build)),
            environment=((CONTINUE, way),),
            checkpoint_dir="/nowhere",
        )
        self.origin = Continuing(config, self.state)

    def steps(self, count: int = STEPS) -> list[float]:
        """Train; return the learning rate of each step."""
        rates, schedule = [], self.state.scheduler
        for _ in range(count):
            self.state.optimizer.zero_grad()
            self.state.model(torch.ones(4, 3)).sum().backward()
            rates.append(self.state.optimizer.param_groups[0]["lr"])
            self.state.optimizer.step()
            if isinstance(schedule, schedules.ReduceLROnPlateau):
                schedule.step(1.0)
            elif schedule is not None:
                schedule.step()
        return rates

    def go_on(self, other: Script) -> Script:
        """Take over the checkpoint that another run would write now, as a worker does."""
        counters = Counters(seed=1, step=STEPS)
        snapshot = Snapshots(other.state, other.origin.header()).collect(counters)
        header = json.loads(json.dumps(snapshot.header))
        rest = snapshot.tensors[len(other.state.model_tensors()) :]
        path = str(Path("/nowhere") / f"step-{STEPS:012d}-generation-1.bft")
        way = self.origin.continuation(header, path, rest)
        unloaded = frozenset() if way is None else way.unloaded
        self.state.decode_rest(header["structure"], rest, unloaded)
        if way is not None:
            way.apply()
        return self


def trained(lr: float, build: Build | None, horizon: int = 3) -> Script:
    script = Script(lr, build, horizon)
    script.steps()
    return script


@pytest.mark.parametrize("name", BUILDS)
def test_a_schedule_of_the_same_settings_goes_on_at_the_new_rate(name: str) -> None:
    child = Script(0.1, BUILDS[name], way="arguments").go_on(trained(0.4, BUILDS[name]))
    alone = trained(0.1, BUILDS[name])
    assert child.steps() == pytest.approx(alone.steps())
    assert child.state.optimizer.param_groups[0]["weight_decay"] == 0.1


@pytest.mark.parametrize("name", BUILDS)
def test_without_a_wish_another_horizon_needs_one(name: str) -> None:
    with pytest.raises(ElasticError, match="BFT-1451") as refused:
        Script(0.4, BUILDS[name], 7, way="arguments").go_on(trained(0.4, BUILDS[name]))
    assert "(it has" in refused.value.cause
    assert ("schedule-old" in refused.value.next_step) == (name != "lambda")


@pytest.mark.parametrize("name", BUILDS)
def test_the_script_s_schedule_is_as_if_it_had_always_been(name: str) -> None:
    child = Script(0.1, BUILDS[name], 7, way="schedule-new").go_on(trained(0.4, BUILDS[name]))
    assert child.steps() == pytest.approx(trained(0.1, BUILDS[name], 7).steps())


@pytest.mark.parametrize("name", [name for name in BUILDS if name != "lambda"])
def test_the_old_schedule_goes_on_at_the_new_rate(name: str) -> None:
    child = Script(0.1, BUILDS[name], 7, way="schedule-old").go_on(trained(0.4, BUILDS[name]))
    assert child.steps() == pytest.approx(trained(0.1, BUILDS[name]).steps())


@pytest.mark.parametrize(("old", "new"), [("cosine", "two"), ("two", "step"), ("step", "lambda")])
def test_another_class_is_the_script_s_or_none(old: str, new: str) -> None:
    with pytest.raises(ElasticError, match="BFT-1451"):
        Script(0.1, BUILDS[new], way="schedule-old").go_on(trained(0.4, BUILDS[old]))
    child = Script(0.1, BUILDS[new], way="schedule-new").go_on(trained(0.4, BUILDS[old]))
    assert child.steps() == pytest.approx(trained(0.1, BUILDS[new]).steps())


def test_a_schedule_comes_or_goes() -> None:
    gone = Script(0.1, None, way="schedule-new").go_on(trained(0.4, BUILDS["step"]))
    assert gone.steps() == [0.1] * STEPS
    come = Script(0.1, BUILDS["step"], way="schedule-new").go_on(trained(0.4, None))
    assert come.steps() == Script(0.1, BUILDS["step"]).steps()


def test_what_a_plateau_has_seen_stays() -> None:
    plateau: Build = lambda o, n: schedules.ReduceLROnPlateau(o, factor=0.1, patience=n)  # noqa: E731
    old = trained(0.4, plateau)
    old.steps(1)
    assert old.state.optimizer.param_groups[0]["lr"] == pytest.approx(0.04)
    child = Script(0.1, plateau, 9, way="schedule-new").go_on(old)
    assert child.state.scheduler.patience == 9
    assert child.state.scheduler.best == 1.0
    assert child.state.optimizer.param_groups[0]["lr"] == pytest.approx(0.01)
    assert Script(0.1, plateau, 9, way="schedule-old").go_on(old).state.scheduler.patience == 3


def test_a_rate_that_the_script_itself_lowered_is_scaled() -> None:
    old = trained(0.4, None)
    old.state.optimizer.param_groups[0]["lr"] *= 0.3
    assert Script(0.1, None, way="arguments").go_on(old).steps(1) == pytest.approx([0.03])


def test_moments_come_along_and_another_run_is_refused() -> None:
    old = trained(0.4, None)
    child = Script(0.1, None, way="arguments").go_on(old)
    theirs, ours = (
        [s["momentum_buffer"] for s in one.state.optimizer.state.values()] for one in (old, child)
    )
    assert all(torch.equal(a, b) for a, b in zip(theirs, ours, strict=True))
    with pytest.raises(ElasticError, match="BFT-1450"):
        Script(0.1, None).go_on(old)


def test_what_an_optimizer_without_a_rate_says_is_kept() -> None:
    parameters = [torch.nn.Parameter(torch.ones(2))]

    class Own(torch.optim.Optimizer):
        """An optimizer that finds its rate itself."""

    model = torch.nn.Module()
    model.register_parameter("p", parameters[0])
    state = State(model, Own(parameters, {"lr": None}), None, {})
    config = WorkerConfig(trainer_id="", worker_id="w", node="n", script="", checkpoint_dir="/x")
    assert Continuing(config, state).header()["base_rates"] == [0.0]


def test_settings_are_class_horizon_and_the_values_of_functions() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    assert settings_of(schedules.StepLR(optimizer, 3, 0.5)) == {
        "class": "StepLR",
        "gamma": "0.5",
        "step_size": "3",
    }
    odd = schedules.LambdaLR(optimizer, lambda step: 1.0 if step == 0 else 4.0 / (2 - step))
    assert settings_of(odd)["function 0"].startswith("1, 4, -, -1.33")  # where it cannot be asked
    assert settings_of(None) == {}
