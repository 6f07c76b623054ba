"""What claims cost as observed, and the shortest gap worth one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bftrainer.canonical import decode, encode
from bftrainer.decide.claims import (
    ENOUGH,
    FACTOR,
    LONGEST_S,
    SHORTEST_S,
    ClaimCosts,
    Mean,
    look,
    shortest_gap_s,
)
from bftrainer.decide.types import DecisionInput, PilotView, Plan, Settings
from bftrainer.poll.snapshot import NodeState
from bftrainer.trainer import MeasuredCosts, TrainerProgress, TrainerRecord
from tests.support.snapshots import (
    T0,
    ExactPolicy,
    Fold,
    claimed,
    idle_nodes,
    pending,
    pilot,
    record,
    snapshot,
    with_state,
)

WANTED = {"n1": "t1"}
BEGUN = ClaimCosts(since_s=T0)


def _step(
    costs: ClaimCosts,
    at_s: float,
    *pilots: PilotView,
    assignment: dict[str, str] = WANTED,
    training: dict[str, str] | None = None,
) -> ClaimCosts:
    return look(costs, pilots, assignment, training or {}, T0 + at_s)


def _running(size: int, up_s: float, down_s: float) -> TrainerRecord:
    costs = MeasuredCosts(rescale_up_s=up_s, rescale_down_s=down_s)
    return replace(record(costs=costs), progress=TrainerProgress(size=size))


class TestWhatClaimsCost:
    def test_from_the_request_to_the_agent_and_from_there_to_the_generation(self) -> None:
        costs = _step(BEGUN, 2.0, pilot("n1", is_held=False))
        costs = _step(costs, 4.5, pilot("n1"))
        assert costs.claim == Mean(value_s=4.5, count=1)
        costs = _step(costs, 6.0, pilot("n1"))
        costs = _step(costs, 7.5, pilot("n1"), training=WANTED)
        assert costs.warm_up == Mean(value_s=3.0, count=1)
        assert dict(costs.warming) == {}
        assert _step(costs, 9.0, pilot("n1"), training=WANTED) is costs

    def test_an_agent_may_come_before_any_decision_has_seen_its_pilot(self) -> None:
        costs = _step(BEGUN, 1.5, pilot("n1"))
        assert costs.claim == Mean(value_s=1.5, count=1)
        assert _step(costs, 2.0, pilot("n1")).claim == costs.claim

    def test_pilots_of_an_earlier_daemon_teach_nothing(self) -> None:
        first = _step(ClaimCosts(), 4.0, pilot("n1"), training=WANTED)
        late = _step(first, 5.0, pilot("n1"), pilot("n2", requested_s=T0 + 3.9), training=WANTED)
        assert (late.claim.count, late.warm_up.count) == (0, 0)
        own = _step(late, 6.0, pilot("n3", requested_s=T0 + 4.0))
        assert own.claim == Mean(value_s=2.0, count=1)

    @pytest.mark.parametrize("assignment", [{}, {"n1": "t2"}], ids=["nobody's", "another's"])
    def test_a_trainer_that_changes_on_the_way_is_no_warm_up(
        self, assignment: dict[str, str]
    ) -> None:
        costs = _step(BEGUN, 4.0, pilot("n1"))
        costs = _step(costs, 5.0, pilot("n1"), assignment=assignment)
        costs = _step(costs, 6.0, pilot("n1"), training=WANTED)
        assert (costs.claim.count, costs.warm_up.count) == (1, 0)

    def test_a_pilot_that_leaves_is_forgotten(self) -> None:
        assert _step(BEGUN, 1.0, pilot("n1", is_leaving=True)) is BEGUN
        costs = _step(BEGUN, 1.0, pilot("n1"))
        costs = _step(costs, 2.0)
        assert (dict(costs.warming), costs.held, costs.claim.count) == ({}, frozenset(), 1)

    def test_the_mean_follows(self) -> None:
        mean = Mean()
        for _ in range(30):
            mean = mean.with_one(30.0)
        for _ in range(60):
            mean = mean.with_one(3.0)
        assert 3.0 < mean.value_s < 4.5
        costs = ClaimCosts(claim=mean, since_s=T0, held=frozenset({"p1"}))
        assert decode(encode(costs), ClaimCosts) == costs


class TestBreakEven:
    MEASURED = ClaimCosts(
        claim=Mean(value_s=20.0, count=ENOUGH), warm_up=Mean(value_s=5.0, count=ENOUGH)
    )

    def _shortest_s(self, costs: ClaimCosts, *trainers: TrainerRecord) -> float:
        return shortest_gap_s(120.0, costs, trainers, 0.5, 0.2)

    def test_it_is_what_is_usual_until_enough_was_measured(self) -> None:
        few = replace(self.MEASURED, warm_up=Mean(value_s=5.0, count=ENOUGH - 1))
        assert self._shortest_s(few, _running(8, 9.0, 9.0)) == 120.0

    def test_it_is_the_factor_times_claim_warm_up_and_pauses_of_the_mean_trainer(self) -> None:
        trainers = [_running(8, 1.0, 0.5), _running(4, 0.5, 0.5), record("t3")]
        assert self._shortest_s(self.MEASURED, *trainers) == FACTOR * (20 + 5 + (12 + 4) / 2)

    def test_guesses_stand_for_what_was_not_measured(self) -> None:
        trainer = replace(record(), progress=TrainerProgress(size=10))
        assert self._shortest_s(self.MEASURED, trainer) == FACTOR * (20 + 5 + 7)

    def test_it_stays_between_a_minute_and_an_hour(self) -> None:
        cheap = ClaimCosts(claim=Mean(value_s=1, count=9), warm_up=Mean(value_s=1, count=9))
        assert self._shortest_s(cheap) == SHORTEST_S
        assert self._shortest_s(self.MEASURED, _running(900, 60.0, 60.0)) == LONGEST_S

    @pytest.mark.parametrize("left_s", [10.0, 40.0, 100.0])
    def test_at_least_half_of_a_stay_of_that_length_trains(self, left_s: float) -> None:
        costs = ClaimCosts(claim=Mean(value_s=left_s, count=9), warm_up=Mean(value_s=3, count=9))
        stay_s = self._shortest_s(costs, _running(6, 0.5, 0.5))
        net_s = stay_s - left_s - 3 - 6
        assert net_s >= 0.5 * stay_s - 0.5


class TestInTheDecision:
    def test_the_gap_that_is_worth_a_claim_follows_from_what_claims_cost(self) -> None:
        settings = Settings(
            reserve_nodes_per_type=0, learns_min_gap=True, min_gap_s=120.0, gap_margin_s=60.0
        )
        nodes = with_state(idle_nodes(2), NodeState.PLANNED, "n2")
        job = pending("7", 9, start_s=T0 + 1000.0, planned=("n2",))
        fold = Fold(settings=settings)
        costs = ClaimCosts(claim=Mean(value_s=40, count=9), warm_up=Mean(value_s=30, count=9))

        def claims_at(left_s: float, *, learnt: bool) -> set[str]:
            fold.memory = replace(
                fold.memory, claim_costs=costs if learnt else ClaimCosts(), assignment={}
            )
            seen = snapshot(nodes, [replace(job, start_s=T0 + 60 + left_s)])
            return claimed(fold.decide(seen, (), [record()], at_s=T0))

        assert claims_at(119.0, learnt=False) == {"n1"}
        assert claims_at(121.0, learnt=False) == {"n1", "n2"}
        assert claims_at(139.0, learnt=True) == {"n1"}  # 2 * (40 + 30)
        assert claims_at(140.0, learnt=True) == {"n1", "n2"}

    def test_it_is_learnt_from_nothing_but_the_input(self) -> None:
        settings = Settings(reserve_nodes_per_type=0, learns_min_gap=True)
        fold = Fold(settings=settings, policy=ExactPolicy())
        seen = snapshot(idle_nodes(1))
        trainers = [record(n_max=1)]
        assert claimed(fold.decide(seen, (), trainers, at_s=T0)) == {"n1"}
        busy = snapshot(with_state(idle_nodes(1), NodeState.ALLOCATED, "n1"))
        plan = fold.decide(busy, [pilot("n1")], trainers, at_s=T0 + 5)
        assert plan.memory.claim_costs.claim == Mean(value_s=5.0, count=1)
        assert decode(encode(plan), Plan) == plan
        given = DecisionInput(
            now_s=T0 + 6,
            snapshot=busy,
            is_new_snapshot=True,
            pilots=(pilot("n1"),),
            trainers=tuple(trainers),
            settings=settings,
            memory=plan.memory,
            training={"n1": "t1"},
        )
        assert decode(encode(given), DecisionInput) == given

    def test_nothing_is_remembered_where_the_gap_is_set(self) -> None:
        fold = Fold(settings=Settings(reserve_nodes_per_type=0))
        seen = snapshot(idle_nodes(1))
        for is_held in (False, True):
            fold.decide(seen, [pilot("n1", is_held=is_held)], [record()])
        assert fold.memory.claim_costs == ClaimCosts()
