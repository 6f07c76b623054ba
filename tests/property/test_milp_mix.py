"""Trainers that mix node classes: exact, and their nodes by class can be delivered."""

from __future__ import annotations

import numpy as np

from milp.check import check
from milp.classes.packing import Demand, meet, pack
from milp.pool import view_pool
from milp.problem import Curve, Problem, ProblemNode, ProblemTrainer
from milp.solve import solve
from tests.property.test_milp_classes import solved
from tests.support.every_split import draw, try_every_split


def test_is_the_best_of_every_split() -> None:
    for seed in range(20_000, 22_000):
        problem = draw(seed, 2 + seed % 3, share_of_mixes=0.6)
        found = solved(problem)
        if found is not None:
            _, answer = found
            assert answer.gap == 0.0, seed
            assert tuple(answer.sizes.tolist()) == try_every_split(problem)[1], seed


def test_whole_solution_of_small_problems_keeps_the_rules() -> None:
    for seed in range(30_000, 30_150):
        problem = draw(seed, 3, share_of_mixes=0.6)
        allocation = solve(problem)
        check(problem, allocation)
        best, _ = try_every_split(problem)
        assert abs(allocation.objective - best) <= 1e-9 * (1.0 + abs(best))


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


def test_demands_are_met_by_exchange() -> None:
    """The first takes what the second needs, unless it is exchanged for another class."""
    first = Demand(trainer=0, fixed=(0, 0, 1), free=2, room=(3, 3, 0))
    second = Demand(trainer=1, fixed=(0, 0, 0), free=2, room=(2, 0, 0))
    assert meet([first, second], (2, 2, 1)) == [[0, 2, 1], [2, 0, 0]]
    assert meet([first, second], (2, 1, 1)) is None
    assert meet([first], (2, 2, 0)) is None
    assert meet([], (1, 1)) == []


def test_whether_demands_leave_room_is_exact() -> None:
    """Packing says yes exactly when some classes of the others leave demands that are met."""
    chance = np.random.default_rng(5)
    answers = {True: 0, False: 0}
    for _ in range(600):
        counts = chance.integers(1, 6, size=3).tolist()
        sizes = chance.integers(0, 4, size=2)
        may_take = chance.random((3, 2)) < 0.6
        demands: list[Demand] = []
        for j in (2, 3):
            room = tuple(chance.integers(0, 4, size=3).tolist())
            fixed = tuple(chance.integers(0, 2, size=3).tolist())
            free = min(int(chance.integers(0, 4)), sum(room))
            demands.append(Demand(trainer=j, fixed=fixed, free=free, room=room))
        can = False
        for first in range(3):
            for second in range(3):
                pairs = list(zip((first, second), sizes.tolist(), strict=True))
                if any(size and not may_take[k, j] for j, (k, size) in enumerate(pairs)):
                    continue
                left = [n - sum(size for k, size in pairs if k == i) for i, n in enumerate(counts)]
                can |= min(left) >= 0 and meet(demands, left) is not None
        assert (pack(sizes, may_take, counts, demands) is not None) == can
        answers[can] += 1
    assert min(answers.values()) > 50
