"""The sizes against every combination of sizes, and against the dense program."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from milp.exact.column_data import FAR, TOLERANCE
from milp.exact.columns import Columns, build_columns, lay_out, solve_sizes, solve_sizes_dense
from milp.exact.worths import Worths, build_worths, is_small
from milp.pool import view_pool
from milp.problem import (
    BatchCurve,
    Curve,
    Objective,
    Problem,
    ProblemNode,
    ProblemTrainer,
)
from milp.tables import FloatArray, best_batch, rate_at, value_table

TINY = 20_000
MANY = 10**9  # more than there ever are
WIDTH = 5  # breakpoints of a tiny curve, with 0 and one far away


def tiny_columns(chance: random.Random) -> Columns:
    """Up to four trainers on up to nine nodes: gaps, ties, any curve, any C_j."""
    n_trainers = chance.choice([1, 2, 2, 3, 3, 4])
    n_nodes = chance.randint(0, 9 if n_trainers < 4 else 5)
    kind = chance.choice(["any", "whole", "tenths", "linear", "equal"])
    free = n_nodes
    rows: list[tuple[list[float], list[float], list[float]]] = []
    for _ in range(n_trainers):
        if kind == "equal" and rows:
            sizes, rates, numbers = (list(part) for part in rows[0])
            n_min, n_max = numbers[0], numbers[1]
        else:
            sizes = [0.0, *sorted(map(float, chance.sample(range(1, 9), chance.randint(1, 3))))]
            rates = [0.0, *(_rate(chance, kind, n) for n in sizes[1:])]
            n_min = float(chance.choice([1, 1, 2, 3, 5]))
            n_max = min(n_min + chance.choice([0, 0, 2, 5, 8]), n_nodes + 1.0)
        present = chance.randint(0, free) if chance.random() < 0.6 else 0
        free -= present
        held = float(np.interp(present, sizes, rates))
        ups, downs = chance.choice([0.0, 1.0, 2.5, 20.0]), chance.choice([0.0, 1.0, 10.0])
        rows.append((sizes, rates, [n_min, n_max, present, held * ups, held * downs]))
    knots = np.full((n_trainers, WIDTH), FAR)
    rates_by_row = np.empty((n_trainers, WIDTH))
    for j, (sizes, rates, _) in enumerate(rows):
        knots[j, : len(sizes)] = sizes
        rates_by_row[j, : len(rates)] = rates
        rates_by_row[j, len(rates) :] = rates[-1]
    n_min, n_max, present, up, down = np.array([numbers for _, _, numbers in rows]).T
    t_fwd_s = chance.choice([0.0, 1.0, 5.0, 120.0])
    return lay_out(
        capacity=n_nodes,
        seconds=np.full(n_trainers, t_fwd_s),
        knots=knots,
        rates=rates_by_row,
        scale=np.ones(n_trainers) if kind != "any" else np.array([chance.random() for _ in rows]),
        n_min=n_min,
        n_max=n_max,
        present=present,
        loss_up=up,
        loss_down=down,
    )


def _rate(chance: random.Random, kind: str, size: float) -> float:
    if kind == "linear":
        return chance.choice([0.1, 0.3, 1.0]) * size
    if kind == "any":
        return chance.random() * size
    whole = chance.randint(0, 60)
    return 0.1 * whole if kind == "tenths" else float(whole // 10)


def table_of(columns: Columns, j: int, width: int) -> FloatArray:
    """v_j of sizes 0..width-1, written down once more."""
    sizes = np.arange(width, dtype=np.float64)
    bends = columns.knots[j] < FAR
    rates = np.interp(sizes, columns.knots[j][bends], columns.rates[j][bends])
    values: FloatArray = columns.seconds[j] * columns.scale[j] * rates
    values[sizes > columns.present[j]] -= columns.loss_up[j]
    values[sizes < columns.present[j]] -= columns.loss_down[j]
    values[(sizes > 0) & ((sizes < columns.n_min[j]) | (sizes > columns.n_max[j]))] = -np.inf
    return values


def try_all_sizes(columns: Columns) -> tuple[float, float, tuple[int, ...]]:
    """Best value, best value with one node more, and the sizes the tie rule picks."""
    width, n_trainers = columns.capacity + 2, len(columns.present)
    shape = (width,) * n_trainers
    value, used, rescales = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    for j in range(n_trainers):
        axis = [-1 if i == j else 1 for i in range(n_trainers)]
        sizes = np.arange(width)
        value = value + table_of(columns, j, width).reshape(axis)
        used = used + sizes.reshape(axis)
        rescales = rescales + (sizes != columns.present[j]).reshape(axis)
    best_of_larger = float(value[used <= columns.capacity + 1].max())
    value[used > columns.capacity] = -np.inf
    best = float(value.max())
    scale = 1.0 + float(np.abs(value[np.isfinite(value)]).max())
    tied = value >= best - 1e-10 * scale
    tied &= rescales == rescales[tied].min()
    # Of what is left in C order the last one has the largest sizes of the first trainers.
    last = int(np.flatnonzero(tied)[-1])
    return best, best_of_larger, tuple(int(n) for n in np.unravel_index(last, shape))


def worths_of(columns: Columns) -> Worths:
    """The same trainers as one table; the steps of a row are found edge by edge."""
    allowed = np.pad(
        columns.tables(np.arange(len(columns.present))), ((0, 0), (0, 1)), constant_values=-np.inf
    )
    falls: list[float] = []
    lengths: list[int] = []
    for row in allowed.tolist():
        at = 0
        while True:
            slopes = [(row[n] - row[at]) / (n - at) for n in range(at + 1, len(row))]
            if max(slopes, default=0.0) <= 0:
                break
            length = 1 + slopes.index(max(slopes))
            falls.append(-max(slopes))
            lengths.append(length)
            at += length
    magnitude = np.abs(np.where(np.isfinite(allowed), allowed, 0.0)).max(axis=1)
    return Worths(
        capacity=columns.capacity,
        present=columns.present,
        allowed=allowed,
        falls=np.array(falls),
        lengths=np.array(lengths, dtype=np.int64),
        tolerance=TOLERANCE * float(magnitude.sum()) or 1.0,
    )


def test_is_the_best_of_all_sizes_of_many_tiny_problems() -> None:
    chance = random.Random(3)  # noqa: S311 - a test
    for trial in range(TINY):
        columns = tiny_columns(chance)
        best, best_of_larger, sizes = try_all_sizes(columns)
        near = 1e-9 * (1 + abs(best) + abs(best_of_larger))
        answers = [solve_sizes(columns)]
        if trial % 4 == 0:
            answers.append(solve_sizes(worths_of(columns)))
        for answer in answers:
            assert tuple(answer.sizes.tolist()) == sizes, (trial, columns)
            assert abs(answer.value - best) <= near, (trial, columns)
            assert abs(answer.value_of_one_more - best_of_larger) <= near, (trial, columns)


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


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("n_trainers", "n_nodes"), [(8, 61), (25, 240)])
def test_agrees_with_the_dense_program(family: str, n_trainers: int, n_nodes: int) -> None:
    for seed in range(30):
        columns = build_columns(drawn(family, n_trainers, n_nodes, seed))
        answer, dense = solve_sizes(columns), solve_sizes_dense(columns)
        assert answer.sizes.tolist() == dense.sizes.tolist(), (family, seed)
        assert answer.value == pytest.approx(dense.value, rel=1e-12)
        assert answer.value_of_one_more == pytest.approx(dense.value_of_one_more, rel=1e-12)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("n_trainers", "n_nodes"), [(8, 61), (25, 240)])
def test_a_table_of_values_gives_the_same(family: str, n_trainers: int, n_nodes: int) -> None:
    for seed in range(30, 60):
        problem = drawn(family, n_trainers, n_nodes, seed)
        pool = view_pool(problem)
        largest = [pool.largest(j, 0, extra=1) for j in range(n_trainers)]
        assert is_small(pool, largest)
        answer = solve_sizes(build_worths(problem, pool, largest))
        dense = solve_sizes_dense(build_columns(problem))
        assert answer.sizes.tolist() == dense.sizes.tolist(), (family, seed)
        assert answer.value == pytest.approx(dense.value, rel=1e-12)
        assert answer.value_of_one_more == pytest.approx(dense.value_of_one_more, rel=1e-12)


@pytest.mark.parametrize(
    "limits",
    [
        {"near.MANY_SIZES": 1, "near.SMALL_CELLS": 0},  # bounds on detours everywhere
        {
            "core.FEW_CHOICES": 0,
            "near.MANY_SIZES": MANY,
            "near.MANY_TRAINERS": MANY,
        },  # the program everywhere
        {
            "core.FEW_CHOICES": 0,
            "core.STORED_CELLS": 50,
            "near.MANY_SIZES": MANY,
            "near.MANY_TRAINERS": MANY,
        },
        {"few.MAX_WORK": 0, "core.FEW_CHOICES": 0},  # the program over a table
        {"near.SMALL_CELLS": 0},  # no tables: what ties first
        {"near.SMALL_CELLS": 0, "core.FEW_CHOICES": 0, "near.MANY_SIZES": MANY},
    ],
    ids=["detours", "program", "program in little memory", "tables", "ties", "large"],
)
def test_every_way_of_searching_gives_the_same(
    limits: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, limit in limits.items():
        monkeypatch.setattr(f"milp.exact.{name}", limit)
    for seed in range(100, 125):
        for family in FAMILIES:
            problem = drawn(family, 15, 100, seed)
            pool, columns = view_pool(problem), build_columns(problem)
            worths = build_worths(problem, pool, columns.n_max.astype(np.int64).tolist())
            dense = solve_sizes_dense(columns)
            for answer in (solve_sizes(columns), solve_sizes(worths)):
                assert answer.sizes.tolist() == dense.sizes.tolist(), (family, seed)
                more = pytest.approx(dense.value_of_one_more, rel=1e-12)
                assert answer.value_of_one_more == more


def test_large_problem_is_solved_in_little_memory_and_fills_the_pool() -> None:
    problem = drawn("mixed", 300, 3000, 1)
    columns = build_columns(problem)
    answer = solve_sizes(columns)
    assert answer.sizes.tolist() == solve_sizes_dense(columns).sizes.tolist()
    assert answer.sizes.sum() == 3000


# ---- value tables ------------------------------------------------------------------------


def varied(chance: random.Random) -> ProblemTrainer:
    def curve() -> Curve:
        sizes = sorted(chance.sample(range(1, 30), chance.randint(1, 6)))
        return Curve(sizes=tuple(sizes), samples_per_s=tuple(chance.random() + 0.1 for _ in sizes))

    batches = tuple(
        BatchCurve(global_batch=32 * (i + 1), curve=curve())
        for i in range(chance.choice([0, 1, 3]))
    )
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
        batch_curves=batches,
        current_batch=chance.choice([None, *(batch.global_batch for batch in batches)]),
    )


@pytest.mark.parametrize("objective", list(Objective))
def test_columns_hold_the_value_tables_to_the_bit(objective: Objective) -> None:
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
    columns = build_columns(problem)
    rows = columns.tables(np.arange(len(trainers)))
    candidate_values = columns.candidate_values()
    for j, trainer in enumerate(trainers):
        largest = min(trainer.n_max, len(names) + 1)
        table = value_table(
            trainer, len(trainer.current), largest, t_fwd_s=119.9, objective=objective
        )
        allowed = [0, *range(trainer.n_min, largest + 1)]
        assert rows[j, allowed].tolist() == table[allowed].tolist()
        assert not np.isfinite(np.delete(rows[j], allowed)).any()
        for m in np.flatnonzero(~columns.barred[j]):
            assert candidate_values[j, m] == table[int(columns.candidates[j, m])]
    for size in range(1, 30):
        sizes = [min(t.n_max, size) for t in trainers]
        expected = [
            value_table(t, len(t.current), n, t_fwd_s=119.9, objective=objective)[n]
            for t, n in zip(trainers, sizes, strict=True)
        ]
        assert columns.values_at(np.array(sizes, dtype=np.float64)).tolist() == expected


def test_best_batch_is_the_best_curve_at_every_size() -> None:
    chance = random.Random(11)  # noqa: S311 - a test
    for _ in range(200):
        trainer = varied(chance)
        if not trainer.batch_curves:
            continue
        table = value_table(
            replace(trainer, warm_up_s=0.0), 0, 40, t_fwd_s=1.0, objective=Objective.THROUGHPUT
        )
        for size in range(1, 41):
            rates = {b.global_batch: rate_at(b.curve, size) for b in trainer.batch_curves}
            best = best_batch(trainer, size)
            assert best == min(b for b, rate in rates.items() if rate == max(rates.values()))
            assert table[size] == pytest.approx(rates[best], rel=1e-12)


def test_extras_at_zero_leave_the_table_as_it_was_to_the_bit() -> None:
    """Eq. 16 written out, beside a table of a trainer that spells every extra at zero."""
    chance = random.Random(5)  # noqa: S311 - a test
    for _ in range(100):
        trainer = replace(varied(chance), batch_curves=(), current_batch=None, warm_up_s=0.0)
        n_present = len(trainer.current)
        sizes = np.arange(36)
        rate = np.interp(sizes, (0, *trainer.curve.sizes), (0.0, *trainer.curve.samples_per_s))
        expected = 119.9 * rate
        expected[:n_present] -= rate[n_present] * trainer.rescale_down_s
        expected[n_present + 1 :] -= rate[n_present] * trainer.rescale_up_s
        table = value_table(trainer, n_present, 35, t_fwd_s=119.9, objective=Objective.THROUGHPUT)
        assert table.tolist() == expected.tolist()
