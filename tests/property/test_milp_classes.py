"""Several node classes: the exact sizes and classes, against every split of the nodes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import milp.classes
from milp.check import check
from milp.classes import ClassesAnswer, solve_classes
from milp.options import build_options
from milp.pool import PoolView, view_pool
from milp.problem import Curve, Problem, ProblemError, ProblemNode, ProblemTrainer
from milp.solve import solve
from tests.support.every_split import draw, try_every_split


def solved(problem: Problem) -> tuple[PoolView, ClassesAnswer] | None:
    """The answer, where there is more than one class; its split is legal."""
    pool = view_pool(problem)
    if len(pool.names) == 1:
        return None
    answer = solve_classes(build_options(problem, pool), pool)
    split = np.array(answer.split)
    assert (split.sum(axis=0) <= pool.counts()).all()
    for j, row in enumerate(answer.split):
        held, size = pool.held[j], sum(row)
        assert all(pool.accepts[j][k] for k, n in enumerate(row) if n)
        assert pool.mixes[j] or sum(n > 0 for n in row) <= 1
        if size > len(pool.present[j]):
            assert all(n >= n_held for n, n_held in zip(row, held, strict=True))
        else:
            assert all(n <= n_held for n, n_held in zip(row, held, strict=True))
    return pool, answer


def value_of(problem: Problem, pool: PoolView, answer: ClassesAnswer) -> float:
    options = build_options(problem, pool)
    sizes = answer.split.sum(axis=1)
    return float(options.allowed.max(axis=0)[np.arange(len(sizes)), sizes].sum())


@pytest.mark.parametrize(
    ("n_classes", "seeds"),
    [
        *((2, range(120)), (3, range(240)), (5, range(120))),
        pytest.param(2, range(120, 500), marks=pytest.mark.long),
        pytest.param(3, range(240, 1000), marks=pytest.mark.long),
        pytest.param(5, range(120, 500), marks=pytest.mark.long),
    ],
)
def test_is_the_best_of_every_split(n_classes: int, seeds: range) -> None:
    n_solved = n_preferred = 0
    for seed in seeds:
        problem = draw(seed, n_classes)
        found = solved(problem)
        if found is not None:
            best, preferred = try_every_split(problem)
            assert found[1].gap == 0.0, seed
            assert value_of(problem, *found) == pytest.approx(best, rel=1e-9, abs=1e-9), seed
            n_preferred += tuple(found[1].split.sum(axis=1).tolist()) == preferred
            n_solved += 1
    assert n_solved > len(seeds) / 3
    assert n_preferred > 0.95 * n_solved  # what the tie rule of one class would choose


def test_of_equal_trainers_the_first_starts() -> None:
    nodes = tuple(ProblemNode(name=f"n{i}", eligibility="ab"[i % 2]) for i in range(6))
    trainers = tuple(
        replace(equal_trainer(f"t{j}", size=3), eligible=(*"ab", "c" * (j % 2))) for j in range(5)
    )
    answer = solve(Problem(nodes=nodes, trainers=trainers, t_fwd_s=120.0, p_jmax=5))
    assert answer.sizes() == {"t0": 3, "t1": 3}


def test_equal_trainers_that_choose_are_proven() -> None:
    """Many exchanges to no loss and sizes that do not fill the classes."""
    chance = np.random.default_rng(1)
    nodes = tuple(ProblemNode(name=f"n{i}", eligibility="abc"[i % 3]) for i in range(151))
    curve = Curve(sizes=(1, 4, 16, 64), samples_per_s=(1.0, 3.5, 10.0, 30.0))
    trainers = tuple(
        ProblemTrainer(
            trainer_id=f"t{j}",
            n_min=8,
            n_max=64,
            curve=curve,
            rescale_up_s=1.0,
            rescale_down_s=1.0,
            eligible=tuple(name for name in "abc" if chance.random() < 0.6),
        )
        for j in range(14)
    )
    problem = Problem(nodes=nodes, trainers=trainers, t_fwd_s=120.0, p_jmax=14)
    pool, answer = solved(problem) or pytest.fail("one class only")
    assert len(pool.names) == 3
    assert answer.gap == 0.0
    # Nobody loses by what others may not have: never more than all classes as one pool.
    one_pool = replace(problem, trainers=tuple(replace(t, eligible=()) for t in trainers))
    assert solve(problem).objective <= solve(one_pool).objective * (1 + 1e-12)


def test_a_search_cut_short_states_how_far_the_optimum_can_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = large_problem(6, seed=1)
    best = solve(problem)
    monkeypatch.setitem(milp.classes.SETTINGS, "mip_max_nodes", 1)
    cut = solve(problem)
    check(problem, cut)
    assert best.gap == 0.0
    assert cut.solver == "bounded"
    assert cut.objective <= best.objective <= cut.objective + cut.gap


def test_no_answer_is_a_named_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(milp.classes.SETTINGS, "time_limit", 0.0)
    with pytest.raises(ProblemError, match="BFT-3022"):
        solve(large_problem(3, seed=1))


def equal_trainer(name: str, *, size: int) -> ProblemTrainer:
    return ProblemTrainer(
        trainer_id=name,
        n_min=size,
        n_max=size,
        curve=Curve(sizes=(1, 4, 16, 64), samples_per_s=(1.0, 3.5, 10.0, 30.0)),
        rescale_up_s=1.0,
        rescale_down_s=1.0,
    )


def large_problem(n_classes: int, *, seed: int, share_of_mixes: float = 0.0) -> Problem:
    """20 trainers of equal curves and even sizes on 300 nodes."""
    chance = np.random.default_rng(seed)
    classes = "abcdef"[:n_classes]
    nodes = tuple(
        ProblemNode(name=f"n{i}", eligibility=str(chance.choice(list(classes)))) for i in range(300)
    )
    trainers = tuple(
        replace(
            equal_trainer(f"t{j}", size=size),
            eligible=tuple(name for name in classes if chance.random() < 0.5),
            mixes_classes=bool(chance.random() < share_of_mixes),
        )
        for j, size in enumerate((2 * chance.integers(4, 20, size=20)).tolist())
    )
    return Problem(nodes=nodes, trainers=trainers, t_fwd_s=120.0, p_jmax=20)


@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(2, 6), marks=pytest.mark.long)])
@pytest.mark.parametrize(("n_classes", "share_of_mixes"), [(3, 0.0), (3, 0.4), (6, 0.0)])
def test_large_problems_are_proven(n_classes: int, share_of_mixes: float, seeds: range) -> None:
    for seed in seeds:
        problem = large_problem(n_classes, seed=seed, share_of_mixes=share_of_mixes)
        pool, answer = solved(problem) or pytest.fail("one class only")
        assert answer.gap == 0.0
        allocation = solve(problem)
        check(problem, allocation)
        assert allocation.sizes() == {
            t.trainer_id: size
            for t, size in zip(pool.trainers, answer.split.sum(axis=1).tolist(), strict=True)
            if size
        }


def test_same_problem_same_answer() -> None:
    problem = large_problem(5, seed=2, share_of_mixes=0.3)
    assert solve(problem) == solve(problem)


def test_largest_sizes_of_a_pool() -> None:
    nodes = tuple(ProblemNode(name=f"n{i}", eligibility="aabbbc"[i]) for i in range(6))
    curve = Curve(sizes=(1, 8), samples_per_s=(1.0, 8.0))
    one = ProblemTrainer(
        trainer_id="one",
        n_min=1,
        n_max=8,
        curve=curve,
        rescale_up_s=0.0,
        rescale_down_s=0.0,
        current=("n0", "n2"),
        eligible=("a", "b"),
    )
    mixing = replace(one, trainer_id="mixing", current=("n3",), mixes_classes=True)
    stuck = replace(mixing, trainer_id="stuck", current=("n4", "n5"))
    picky = replace(one, trainer_id="picky", current=(), eligible=("a", "c"))
    problem = Problem(nodes=nodes, trainers=(one, mixing, stuck, picky), t_fwd_s=1.0, p_jmax=4)
    pool = view_pool(problem)
    assert pool.counts() == (2, 3, 1)
    assert pool.held == ((1, 1, 0), (0, 1, 0), (0, 1, 1), (0, 0, 0))
    # It holds two classes and may only have one: it shrinks to the nodes of that one.
    assert [pool.largest(0, k) for k in range(3)] == [1, 1, 0]
    assert [pool.largest(1, k) for k in range(3)] == [5, 5, 0]
    assert [pool.largest(1, k, extra=1) for k in range(3)] == [6, 6, 0]
    assert [pool.largest_of_one(1, k) for k in range(3)] == [0, 3, 0]
    # It holds a node it no longer accepts, which a grower would have to keep.
    assert [pool.largest(2, k, extra=1) for k in range(3)] == [1, 1, 0]
    assert [pool.largest(3, k, extra=1) for k in range(3)] == [3, 0, 2]
