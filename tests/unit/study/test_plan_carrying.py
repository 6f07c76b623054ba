"""A plan is carried out: sizes and numbers of trials are the plan's, verdicts those of the rule."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from bftrainer.api.documents import document, parse, view_of
from bftrainer.study.plan.document import (
    NAME,
    Carried,
    PlanRequest,
    StudyPlan,
    is_for,
    plan_study,
    soonest,
)
from bftrainer.study.plan.problem import Cloud, ScalingProfile, rung_stages
from bftrainer.study.rungs import Asha, Full, Hyperband, Sha
from bftrainer.study.trials import StudyRule, StudyTrial, TrialStage, Verdicts
from tests.support.rule_replay import Curve, Parent, play

SCALING = ScalingProfile(gpus=(1, 2, 4, 8), unit_s=(10.0, 6.0, 4.0, 3.0))


def request(
    rule: StudyRule, deadline_s: float, scaling: ScalingProfile = SCALING, most: int = 64
) -> PlanRequest:
    return PlanRequest(
        study="s",
        unit="epochs",
        rule=rule.describe(),
        stages=rung_stages(rule),
        deadline_s=deadline_s,
        most=most,
        scaling=scaling,
        cloud=Cloud(gpus_per_instance=2, price_h=3600.0),
        samples=20,
    )


def planned(
    rule: StudyRule, deadline_s: float, scaling: ScalingProfile = SCALING, most: int = 64
) -> StudyPlan:
    found = plan_study(request(rule, deadline_s, scaling, most))
    assert found is not None
    return found


def curve(number: int, _: Parent | None) -> Curve:
    return Curve(points=tuple((units, number / units) for units in range(1, 28)))


class Watched:
    """A rule that notes what is granted."""

    def __init__(self, rule: Carried) -> None:
        self.rule, self.most = rule, rule.most
        self.active: dict[int, int] = {}  # budget -> most trials that had it at once
        self.sizes: set[tuple[int, int]] = set()  # budget, nodes

    def verdicts(self, trials: Sequence[StudyTrial], room: int) -> Verdicts:
        for budget in {t.budget for t in trials}:
            now = sum(t.stage is TrialStage.ACTIVE and t.budget == budget for t in trials)
            self.active[budget] = max(self.active.get(budget, 0), now)
        found = self.rule.verdicts(trials, room)
        self.sizes |= {(one.budget, one.nodes or 0) for one in found.start}
        self.sizes |= {(budget, found.nodes[n]) for n, budget in found.grow.items()}
        return found

    def describe(self) -> dict[str, str]:
        return {}


def test_each_rung_has_what_the_plan_says() -> None:
    rule = Sha(trials=9, least=1, most=9, eta=3)
    plan = planned(rule, 90.0, most=6)
    watched = Watched(Carried(rule=rule, plan=plan))
    played, plain = play(watched, curve, 64), play(rule, curve, 64)
    assert played.is_over
    assert [(t.stage, t.budget) for t in played.trials] == [
        (t.stage, t.budget) for t in plain.trials
    ]
    assert watched.sizes == {(one.budget, one.gpus_per_trial) for one in plan.stages}
    for one in plan.stages:
        assert watched.active[one.budget] == min(one.at_once, one.trials)
    assert plan.stages[0].at_once < 9  # some wait for others
    assert plan.stages[-1].gpus_per_trial > 1


def test_brackets_come_one_after_another() -> None:
    rule = Hyperband(least=1, most=9, eta=3)
    plan = planned(rule, 2000.0)
    assert [(s.bracket, s.budget, s.trials) for s in plan.stages] == [
        *((0, 1, 9), (0, 3, 3), (0, 9, 1), (1, 3, 5), (1, 9, 1), (2, 9, 3))
    ]
    carried = Carried(rule=rule, plan=plan)
    seen: list[set[int]] = []

    class Brackets(Watched):
        def verdicts(self, trials: Sequence[StudyTrial], room: int) -> Verdicts:
            seen.append({t.bracket for t in trials if t.stage is TrialStage.ACTIVE})
            return super().verdicts(trials, room)

    assert play(Brackets(carried), curve, 64).is_over
    assert max(len(active) for active in seen) == 1
    assert set.union(*seen) == {0, 1, 2}


def test_less_room_than_planned_is_respected() -> None:
    rule = Full(trials=4, most=3)
    carried = Carried(rule=rule, plan=planned(rule, 40.0))
    assert len(carried.verdicts((), 2).start) == 2
    assert carried.verdicts((), 0).start == ()
    assert play(carried, curve, 2).is_over


def test_trials_that_were_added_have_the_sizes_of_their_budgets() -> None:
    plan = planned(Sha(trials=4, least=1, most=4, eta=2), 60.0)
    more = Sha(trials=16, least=1, most=4, eta=2)
    carried = Carried(rule=more, plan=plan)
    assert play(carried, curve, 64).is_over
    assert carried.nodes_of(0, 3) == plan.stages[1].gpus_per_trial
    assert carried.nodes_of(0, 100) == plan.stages[-1].gpus_per_trial


def test_a_plan_is_its_document() -> None:
    rule = Sha(trials=9, least=1, most=9, eta=3)
    plan = planned(rule, 130.0)
    written = json.dumps(document(NAME, plan))
    assert json.loads(written)["schema"] == "bftrainer/study-plan/1"
    assert view_of(StudyPlan, NAME, parse(written)) == plan
    assert is_for(plan, rung_stages(rule))
    assert not is_for(plan, rung_stages(Sha(trials=9, least=1, most=8, eta=3)))


def test_the_plan_is_the_cheapest_of_all_that_are_shown() -> None:
    plan = planned(Sha(trials=9, least=1, most=9, eta=3), 130.0)
    few = planned(Sha(trials=9, least=1, most=9, eta=3), 90.0, most=6)
    for one in (plan, few):
        assert one.bound == pytest.approx(one.cost.mean)
        others = [rival for rival in one.rivals.values() if rival is not None]
        assert min(rival.cost for rival in others) >= one.cost.mean - 1e-6
    assert max(max(rival.gpus) for rival in few.rivals.values() if rival) <= 6
    assert set(plan.rivals) == {"static", "naive", "greedy-literal", "greedy-repaired"}
    assert plan.time_s.mean == pytest.approx(sum(s.time_s.mean for s in plan.stages))
    assert plan.cost.mean == pytest.approx(sum(s.cost.mean for s in plan.stages))
    assert plan.in_time == 1.0


def test_spread_is_shown() -> None:
    spread = ScalingProfile(gpus=SCALING.gpus, unit_s=SCALING.unit_s, spread=0.2)
    plan = planned(Sha(trials=9, least=1, most=9, eta=3), 130.0, spread)
    for amount in (plan.time_s, plan.cost, *(s.time_s for s in plan.stages)):
        assert amount.low < amount.mean < amount.high
    assert 0.0 < plan.in_time <= 1.0


def test_the_soonest_end_is_a_plan() -> None:
    rule = Sha(trials=9, least=1, most=9, eta=3)
    assert plan_study(request(rule, 1.0)) is None
    time_s, cost = soonest(request(rule, 1.0))
    at_once = planned(rule, time_s + 1e-6)
    assert at_once.time_s.mean == pytest.approx(time_s)
    assert at_once.cost.mean >= cost - 1e-6


def test_rules_without_stages_have_no_plan() -> None:
    with pytest.raises(ValueError, match="asha has no stages"):
        rung_stages(Asha(trials=9, least=1, most=9, eta=3))
