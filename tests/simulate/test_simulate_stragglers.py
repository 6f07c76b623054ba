"""Slow nodes in a physical replay, small enough to be added up by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bftrainer.cli.main import main
from bftrainer.decide.policies.base import load_policy
from bftrainer.lab.simulator.physical import (
    Injection,
    PhysicalCosts,
    PhysicalModel,
    SlowNodes,
    constant,
    draw,
)
from bftrainer.lab.simulator.replay import Replay
from bftrainer.lab.simulator.session import Choices, settings_of
from bftrainer.lab.simulator.trainers import Tally
from bftrainer.model.errors import ExitCode
from tests.simulate.test_simulate import trace, trial

THREE = trace((0, 0, 1000), (1, 0, 1000), (2, 0, 1000))
COSTS = PhysicalCosts(warm_up=constant(10.0))


def _done(threshold: float, fraction: float = 0.5) -> float:
    """Samples of a trainer on two of three nodes, one of which is slow."""
    choices = Choices(
        costs=COSTS,
        slow=Injection(share=0.3, fraction=fraction),
        straggler_threshold=threshold,
    )
    slow = SlowNodes(fractions={"b": fraction}, threshold=threshold)
    outcome = Replay(
        THREE,
        [replace(trial("t"), n_max=2)],
        settings=settings_of(choices),
        policy=load_policy("milp"),
        books=PhysicalModel(Tally(), COSTS, seed=1, slow=slow),
    ).run()
    return outcome.trainers[0].done


def test_a_trainer_is_as_quick_as_its_slowest_node() -> None:
    assert _done(0.0) == pytest.approx(990 * 20 * 0.5)


def test_a_straggler_trains_until_its_replacement_is_warm() -> None:
    # Warm at 10; found after 5 reports, at 12.5; another node is warm at 22.5.
    assert _done(0.8) == pytest.approx(12.5 * 20 * 0.5 + 977.5 * 20)


def test_what_is_above_the_threshold_is_tolerated() -> None:
    assert _done(0.8, fraction=0.9) == pytest.approx(990 * 20 * 0.9)


def test_the_same_seed_draws_the_same_nodes() -> None:
    names = [f"n{i}" for i in range(40)]
    chosen = draw(names, Injection(share=0.1, fraction=0.5), 0.8, seed=3)
    assert len(chosen.fractions) == 4
    assert draw(names[::-1], Injection(share=0.1, fraction=0.5), 0.8, seed=3) == chosen
    assert draw(names, None, 0.8, seed=3).fractions == {}


@pytest.mark.parametrize(
    ("costs", "slow"),
    [("paper", "0.1:0.5"), ("physical", "0.1"), ("physical", "2:0.5"), ("physical", "0.1:1")],
)
def test_what_makes_no_sense_is_refused(
    costs: str, slow: str, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["simulate", "--costs", costs, "--slow", slow]
    assert main(argv) == ExitCode.USAGE
    assert "--slow" in capsys.readouterr().err
