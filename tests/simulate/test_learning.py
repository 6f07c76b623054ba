"""Replays in which decisions do not know the curves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bftrainer.batch.traces.fragments import Fragments
from bftrainer.batch.traces.generator import GeneratorParameters, generate
from bftrainer.decide.policies.milp import POLICY
from bftrainer.lab.simulator.physical import PhysicalCosts, constant
from bftrainer.lab.simulator.replay import Outcome, Replay
from bftrainer.lab.simulator.session import Choices, settings_of
from bftrainer.lab.simulator.trainers import Tally
from bftrainer.lab.workloads import NETWORKS, Submission
from bftrainer.model.decision import DecisionInput, Plan
from milp.problem import Curve, Objective
from tests.support.unknown_curves import LearningModel

COSTS = PhysicalCosts(
    claim=constant(1.0), warm_up=constant(2.0), pause_up=constant(0.3), pause_down=constant(0.1)
)
NAMES = ("alexnet", "densenet", "vgg-16")


@pytest.fixture(scope="module")
def trace() -> Fragments:
    return generate(GeneratorParameters(n_nodes=200, hours=1.0, seed=4))


def _submissions() -> list[Submission]:
    return [
        Submission(
            submit_s=0.0,
            name=name,
            n_min=1,
            n_max=64,
            samples=1e15,
            curve=NETWORKS[name].curve,
            rescale_up_s=0.3,
            rescale_down_s=0.1,
            network=name,
        )
        for name in NAMES
    ]


def _replay(
    trace: Fragments, *, is_learning: bool = True, claim: Curve | None = None
) -> tuple[Outcome, list[DecisionInput]]:
    seen: list[DecisionInput] = []

    def decided(given: DecisionInput, _plan: Plan) -> None:
        seen.append(given)

    choices = Choices(objective=Objective.THROUGHPUT, p_jmax=3, costs=COSTS)
    books = LearningModel(
        Tally(), COSTS, seed=3, claim=lambda _: claim, noise=0.05, is_learning=is_learning
    )
    settings = replace(settings_of(choices), explore_budget=0.02)
    outcome = Replay(
        trace, _submissions(), settings=settings, policy=POLICY, books=books, on_plan=decided
    ).run()
    return outcome, seen


def test_decisions_see_measurements_and_never_the_curves(trace: Fragments) -> None:
    outcome, seen = _replay(trace)
    assert all(r.spec.curve is None for given in seen for r in given.trainers)
    assert not any(r.costs.samples_per_s_by_size for r in seen[0].trainers)
    for trainer in outcome.trainers:
        told = trainer.record.costs.samples_per_s_by_size
        assert told
        for size, rate in told:
            assert rate == pytest.approx(trainer.rates[size], rel=0.15)


def test_what_is_learnt_is_worth_something(trace: Fragments) -> None:
    learnt, _ = _replay(trace)
    ignorant, seen = _replay(trace, is_learning=False)
    assert not any(r.costs.throughput for r in seen[-1].trainers)
    assert sum(t.done for t in learnt.trainers) > 1.05 * sum(t.done for t in ignorant.trainers)


def test_a_wrong_claim_is_seen_and_found_out(trace: Fragments) -> None:
    claim = Curve(sizes=(1, 64), samples_per_s=(1000.0, 64_000.0))
    outcome, seen = _replay(trace, claim=claim)
    assert all(r.spec.curve == claim for given in seen for r in given.trainers)
    believed, _ = _replay(trace, claim=claim, is_learning=False)
    assert sum(t.done for t in outcome.trainers) > sum(t.done for t in believed.trainers)


def test_the_same_replay_twice(trace: Fragments) -> None:
    (one, first), (other, second) = _replay(trace), _replay(trace)
    assert [t.done for t in one.trainers] == [t.done for t in other.trainers]
    assert first[-1] == second[-1]
