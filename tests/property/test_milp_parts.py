"""Problems that fall apart, and those that do once trainers are bound to a class."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from milp.check import check
from milp.problem import Curve, Problem, ProblemNode, ProblemTrainer
from milp.solve import solve, split
from tests.support.every_split import draw, try_every_split

CURVES = (
    Curve(sizes=(1, 8, 64), samples_per_s=(1.0, 7.5, 50.0)),
    Curve(sizes=(1, 8, 64), samples_per_s=(3.0, 18.0, 90.0)),
)


def trainer(name: str, *current: str, eligible: tuple[str, ...] = ()) -> ProblemTrainer:
    return ProblemTrainer(
        trainer_id=name,
        n_min=1,
        n_max=4,
        curve=CURVES[0],
        rescale_up_s=1.0,
        rescale_down_s=2.0,
        current=current,
        eligible=eligible,
    )


def test_trainers_without_a_class_in_common_are_solved_apart() -> None:
    nodes = tuple(ProblemNode(name=f"{k}{i}", eligibility=k) for k in "abcd" for i in range(3))
    problem = Problem(
        nodes=nodes,
        trainers=(
            trainer("t0", eligible=("a",)),
            trainer("t1", eligible=("b", "c")),
            trainer("t2", eligible=("c",)),
            trainer("t3", "a0", eligible=("d",)),  # what it holds counts, accepted or not
            trainer("stopped", "b0", "c0"),
        ),
        t_fwd_s=10.0,
        p_jmax=4,
    )
    parts = [{t.trainer_id for t in part.trainers} for part in split(problem)]
    assert parts == [{"t1", "t2"}, {"t0", "t3"}]
    allocation = solve(problem)
    check(problem, allocation)
    assert allocation.solver == "exact"
    assert allocation.sizes() == {"t0": 3, "t1": 3, "t2": 3}
    assert split(replace(problem, trainers=(trainer("any"), *problem.trainers))) == [
        replace(problem, trainers=(trainer("any"), *problem.trainers))
    ]


@pytest.mark.parametrize("share_of_mixes", [0.0, 0.6])
def test_many_classes_are_answered_within_the_gap(share_of_mixes: float) -> None:
    n_proven = 0
    for seed in range(40_000, 40_250):
        problem = draw(seed, 5, share_of_mixes=share_of_mixes)
        allocation = solve(problem)
        check(problem, allocation)
        best, _ = try_every_split(problem)
        noise = 1e-9 * (1.0 + abs(best))
        assert allocation.objective <= best + noise, seed
        assert best <= allocation.objective + allocation.gap + noise, seed
        n_proven += allocation.gap == 0.0
    assert n_proven > 200


def typed(seed: int) -> Problem:
    """Three types, of each two classes; trainers bound to a type mix, others choose a class."""
    chance = random.Random(f"typed {seed}")  # noqa: S311 - a test
    nodes = [
        ProblemNode(name=f"n{i}", eligibility=chance.choice("abc") + chance.choice(["", "+"]))
        for i in range(400)
    ]
    free = {kind: [n.name for n in nodes if n.eligibility[0] == kind] for kind in "abc"}
    trainers = []
    for j in range(24):
        kind, n_min = chance.choice("abc"), chance.choice([1, 1, 2, 8, 32])
        plain = replace(
            trainer(f"t{j}"), n_min=n_min, n_max=64, curve=chance.choice(CURVES),
            rescale_up_s=chance.uniform(1, 20), rescale_down_s=chance.uniform(1, 12),
        )  # fmt: skip
        if j % 3 == 0:
            trainers.append(plain)
            continue
        size = chance.choice([0, n_min, 2 * n_min])
        current, free[kind] = tuple(free[kind][:size]), free[kind][size:]
        only = (kind, f"{kind}+") if chance.random() < 0.7 else (f"{kind}+",)
        if len(only) == 1:
            current = tuple(n.name for n in nodes if n.name in current and "+" in n.eligibility)
        trainers.append(replace(plain, eligible=only, mixes_classes=True, current=current))
    return Problem(nodes=tuple(nodes), trainers=tuple(trainers), t_fwd_s=120.0, p_jmax=24)


@pytest.mark.long
def test_trainers_that_choose_beside_those_bound_to_a_type_leave_little_on_the_table() -> None:
    for seed in range(6):
        problem = typed(seed)
        allocation = solve(problem)
        check(problem, allocation)
        assert allocation.gap <= 0.01 * allocation.objective, seed
