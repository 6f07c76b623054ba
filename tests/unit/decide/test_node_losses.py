"""How often trainers lose nodes is learnt, and decisions count what it costs."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import replace

import pytest

from bftrainer.decide import losses
from bftrainer.decide.policies.base import Traits
from bftrainer.model.decision import (
    DecisionInput,
    Joining,
    Losses,
    Memory,
    PilotView,
    Settings,
    Slept,
)
from bftrainer.model.trainer import MeasuredCosts
from milp.problem import Curve, ProblemTrainer
from milp.worth import curve_at
from tests.support.snapshots import T0, Fold, held, idle_nodes, pilot, record, snapshot

EXPECTS = Settings(expects_losses=True, reserve_nodes_per_type=0)
TRAINING = {"n1": "t1", "n2": "t1", "n3": "t1", "n4": "t2"}


def _given(
    after_s: float,
    training: Mapping[str, str],
    pilots: tuple[PilotView, ...],
    slept: Slept | None = None,
) -> DecisionInput:
    return DecisionInput(
        now_s=T0 + after_s,
        snapshot=snapshot(idle_nodes(4)),
        is_new_snapshot=True,
        pilots=pilots,
        trainers=(),
        settings=EXPECTS,
        memory=Memory(),
        training=training,
        slept=slept or Slept(),
    )


def _begun() -> Memory:
    return losses.observe(Memory(), _given(0.0, TRAINING, held(*TRAINING)))


def test_node_seconds_between_losses_are_averaged_and_nodes_that_go_together_are_one_loss() -> None:
    left = {"n1": "t1", "n4": "t2"}
    memory = losses.observe(_begun(), _given(100.0, left, held("n1", "n4")))
    assert (memory.losses.life_node_s, memory.losses.count) == (400.0, 1)  # four nodes, 100 s
    leaves = replace(pilot("n4"), is_leaving=True)
    memory = losses.observe(memory, _given(150.0, {"n1": "t1"}, (*held("n1"), leaves)))
    assert (memory.losses.life_node_s, memory.losses.count) == (250.0, 2)  # 400 and 2 x 50
    memory = losses.observe(memory, _given(190.0, {}, ()))
    assert (memory.losses.life_node_s, memory.losses.count) == (180.0, 3)  # and 40


def test_a_node_that_a_decision_takes_is_no_loss_and_what_it_trained_counts() -> None:
    memory = losses.observe(_begun(), _given(10.0, {"n1": "t1", "n4": "t2"}, held(*TRAINING)))
    assert (memory.losses.count, memory.losses.run_node_s) == (0, 40.0)
    memory = losses.observe(memory, _given(20.0, {"n1": "t1", "n4": "t1"}, held("n1", "n4")))
    assert (memory.losses.count, memory.losses.run_node_s) == (0, 60.0)
    memory = losses.observe(memory, _given(30.0, {"n4": "t1"}, held("n4")))
    assert (memory.losses.count, memory.losses.life_node_s) == (1, 80.0)


def test_what_went_while_the_daemon_did_not_run_teaches_nothing() -> None:
    slept = Slept(from_s=T0 + 5.0, until_s=T0 + 500.0)
    memory = losses.observe(_begun(), _given(500.0, {"n1": "t1"}, held("n1"), slept))
    assert (memory.losses.count, memory.losses.run_node_s) == (0, 0.0)
    assert memory.losses.training == {"n1": "t1"}


def test_nothing_is_kept_where_losses_are_not_expected_or_nothing_has_changed() -> None:
    given = _given(0.0, TRAINING, held(*TRAINING))
    plain = replace(given, settings=Settings())
    assert losses.observe(Memory(), plain).losses == Losses()
    memory = _begun()
    assert losses.observe(memory, replace(given, now_s=T0 + 60.0)) is memory


def test_a_few_are_not_believed_and_a_long_time_without_any_is() -> None:
    learnt = Losses(life_node_s=123.4, count=losses.ENOUGH)
    assert losses.life_s(replace(learnt, count=losses.ENOUGH - 1), T0) == math.inf
    assert losses.life_s(learnt, T0) == 120.0
    trains = replace(learnt, training={"n1": "t1", "n2": "t1"}, at_s=T0, run_node_s=100.0)
    assert losses.life_s(trains, T0 + 10.0) == 120.0
    assert losses.life_s(trains, T0 + 1000.0) == 2100.0


def _share_played(n_nodes: int, life_s: float, pause_s: float) -> float:
    """Return which share of the time is trained; each node is replaced as soon as it goes."""
    chance = random.Random(f"{n_nodes} {life_s}")  # noqa: S311 - lives, reproducible
    now_s = trained_s = 0.0
    for _ in range(40_000):
        span_s = chance.expovariate(n_nodes / life_s)  # until the next loss; it paused at the last
        now_s, trained_s = now_s + span_s, trained_s + max(0.0, span_s - pause_s)
    return trained_s / now_s


def _left(n_min: int, n_max: int, life_s: float, pause_s: float) -> ProblemTrainer:
    linear = Curve(sizes=(1, n_max), samples_per_s=(100.0, 100.0 * n_max))
    trainer = ProblemTrainer(
        trainer_id="t1",
        n_min=n_min,
        n_max=n_max,
        curve=linear,
        rescale_up_s=0.0,
        rescale_down_s=0.0,
    )
    costs = MeasuredCosts(rescale_up_s=pause_s, rescale_down_s=0.1)
    its = record("t1", n_min=n_min, n_max=n_max, costs=costs)
    return losses.expected(trainer, its, EXPECTS, life_node_s=life_s, n_nodes=n_max)


@pytest.mark.parametrize(("n_nodes", "life_s", "pause_s"), [(2, 90.0, 30.0), (8, 480.0, 60.0)])
def test_what_is_left_with_pauses_is_what_a_clock_shows(
    n_nodes: int, life_s: float, pause_s: float
) -> None:
    left = curve_at(_left(1, n_nodes, life_s, pause_s).curve, n_nodes) / (100.0 * n_nodes)
    assert left == pytest.approx(_share_played(n_nodes, life_s, pause_s), rel=0.02)


def test_what_is_left_with_restarts_is_what_follows_from_the_mean_life() -> None:
    """Of 90 s, which one node lasts, and the 7.5 s that it makes up for: 90 / 97.5."""
    trainer = _left(1, 4, 90.0, 30.0)
    assert curve_at(trainer.curve, 1) == pytest.approx(100.0 * 90.0 / 97.5)
    # All four or none: a loss of any of them ends it, one in 22.5 s; 22.5 / 30.
    trainer = _left(4, 4, 90.0, 30.0)
    assert curve_at(trainer.curve, 4) == pytest.approx(400.0 * 22.5 / 30.0)
    # The unit of relative objectives: one node loses as much as that of any other trainer.
    assert curve_at(trainer.curve, 1) == pytest.approx(100.0 * 90.0 / 97.5)


def test_a_curve_stays_itself_where_losses_hardly_matter() -> None:
    trainer = _left(1, 8, 10_000.0, 0.5)
    assert trainer.curve.sizes == (1, 8)


@pytest.mark.parametrize("expects", [True, False])
def test_a_trainer_does_not_grow_into_pauses_that_cost_more_than_the_node_makes(
    *, expects: bool
) -> None:
    """A node lasts 120 s, a pause 60 s: two nodes make 200 / e = 74, one 100 * 120 / 127.5 = 94."""
    for settings, traits in (
        (EXPECTS, Traits(expects_losses=expects)),
        (replace(EXPECTS, expects_losses=expects), Traits(expects_losses=True)),
    ):
        fold = Fold(settings=settings)
        fold.policy.traits = traits
        fold.memory = Memory(
            assignment={"n1": "t1"},
            idle_seen={"n2": 3},
            joining=Joining(count=9),
            losses=Losses(training={"n1": "t1"}, at_s=T0, life_node_s=120.0, count=losses.ENOUGH),
        )
        costs = MeasuredCosts(
            rescale_up_s=60.0, rescale_down_s=60.0, samples_per_s_by_size=((1, 100.0), (2, 200.0))
        )
        trainers = [record("t1", n_max=2, costs=costs)]
        plan = fold.decide(snapshot(idle_nodes(2)), held("n1"), trainers, training={"n1": "t1"})
        assert len(plan.assignment) == (1 if expects else 2)


def test_the_unit_of_relative_objectives_is_the_same_for_small_and_large_trainers() -> None:
    """Of one node, which begins again at each loss; at eight nodes both go on with fewer."""
    small, large = (_left(n_min, 8, life_s=20.0, pause_s=1.0) for n_min in (1, 2))
    relative = [curve_at(one.curve, 8) / curve_at(one.curve, 1) for one in (small, large)]
    assert relative[0] == pytest.approx(relative[1], rel=1e-12)
