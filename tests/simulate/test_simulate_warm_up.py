"""A replay decides when a node has joined, as a daemon does, and so learns its warm-up."""

from __future__ import annotations

from dataclasses import replace

from bftrainer.batch.traces.fragments import Fragments, make_fragments
from bftrainer.decide.warm_up import ENOUGH
from bftrainer.lab.simulator.physical import PhysicalCosts, constant
from bftrainer.lab.simulator.session import Choices, play
from bftrainer.model.decision import DecisionInput, Plan
from milp.problem import Curve
from tests.simulate.test_simulate import trial

HOUR_S = 3600.0
WARM_UP_S = 25.0
FLAT = Curve(sizes=(1, 2, 4), samples_per_s=(100.0, 150.0, 180.0))


def _pool(*end_s: float) -> Fragments:
    """Return nodes that are all idle at once, each until some time."""
    return make_fragments(
        names=[f"n{node}" for node in range(len(end_s))],
        node=list(range(len(end_s))),
        start_s=[0.0] * len(end_s),
        end_s=list(end_s),
        span_s=(0.0, 2 * HOUR_S),
    )


def test_a_warm_up_is_learnt_as_long_as_it_takes_though_nothing_else_happens() -> None:
    """Six nodes come at once, and nothing changes for an hour."""
    pool = _pool(*([HOUR_S] * (ENOUGH + 1)))
    workload = [replace(trial(f"t{k}"), n_max=1) for k in range(ENOUGH + 1)]
    learnt_s: list[float] = []

    def on_plan(given: DecisionInput, plan: Plan) -> None:
        if plan.memory.joining.count >= ENOUGH:
            learnt_s.append(plan.memory.joining.warm_up_s)

    costs = PhysicalCosts(warm_up=constant(WARM_UP_S))
    play(pool, workload, Choices(costs=costs, p_jmax=12), on_plan=on_plan)
    assert learnt_s
    assert set(learnt_s) == {WARM_UP_S}


def test_trainers_that_wait_get_nodes_of_those_that_have_several() -> None:
    """Of a flat curve eight trainers with a node each make more than four with two.

    Sixteen nodes come and eight of them leave. A warm-up learnt as the time until then was so long
    that no trainer that had lost its nodes could start again within T_fwd.
    """
    leaving_s = 1800.0
    pool = _pool(*[2 * HOUR_S] * 8, *[leaving_s] * 8)
    workload = [replace(trial(f"t{k}"), n_max=4, curve=FLAT) for k in range(8)]
    sizes: list[list[int]] = []

    def on_plan(given: DecisionInput, plan: Plan) -> None:
        if given.now_s > leaving_s:
            sizes.append(sorted(map(len, _by_trainer(plan).values())))

    costs = PhysicalCosts(warm_up=constant(WARM_UP_S), pause_up=constant(0.3))
    play(pool, workload, Choices(costs=costs, p_jmax=8, t_fwd_s=120.0), on_plan=on_plan)
    assert sizes
    assert sizes[-1] == [1] * 8


def _by_trainer(plan: Plan) -> dict[str, list[str]]:
    nodes: dict[str, list[str]] = {}
    for node, trainer_id in plan.assignment.items():
        nodes.setdefault(trainer_id, []).append(node)
    return nodes
