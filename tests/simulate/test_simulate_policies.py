"""What policies may ask of a replay beside an allocation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from bftrainer.decide.policies.base import Context, Traits, load_policy
from bftrainer.lab.simulator.paper import PaperModel
from bftrainer.lab.simulator.physical import PhysicalCosts, PhysicalModel, constant
from bftrainer.lab.simulator.replay import Outcome, Replay
from bftrainer.lab.simulator.session import Choices, play, settings_of
from bftrainer.lab.simulator.trainers import Tally
from bftrainer.model.decision import DecisionInput, Plan
from milp.problem import Problem
from milp.solve import solve
from tests.simulate.test_simulate import trace, trial
from tests.support.policies import Scripted

COSTS = PhysicalCosts(
    claim=constant(1.0),
    warm_up=constant(2.0),
    pause_up=constant(0.5),
    pause_down=constant(0.5),
    pause_loss=constant(0.5),
)


def replay(
    policy: Scripted, *, books: PaperModel | None = None, p_jmax: int = 1, seed: int = 0
) -> Outcome:
    trials = [trial(name, 4e3 if name == "a" else 1e6) for name in "abc"]
    return Replay(
        trace((0, 0, 1000), (1, 0, 500), (2, 100, 1000)),
        trials,
        settings=settings_of(Choices(p_jmax=p_jmax)),
        policy=policy,
        books=books or PaperModel(Tally()),
        seed=seed,
    ).run()


@pytest.mark.parametrize(
    "books", [lambda: PaperModel(Tally()), lambda: PhysicalModel(Tally(), COSTS, seed=1)]
)
def test_it_is_asked_when_it_wants_to_be(books: Callable[[], PaperModel]) -> None:
    policy = Scripted(answer=lambda _, c: {"wake_at_s": c.now_s + 30.0})
    replay(policy, books=books(), seed=9)
    times = [context.now_s for _, context in policy.asked]
    assert max(b - a for a, b in pairwise(times)) <= 30.0
    assert times[-1] > 970.0
    assert {context.seed for _, context in policy.asked} == {9}


def test_it_sees_the_first_p_jmax_unless_it_admits_them() -> None:
    policy = Scripted()
    replay(policy)
    assert {len(problem.trainers) for problem, _ in policy.asked} == {1}
    policy = Scripted(traits=Traits(admits=True))
    replay(policy)
    assert {len(problem.trainers) for problem, _ in policy.asked} == {3, 2}


def test_it_is_told_how_far_they_have_come() -> None:
    """Two nodes for 100 s, three for 400; 40 samples each, less what the changes cost."""
    policy = Scripted()
    outcome = replay(policy)
    told = {c.now_s: c.trainers["t1"] for _, c in policy.asked if "t1" in c.trainers}
    assert told[0.0].left_samples == 4000
    assert told[100.0].attained_node_s == 200.0
    assert told[100.0].done_samples == 100 * 20
    assert told[100.0].left_samples == 4000 - 100 * 20
    assert outcome.trainers[0].node_s == 200.0 + 3 * 400.0


def test_whom_it_drops_is_never_seen_again() -> None:
    def answer(problem: Problem, _context: Context) -> dict[str, Any]:
        found = solve(problem)
        idle = [t.trainer_id for t in problem.trainers if t.trainer_id not in found.sizes()]
        return {"allocation": found, "dropped": dict.fromkeys(idle, "No room.")}

    policy = Scripted(answer=answer, traits=Traits(admits=True))
    outcome = replay(policy, p_jmax=2)
    assert [t.dropped for t in outcome.trainers] == ["", "No room.", "No room."]
    assert [len(problem.trainers) for problem, _ in policy.asked][:2] == [3, 1]


def test_node_seconds_are_counted_while_members_change() -> None:
    policy = Scripted()
    outcome = replay(policy, books=PhysicalModel(Tally(), COSTS, seed=1), p_jmax=2)
    whole = sum(t.node_s for t in outcome.trainers)
    assert outcome.tally.node_s_used <= whole <= outcome.tally.node_s_held


@pytest.mark.parametrize("name", ["milp", "fcfs-greedy"])
@pytest.mark.parametrize(
    "books", [lambda: PaperModel(Tally()), lambda: PhysicalModel(Tally(), COSTS, seed=1)]
)
def test_planned_and_trained_sizes_are_of_the_set(
    name: str, books: Callable[[], PaperModel]
) -> None:
    planned, trained, model = set[int](), set[int](), books()

    def note(given: DecisionInput, plan: Plan) -> None:
        planned.add(len(plan.assignment))
        trained.add(len(given.training))

    Replay(
        trace((0, 0, 1000), (1, 0, 500), (2, 100, 1000), (2, 0, 50)),
        [replace(trial("a"), sizes=(1, 2, 4))],
        settings=settings_of(Choices(p_jmax=1, policy=name)),
        policy=load_policy(name),
        books=model,
        on_plan=note,
    ).run()
    assert planned == {2}  # for 400 s there are three nodes
    assert trained <= {0, 1, 2}


@pytest.mark.parametrize(("policy", "work_h", "trains_h"), [
    ("utility", 90.0, 40.0), ("utility-exact", 90.0, 0.0), ("utility-exact", 20.0, 40.0),
])  # fmt: skip
def test_an_exact_utility_never_starts_who_cannot_end_in_time(
    policy: str, work_h: float, trains_h: float
) -> None:
    """One node for 40 hours; by default a trainer is worth nothing a day after its submission.

    One that ends in 20 hours is seen to at the next event, which is the end here.
    """
    hour_s = 3600.0
    nodes = trace((0, 0, 40 * hour_s), end_s=40 * hour_s)
    late = replace(trial("late", 10.0 * work_h * hour_s), n_max=1)  # ten samples a second
    outcome, _ = play(nodes, [late], Choices(policy=policy, p_jmax=1))
    assert outcome.tally.node_s_used / hour_s == pytest.approx(trains_h)
