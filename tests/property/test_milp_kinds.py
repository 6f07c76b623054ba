"""Trainers of several widths: sizes found without HiGHS against every way, models and HiGHS."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import milp.classes
import milp.exact.kinds
from milp.check import find_violations
from milp.exact.kinds import KindValues, solve_kinds
from milp.pool import view_pool
from milp.problem import Cap, Problem, ProblemNode, ProblemTrainer
from milp.reference.backends import ModelStatus, SolveOptions, load_backend
from milp.reference.node_model import build_node_model
from milp.solve import solve
from milp.supply import Chain, chain_of
from milp.tables import FloatArray, rising_edges
from tests.support.host_problems import best_by_trying
from tests.support.mixed_widths import draw_mixed, draw_site

CLOSE = 1e-7  # relative to the worth


def exact(problem: Problem) -> float:
    answer = solve(problem)
    assert find_violations(problem, answer) == []
    assert answer.gap == 0.0
    return answer.objective


def by_highs(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> float:
    """Return the worth of the answer of HiGHS over sizes."""
    with monkeypatch.context() as patch:
        patch.setattr(milp.classes, "chain_of", lambda _: None)
        return exact(problem)


def by_the_papers_model(problem: Problem) -> float:
    """Return the worth of the answer of HiGHS over nodes."""
    answer = load_backend("highs")(build_node_model(problem).model, SolveOptions())
    assert answer.status is ModelStatus.OPTIMAL
    return answer.objective


def differing_from_every_way(seeds: range, most_hosts: int = 3) -> list[tuple[int, float, float]]:
    """Return seeds on which the best of every way, or that of the paper's model, is another."""
    rows = []
    for seed in seeds:
        problem = draw_mixed(seed, most_hosts=most_hosts)
        ours, others = exact(problem), [best_by_trying(problem)]
        if not any(trainer.warm_up_s for trainer in problem.trainers):
            others.append(by_the_papers_model(problem))
        rows += [
            (seed, ours, other)
            for other in others
            if not math.isclose(ours, other, rel_tol=CLOSE, abs_tol=CLOSE)
        ]
    return rows


def differing_from_highs(
    problems: list[Problem], monkeypatch: pytest.MonkeyPatch
) -> list[tuple[int, float, float]]:
    pairs = [(exact(problem), by_highs(problem, monkeypatch)) for problem in problems]
    return [
        (at, ours, other)
        for at, (ours, other) in enumerate(pairs)
        if not math.isclose(ours, other, rel_tol=CLOSE, abs_tol=CLOSE)
    ]


@pytest.mark.parametrize("start", [0, 20])
def test_the_answer_is_the_best_of_every_way(start: int) -> None:
    assert differing_from_every_way(range(start, start + 20), most_hosts=2) == []


@pytest.mark.long
@pytest.mark.parametrize("start", range(10_000, 11_200, 200))
def test_many_answers_are_the_best_of_every_way(start: int) -> None:
    assert differing_from_every_way(range(start, start + 200)) == []


def test_highs_finds_nothing_better(monkeypatch: pytest.MonkeyPatch) -> None:
    problems = [draw_mixed(seed, most_hosts=12, most_trainers=20) for seed in range(40)]
    problems += [
        draw_site(seed, n_hosts=40, n_trainers=24, n_corners=4 * seed) for seed in range(1, 4)
    ]
    assert differing_from_highs(problems, monkeypatch) == []


@pytest.mark.long
def test_highs_finds_nothing_better_on_many(monkeypatch: pytest.MonkeyPatch) -> None:
    problems = [draw_mixed(seed, most_hosts=12, most_trainers=20) for seed in range(1000, 2000)]
    problems += [
        draw_site(seed, n_hosts=100, n_trainers=60, n_corners=1 + seed % 12) for seed in range(40)
    ]
    assert differing_from_highs(problems, monkeypatch) == []


def test_highs_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(milp.classes, "_Model")
    problem = draw_site(0, n_hosts=40, n_trainers=24, n_corners=4)
    assert len(view_pool(problem).names) == 4
    exact(problem)


