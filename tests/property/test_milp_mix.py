"""Trainers that mix node classes: exact, and their nodes by class can be delivered."""

from __future__ import annotations

import pytest

from milp.check import check
from milp.pool import view_pool
from milp.problem import Curve, Problem, ProblemNode, ProblemTrainer
from milp.solve import solve
from tests.property.test_milp_classes import solved, value_of
from tests.support.every_split import draw, try_every_split


@pytest.mark.long
def test_is_the_best_of_every_split() -> None:
    for seed in range(20_000, 21_000):
        problem = draw(seed, 2 + seed % 3, share_of_mixes=0.6)
        found = solved(problem)
        if found is not None:
            best, _ = try_every_split(problem)
            assert found[1].gap == 0.0, seed
            assert value_of(problem, *found) == pytest.approx(best, rel=1e-9, abs=1e-9), seed
            check(problem, solve(problem))


def mixing(name: str, n_nodes: int, *current: str, eligible: tuple[str, ...]) -> ProblemTrainer:
    return ProblemTrainer(
        trainer_id=name,
        n_min=n_nodes,
        n_max=n_nodes,
        curve=Curve(sizes=(1, 8), samples_per_s=(1.0, 8.0)),
        rescale_up_s=0.0,
        rescale_down_s=0.0,
        current=current,
        eligible=eligible,
        mixes_classes=True,
    )


def test_mixing_trainers_share_what_no_class_has_alone() -> None:
    nodes = tuple(ProblemNode(name=f"n{i}", eligibility="aabbcc"[i]) for i in range(6))
    problem = Problem(
        nodes=nodes,
        trainers=(
            mixing("t0", 3, "n2", eligible=("a", "b")),
            mixing("t1", 3, eligible=("b", "c")),
        ),
        t_fwd_s=10.0,
        p_jmax=2,
    )
    allocation = solve(problem)
    check(problem, allocation)
    assert allocation.sizes() == {"t0": 3, "t1": 3}
    assert allocation.assignment["n2"] == "t0"  # growing keeps what it has
    assert len(view_pool(problem).names) == 3
