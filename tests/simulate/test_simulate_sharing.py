"""Blackouts, limits and fair share in replays: the same decisions as the daemon's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bftrainer.batch.traces.fragments import Fragments, make_fragments
from bftrainer.lab.simulator.physical import PhysicalCosts, constant
from bftrainer.lab.simulator.session import Choices, play
from bftrainer.lab.workloads import Submission
from bftrainer.model.decision import DecisionInput, Plan
from bftrainer.model.fairness import Limits
from milp.problem import Curve

MODELS = pytest.mark.parametrize("costs", [None, PhysicalCosts(claim=constant(5.0))])
END_S = 3600.0


def always_idle(count: int) -> Fragments:
    return make_fragments(
        names=[f"n{i}" for i in range(count)],
        node=list(range(count)),
        start_s=[0.0] * count,
        end_s=[END_S] * count,
        span_s=(0.0, END_S),
    )


def trial(name: str, user: str) -> Submission:
    return Submission(
        submit_s=0.0,
        name=name,
        n_min=1,
        n_max=4,
        samples=1e9,
        curve=Curve(sizes=(1, 2, 4), samples_per_s=(10.0, 19.0, 34.0)),
        rescale_up_s=1.0,
        rescale_down_s=1.0,
        user=user,
    )


def node_s(choices: Choices, *trials: Submission) -> dict[str, float]:
    outcome, _ = play(always_idle(2), trials, choices)
    found: dict[str, float] = {}
    for one in outcome.trainers:
        found[one.submission.user] = found.get(one.submission.user, 0.0) + one.node_s
    return found


@MODELS
def test_nothing_trains_in_a_blackout(costs: PhysicalCosts | None) -> None:
    plans: list[tuple[float, Plan]] = []

    def note(given: DecisionInput, plan: Plan) -> None:
        plans.append((given.now_s, plan))

    # The clock of a trace begins at midnight here.
    choices = Choices(costs=costs, blackouts=("daily 00:10-00:20", "daily 00:50-01:10"))
    outcome, _ = play(always_idle(2), [trial("t", "ann")], choices, on_plan=note)
    closed = [plan for at_s, plan in plans if 600.0 <= at_s < 1200.0 or at_s >= 3000.0]
    assert closed
    assert all(not plan.assignment and not plan.claims for plan in closed)
    ends = [at_s + claim.time_limit_s for at_s, plan in plans for claim in plan.claims]
    assert all(end_s <= (600.0 if end_s < 1200.0 else 3000.0) for end_s in ends)
    open_s = 2 * (600.0 + 1800.0)
    assert 0.9 * open_s < outcome.trainers[0].node_s <= open_s


@MODELS
def test_users_take_turns_and_the_same_replay_has_the_same_result(
    costs: PhysicalCosts | None,
) -> None:
    trials = [trial(f"a{i}", "ann") for i in range(5)] + [trial("b", "bob")]
    choices = Choices(costs=costs, p_jmax=1)
    first = node_s(choices, *trials)
    assert first["bob"] == 0.0
    fair = replace(choices, half_life_s=600.0)
    shares = node_s(fair, *trials)
    assert shares["bob"] == pytest.approx(shares["ann"], rel=0.2)
    assert node_s(fair, *trials) == shares


def test_a_limit_leaves_room_for_those_behind() -> None:
    trials = [trial(f"a{i}", "ann") for i in range(5)] + [trial("b", "bob")]
    choices = Choices(p_jmax=2, limits=Limits(by_user={"*": 1}))
    assert node_s(choices, *trials) == {"ann": END_S, "bob": END_S}
