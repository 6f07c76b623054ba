"""The sizes against every combination of sizes, and against the dense program."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import numpy as np
import pytest

from milp.exact.dual import PoolAnswer, find_price, solve_pool
from milp.options import Options, build_options
from milp.pool import view_pool
from milp.problem import Curve, Objective, Problem, ProblemNode, ProblemTrainer
from milp.solve import solve_sizes
from milp.tables import FloatArray, IntArray, value_table

TINY = 20_000


@dataclass(frozen=True)
class Tiny:
    """A table of values; what a solver takes."""

    allowed: FloatArray
    current: IntArray
    capacity: int
    tolerance: float


def draw_tiny(chance: random.Random) -> Tiny:
    """Up to four trainers on up to nine nodes: gaps, ties, any curve, any C_j."""
    n_trainers = chance.choice([1, 2, 2, 3, 3, 4])
    n_nodes = chance.randint(0, 9 if n_trainers < 4 else 5)
    kind = chance.choice(["any", "whole", "tenths", "linear", "equal"])
    t_fwd_s = chance.choice([0.0, 1.0, 5.0, 120.0])
    free = n_nodes
    knots, rates, n_min, n_max = [0], [0.0], 1, 0
    rows: list[FloatArray] = []
    current: list[int] = []
    sizes = np.arange(n_nodes + 2)
    for _ in range(n_trainers):
        if kind != "equal" or not rows:
            knots = [0, *sorted(chance.sample(range(1, 9), chance.randint(1, 3)))]
            rates = [0.0, *(_rate(chance, kind, n) for n in knots[1:])]
            n_min = chance.choice([1, 1, 2, 3, 5])
            n_max = min(n_min + chance.choice([0, 0, 2, 5, 8]), n_nodes + 1)
        present = chance.randint(0, free) if chance.random() < 0.6 else 0
        free -= present
        scale = chance.random() if kind == "any" else 1.0
        held = float(np.interp(present, knots, rates))
        row = t_fwd_s * scale * np.interp(sizes, knots, rates)
        row[sizes > present] -= held * chance.choice([0.0, 1.0, 2.5, 20.0])
        row[sizes < present] -= held * chance.choice([0.0, 1.0, 10.0])
        row[(sizes > 0) & ((sizes < n_min) | (sizes > n_max))] = -np.inf
        rows.append(row)
        current.append(present)
    allowed = np.array(rows)
    magnitude = np.abs(np.where(np.isfinite(allowed), allowed, 0.0)).max(axis=1)
    return Tiny(
        allowed=allowed,
        current=np.array(current),
        capacity=n_nodes,
        tolerance=1e-12 * float(magnitude.sum()),
    )


def _rate(chance: random.Random, kind: str, size: int) -> float:
    if kind == "linear":
        return chance.choice([0.1, 0.3, 1.0]) * size
    if kind == "any":
        return chance.random() * size
    whole = chance.randint(0, 60)
    return 0.1 * whole if kind == "tenths" else float(whole // 10)


def try_all_sizes(tiny: Tiny) -> tuple[float, float, tuple[int, ...]]:
    """Best value, best value with one node more, and the sizes the tie rule picks."""
    n_trainers, width = tiny.allowed.shape
    shape = (width,) * n_trainers
    value, used, rescales = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    for j in range(n_trainers):
        axis = [-1 if i == j else 1 for i in range(n_trainers)]
        sizes = np.arange(width)
        value = value + tiny.allowed[j].reshape(axis)
        used = used + sizes.reshape(axis)
        rescales = rescales + (sizes != tiny.current[j]).reshape(axis)
    best_of_larger = float(value[used <= tiny.capacity + 1].max())
    value[used > tiny.capacity] = -np.inf
    best = float(value.max())
    scale = 1.0 + float(np.abs(value[np.isfinite(value)]).max())
    tied = value >= best - 1e-10 * scale
    tied &= rescales == rescales[tied].min()
    # Of what is left in C order the last one has the largest sizes of the first trainers.
    last = int(np.flatnonzero(tied)[-1])
    return best, best_of_larger, tuple(int(n) for n in np.unravel_index(last, shape))


@pytest.mark.long
def test_is_the_best_of_all_sizes_of_many_tiny_problems() -> None:
    chance = random.Random(3)  # noqa: S311 - a test
    for trial in range(TINY):
        tiny = draw_tiny(chance)
        table = (tiny.allowed, tiny.current, tiny.capacity, tiny.tolerance)
        best, best_of_larger, sizes = try_all_sizes(tiny)
        near = 1e-9 * (1 + abs(best) + abs(best_of_larger))
        answers = [solve_pool(*table)]
        if trial % 4 == 0:
            answers.append(solve_pool(*table, is_dense=True))
            # At any price of a node the answer is the same.
            answers.append(solve_pool(*table, price=chance.choice([0.0, 0.1, 1.0]) * abs(best)))
        for answer in answers:
            assert tuple(answer.sizes.tolist()) == sizes, (trial, tiny)
            assert abs(answer.value - best) <= near, (trial, tiny)
            assert abs(answer.value_of_one_more - best_of_larger) <= near, (trial, tiny)


# ---- against the dense program -----------------------------------------------------------

SIZES = (1, 2, 4, 8, 16, 32, 64)


def drawn(family: str, n_trainers: int, n_nodes: int, seed: int) -> Problem:
    """A middling problem of a family that is hard for the price of a node."""
    chance = random.Random(f"{family} {seed}")  # noqa: S311 - a test
    names = [f"n{i:04}" for i in range(n_nodes)]
    free = list(names)
    shared = _curve(family, chance)
    trainers = []
    for j in range(n_trainers):
        n_min, n_max = chance.choice([1, 1, 2, 8, 16]), 64
        if family == "parity":
            n_min = n_max = 2 * chance.randint(1, 20)
        elif family == "gaps":
            n_min = chance.randint(17, 40)
            n_max = n_min + chance.randint(0, 7)
        elif family in {"equal", "linear"}:
            n_min = 1
        n_current = 0
        if chance.random() < (0.2 if family == "equal" else 0.6):
            n_current = min(len(free), chance.randint(0, 2 * n_nodes // n_trainers))
        trainers.append(
            ProblemTrainer(
                trainer_id=f"t{j}",
                n_min=n_min,
                n_max=n_max,
                curve=shared if family in {"equal", "linear"} else _curve(family, chance),
                rescale_up_s=0.0 if family in {"free", "linear"} else 18.0,
                rescale_down_s=0.0 if family in {"free", "linear"} else 12.0,
                current=tuple(free[:n_current]),
                warm_up_s=chance.choice([0.0, 7.0]) if family == "warm" else 0.0,
            )
        )
        free = free[n_current:]
    return Problem(
        nodes=tuple(ProblemNode(name=name) for name in names),
        trainers=tuple(trainers),
        t_fwd_s=120.0,
        p_jmax=n_trainers,
    )


def _curve(family: str, chance: random.Random) -> Curve:
    if family == "linear":
        return Curve(sizes=SIZES, samples_per_s=tuple(0.1 * n for n in SIZES))
    if family == "spikes":
        rates = {1: 1.0}
        for n in SIZES[1:]:
            rates[n] = n * chance.uniform(0.8, 1.0)
            rates[n + 1] = rates[n] * chance.uniform(0.5, 0.9)
        return Curve(sizes=tuple(rates), samples_per_s=tuple(rates.values()))
    if family == "free":  # whole numbers: many ties
        return Curve(sizes=SIZES, samples_per_s=tuple(float(chance.randint(0, 9)) for _ in SIZES))
    power = chance.choice([0.8, 0.9, 0.95])
    return Curve(sizes=SIZES, samples_per_s=tuple(1000 * n**power for n in SIZES))


FAMILIES = ("mixed", "equal", "linear", "free", "gaps", "spikes", "parity", "warm")


def options_of(problem: Problem) -> Options:
    return build_options(problem, view_pool(problem))


def solve_at_price_searched(options: Options) -> PoolAnswer:
    """As when the slopes of the rows are not at hand."""
    return solve_sizes(replace(options, edges=None))


def assert_same(answer: PoolAnswer, dense: PoolAnswer, case: object) -> None:
    assert answer.sizes.tolist() == dense.sizes.tolist(), case
    assert answer.value == pytest.approx(dense.value, rel=1e-12)
    assert answer.value_of_one_more == pytest.approx(dense.value_of_one_more, rel=1e-12)


@pytest.mark.parametrize("seeds", [range(20), pytest.param(range(20, 60), marks=pytest.mark.long)])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("n_trainers", "n_nodes"), [(8, 61), (25, 240)])
def test_agrees_with_the_dense_program(
    family: str, n_trainers: int, n_nodes: int, seeds: range
) -> None:
    for seed in seeds:
        options = options_of(drawn(family, n_trainers, n_nodes, seed))
        assert options.price() is not None
        dense = solve_sizes(options, is_dense=True)
        assert_same(solve_sizes(options), dense, (family, seed))
        assert_same(solve_at_price_searched(options), dense, (family, seed))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_price_of_slopes_and_that_of_tangents_are_the_same(family: str) -> None:
    for seed in range(30):
        options = options_of(drawn(family, 15, 100, seed))
        searched = find_price(options.allowed[0], options.counts[0])
        assert options.price() == pytest.approx(searched, rel=1e-9, abs=1e-9), seed


@pytest.mark.parametrize(
    "limits",
    [
        {"search.MAX_WORK": 0},
        {"search.MAX_WORK": 0, "search.GATHERED_CELLS": 0},
        {"search.MAX_WORK": 0, "search.STORED_CELLS": 50},
        {"dual.FEW_CELLS": 0},
        {"dual.FEW_CELLS": 0, "dual.FIRST_GAP": 1e-3, "dual.GROWTH": 1.5},
    ],
    ids=["program", "slices", "program in little memory", "large", "tiny gaps"],
)
@pytest.mark.parametrize(
    "seeds", [range(100, 108), pytest.param(range(108, 125), marks=pytest.mark.long)]
)
def test_every_way_of_searching_gives_the_same(
    limits: dict[str, float], seeds: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, limit in limits.items():
        monkeypatch.setattr(f"milp.exact.{name}", limit)
    for seed in seeds:
        for family in FAMILIES:
            options = options_of(drawn(family, 15, 100, seed))
            assert_same(solve_sizes(options), solve_sizes(options, is_dense=True), (family, seed))


def test_large_problem_is_solved_in_little_memory_and_fills_the_pool() -> None:
    options = options_of(drawn("mixed", 300, 3000, 1))
    answer = solve_sizes(options)
    assert answer.sizes.tolist() == solve_sizes(options, is_dense=True).sizes.tolist()
    assert answer.sizes.sum() == 3000


# ---- value tables ------------------------------------------------------------------------


def varied(chance: random.Random) -> ProblemTrainer:
    def curve() -> Curve:
        sizes = sorted(chance.sample(range(1, 30), chance.randint(1, 6)))
        return Curve(sizes=tuple(sizes), samples_per_s=tuple(chance.random() + 0.1 for _ in sizes))

    n_min = chance.randint(1, 4)
    return ProblemTrainer(
        trainer_id=f"t{chance.random()}",
        n_min=n_min,
        n_max=n_min + chance.randint(0, 40),
        curve=curve(),
        rescale_up_s=18.3,
        rescale_down_s=11.7,
        current=tuple(f"c{chance.random()}" for _ in range(chance.choice([0, 1, 5]))),
        weight=chance.random(),
        warm_up_s=chance.choice([0.0, 6.5, 500.0]),
        utility=curve(),
    )


@pytest.mark.parametrize("objective", list(Objective))
def test_options_hold_the_value_tables_to_the_bit(objective: Objective) -> None:
    chance = random.Random(7)  # noqa: S311 - a test
    trainers = tuple(varied(chance) for _ in range(60))
    names = [f"n{i}" for i in range(33)] + [name for t in trainers for name in t.current]
    problem = Problem(
        nodes=tuple(ProblemNode(name=name) for name in names),
        trainers=trainers,
        t_fwd_s=119.9,
        p_jmax=len(trainers),
        objective=objective,
    )
    for _ in range(2):  # the second time the rows are remembered
        rows = options_of(problem).allowed[0]
        for j, trainer in enumerate(trainers):
            largest = min(trainer.n_max, len(names) + 1)
            table = value_table(
                trainer, len(trainer.current), largest, t_fwd_s=119.9, objective=objective
            )
            allowed = [0, *range(trainer.n_min, largest + 1)]
            assert rows[j, allowed].tolist() == table[allowed].tolist()
            assert not np.isfinite(np.delete(rows[j], allowed)).any()


def test_extras_at_zero_leave_the_table_as_it_was_to_the_bit() -> None:
    """Eq. 16 written out, beside a table of a trainer that spells every extra at zero."""
    chance = random.Random(5)  # noqa: S311 - a test
    for _ in range(100):
        trainer = replace(varied(chance), warm_up_s=0.0)
        n_present = len(trainer.current)
        sizes = np.arange(36)
        rate = np.interp(sizes, (0, *trainer.curve.sizes), (0.0, *trainer.curve.samples_per_s))
        expected = 119.9 * rate
        expected[:n_present] -= rate[n_present] * trainer.rescale_down_s
        expected[n_present + 1 :] -= rate[n_present] * trainer.rescale_up_s
        table = value_table(trainer, n_present, 35, t_fwd_s=119.9, objective=Objective.THROUGHPUT)
        assert table.tolist() == expected.tolist()
