"""The classic policies decide for the daemon: types of nodes, losses, pilots, a queue."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bftrainer.lab.simulator.physical import PhysicalCosts, constant
from bftrainer.lab.simulator.session import Choices, play
from tests.simulate.test_simulate import trace, trial
from tests.unit.decide.test_classics import CLASSICS

COSTS = PhysicalCosts(claim=constant(5.0), warm_up=constant(10.0), pause_up=constant(1.0))


@pytest.mark.parametrize("name", CLASSICS)
@pytest.mark.parametrize("costs", [None, COSTS], ids=["paper", "physical"])
def test_everybody_ends(name: str, costs: PhysicalCosts | None) -> None:
    """Three nodes of two types that come and go, two of five trainers at a time."""
    spans = [
        (node, start, start + 400.0 + 50.0 * node)
        for node in (0, 1, 2)
        for start in range(100 * node, 8000, 500)
    ]
    typed = replace(trace(*spans, end_s=9000.0), node_types=("gpu:a100:4", "cpu", "cpu"))
    trials = [trial(f"t{i}", 4000.0 + 1000.0 * i, submit_s=100.0 * i) for i in range(4)]
    trials.append(trial("gpu", 3000.0, submit_s=500.0, gres="gpu:a100:1"))
    choices = Choices(policy=name, costs=costs, p_jmax=2)
    outcome, found = play(typed, trials, choices)
    assert [t.finished_s is not None for t in outcome.trainers] == [True] * 5
    assert found.completed == 5