def test_caps_are_left_to_highs_only_where_they_bind(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = draw_site(0, n_hosts=20, n_trainers=12, n_corners=4)
    answer = solve(problem)
    sizes = answer.unit_sizes(problem)
    names = tuple([trainer.trainer_id for trainer in problem.trainers[:5]])
    n_units = sum([sizes.get(name, 0) for name in names])

    def capped(most: int) -> Problem:
        return replace(problem, caps=(Cap(name="user", trainers=names, most=most),))

    assert exact(capped(n_units - 1)) < answer.objective
    monkeypatch.delattr(milp.classes, "_Model")
    assert exact(capped(n_units)) == answer.objective


def test_what_would_take_too_long_is_left_to_highs(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = draw_site(0, n_hosts=20, n_trainers=12, n_corners=4)
    best = exact(problem)
    monkeypatch.setattr(milp.exact.kinds, "MOST_WORK", 10)
    asked: list[object] = []
    model = milp.classes._Model

    def build(*given: Any) -> object:
        asked.append(given)
        return model(*given)

    monkeypatch.setattr(milp.classes, "_Model", build)
    assert exact(problem) == pytest.approx(best, rel=CLOSE)
    assert asked


# ---- tables instead of hosts -------------------------------------------------------------------


def drawn_kinds(chance: random.Random) -> tuple[list[KindValues], Chain]:
    """Draw small whole values, of which many are equal."""
    n_kinds = chance.randint(1, 3)
    gpus = sorted(chance.sample([1, 2, 4], n_kinds), reverse=True)
    hosts = [chance.randint(0, 5) for _ in range(2)]
    most = [sum([n_free // width for n_free in hosts]) for width in gpus]
    base = [chance.randint(0, 2) for _ in gpus]
    kinds: list[KindValues] = []
    for _ in gpus:
        rows = [_drawn_row(chance) for _ in range(chance.randint(1, 2))]
        edges = [
            edge
            for row in rows
            for edge in rising_edges([(n, v) for n, v in enumerate(row) if v > -math.inf])
        ]
        kinds.append(
            KindValues(
                values=np.array(rows),
                current=np.array([chance.randint(0, 3) for _ in rows]),
                edges=np.array(edges, dtype=np.float64).reshape(-1, 2).T,
            )
        )
    return kinds, Chain(kinds=list(range(n_kinds)), gpus=gpus, base=base, most=most)


def _drawn_row(chance: random.Random) -> list[float]:
    return [float(chance.randint(-1, 1))] + [
        chance.choice([-math.inf, *map(float, range(5))]) for _ in range(4)
    ]


def best_units(kinds: list[KindValues], chain: Chain) -> tuple[float, int, list[int]]:
    """Return value, rescales and units by kind of the best sizes, all being tried."""
    tables: list[tuple[FloatArray, int, int]] = [
        (row, int(current), i)
        for i, kind in enumerate(kinds)
        for row, current in zip(kind.values, kind.current, strict=True)
    ]
    best = (-math.inf, 0, list[int]())
    for sizes in itertools.product(*[range(len(row)) for row, _, _ in tables]):
        units = [0] * len(kinds)
        for size, (_, _, i) in zip(sizes, tables, strict=True):
            units[i] += size
        pairs = list(zip(sizes, tables, strict=True))
        value = sum([row[size] for size, (row, _, _) in pairs])
        n_same = sum([size == current for size, (_, current, _) in pairs])
        if fits(units, chain):
            best = max(best, (float(value), n_same, units))
    return best


def fits(units: list[int], chain: Chain) -> bool:
    n_gpus = 0
    for n, base, gpus, most in zip(units, chain.base, chain.gpus, chain.most, strict=True):
        n_gpus += gpus * max(n - base, 0)
        if n_gpus > gpus * most:
            return False
    return True


@pytest.mark.parametrize("seed", range(60))
def test_of_equal_answers_few_rescale_and_wide_units_come_first(seed: int) -> None:
    kinds, chain = drawn_kinds(random.Random(seed))  # noqa: S311 - a test
    answer = solve_kinds(kinds, chain, 1e-9)
    assert answer is not None
    _, _, units = best_units(kinds, chain)
    assert answer.n_units == units


# ---- which kinds are a chain -------------------------------------------------------------------


def free(host: str, count: int, host_width: int, **fields: object) -> list[ProblemNode]:
    node = ProblemNode(name="", host=host, host_width=host_width, **fields)  # type: ignore[arg-type]
    return [replace(node, name=f"{host}/{i}") for i in range(count)]


def asking(*widths: int) -> tuple[ProblemTrainer, ...]:
    one = draw_mixed(0).trainers[0]
    return tuple(
        [
            replace(one, trainer_id=f"t{j}", current=(), settled=(), width=width)
            for j, width in enumerate(widths)
        ]
    )


@pytest.mark.parametrize(
    ("nodes", "widths", "chain"),
    [
        (free("h1", 8, 8), (1, 8), ([8, 1], [1, 8])),
        (free("h1", 8, 8) + free("h2", 3, 8), (1, 2, 0), ([8, 2, 1], [1, 5, 11])),
        (free("h1", 8, 8), (2, 3), None),  # 3 is no multiple of 2
        (free("h1", 1, 1) + free("h2", 2, 8), (0, 2), None),  # a whole host is less than a unit
        (free("h1", 8, 8) + free("h2", 4, 4), (0, 1), None),  # whole hosts of two sizes
        (free("h1", 8, 8) + free("h2", 4, 4, eligibility="b"), (1, 2), None),  # two classes
        (
            [*free("h1", 8, 8), *free("h2", 1, 8, width=8, has_pilot=True)],
            (0, 8),
            None,  # a part that both want
        ),
    ],
)
def test_kinds_that_divide_each_other_are_a_chain(
    nodes: list[ProblemNode], widths: tuple[int, ...], chain: tuple[list[int], list[int]] | None
) -> None:
    problem = Problem(nodes=tuple(nodes), trainers=asking(*widths), t_fwd_s=1.0, p_jmax=len(widths))
    found = chain_of(view_pool(problem))
    assert (None if found is None else (found.gpus, found.most)) == chain


def test_most_problems_drawn_are_chains() -> None:
    pools = [view_pool(draw_mixed(seed)) for seed in range(100)]
    assert len([pool for pool in pools if chain_of(pool)]) > 90
