"""The solver against a second reading of the problem, which imports nothing of it."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from milp.check import find_violations
from milp.codec import problem_to_dict
from milp.problem import (
    Allocation,
    Cap,
    Curve,
    Objective,
    Problem,
    ProblemError,
    ProblemNode,
    ProblemTrainer,
)
from milp.solve import solve
from tests.support.examples import examples
from tests.support.problems import problems
from tests.support.second_model import best_worth

SOME = problems(max_nodes=9, max_trainers=5, extras=True, sets=True, caps=True)
CLASSES = problems(max_nodes=9, max_trainers=4, classes="abc", extras=True, caps=True, musts=True)


@settings(max_examples=examples(250), deadline=None)
@given(st.one_of(SOME, CLASSES))
def test_both_find_the_same_worth(problem: Problem) -> None:
    best = best_worth(problem_to_dict(problem))
    answer = _answer(problem)
    if answer is None:
        assert math.isnan(best)
        return
    curves = [c for t in problem.trainers for c in (t.curve, t.utility) if c is not None]
    slack = 1e-6 * (1.0 + 125.0 * sum([sum(curve.samples_per_s) for curve in curves]))
    assert answer.objective <= best + slack
    assert best <= answer.objective + answer.gap + slack


def _answer(problem: Problem) -> Allocation | None:
    """Return the answer; None: those that must run cannot."""
    try:
        return solve(problem)
    except ProblemError as refused:
        if refused.code != "BFT-1542":
            raise
        return None


# ---- a thousand problems, curves of every kind -----------------------------------------------

KINDS = ("linear", "concave", "flat", "stepped", "superlinear", "falling", "wild")
OF_EACH, LONG_OF_EACH = 12, 143  # 7 * 143 = 1,001


def _rates(chance: random.Random, kind: str, sizes: list[int]) -> tuple[float, ...]:
    """Return samples per second at these sizes."""
    alone, serial = chance.uniform(0.5, 2000.0), chance.uniform(0.02, 0.5)
    by_kind: dict[str, Callable[[int], float]] = {
        "linear": lambda n: n,
        "concave": lambda n: 1.0 / (serial + (1.0 - serial) / n),  # Amdahl
        "flat": lambda n: 1.0 if n == 1 else 1.0 + serial,
        "stepped": lambda n: 1.0 + n // 3,
        "superlinear": lambda n: n ** (1.0 + serial),
        "falling": lambda n: 1.0 / n,
        "wild": lambda n: chance.uniform(0.1, 1.0) * n,
    }
    return tuple(alone * by_kind[kind](n) for n in sizes)


def _of_kind(seed: int, kind: str) -> Problem:
    """Return a problem: of the kind, but for one trainer in four; half have caps or classes."""
    chance = random.Random(f"{kind} {seed}")  # noqa: S311 - no secret
    classes = chance.choice(["a", "a", "ab", "abc"])
    nodes = [
        ProblemNode(name=f"n{k}", eligibility=chance.choice(classes))
        for k in range(chance.randint(1, 12))
    ]
    free, trainers = chance.sample(nodes, len(nodes)), []
    for j in range(chance.randint(1, 6)):
        sizes = sorted(chance.sample(range(1, 13), chance.randint(1, 6)))
        own_kind = kind if chance.random() < 0.75 else chance.choice(KINDS)
        accepted = chance.choice(classes)
        own = [node for node in free if node.eligibility == accepted][: chance.randint(0, 4)]
        free = [node for node in free if node not in own]
        names = tuple(node.name for node in own)
        n_min = chance.randint(1, 3)
        trainers.append(
            ProblemTrainer(
                trainer_id=f"t{j}",
                n_min=n_min,
                n_max=n_min + chance.randint(0, 9),
                curve=Curve(sizes=tuple(sizes), samples_per_s=_rates(chance, own_kind, sizes)),
                rescale_up_s=chance.choice([0.0, 0.3, 18.0, 110.0, 400.0]),
                rescale_down_s=chance.choice([0.0, 0.2, 30.0]),
                warm_up_s=chance.choice([0.0, 5.0, 45.0, 300.0]),
                current=names,
                settled=names,
                eligible=(accepted,),
            )
        )
    ids = [trainer.trainer_id for trainer in trainers]
    caps = [
        Cap(
            name=f"cap {k}",
            trainers=tuple(sorted(chance.sample(ids, chance.randint(1, len(ids))))),
            most=chance.randint(1, len(nodes)),
        )
        for k in range(chance.choice([0, 0, 1, 2]))
    ]
    return Problem(
        nodes=tuple(nodes),
        trainers=tuple(trainers),
        t_fwd_s=chance.choice([10.0, 120.0, 1200.0]),
        p_jmax=chance.randint(1, len(trainers)),
        objective=chance.choice([Objective.SCALING_EFFICIENCY, Objective.THROUGHPUT]),
        caps=tuple(caps),
    )


@pytest.mark.parametrize(
    ("kind", "seeds"),
    [(kind, range(OF_EACH)) for kind in KINDS]
    + [
        pytest.param(kind, range(1000, 1000 + LONG_OF_EACH), marks=pytest.mark.long)
        for kind in KINDS
    ],
)
def test_on_curves_of_every_kind_both_find_the_same_worth(kind: str, seeds: range) -> None:
    off = []
    for seed in seeds:
        problem = _of_kind(seed, kind)
        best, answer = best_worth(problem_to_dict(problem)), solve(problem)
        slack = 1e-6 * (1.0 + abs(best))
        if not answer.objective - slack <= best <= answer.objective + answer.gap + slack:
            off.append((seed, best, answer.objective, answer.gap))
    assert off == []


# ---- caps that cross, on irregular curves ----------------------------------------------------

SIZES = (1, 2, 4, 8, 16, 32, 64)


def _crossing(chance: random.Random, n_trainers: int, n_nodes: int, kinds: str) -> Problem:
    """Users and accounts that cross, with caps near or below what their trainers have."""
    nodes = [ProblemNode(name=f"n{k}", eligibility=chance.choice(kinds)) for k in range(n_nodes)]
    free, trainers = chance.sample(nodes, n_nodes), []
    for j in range(n_trainers):
        alone, kind = chance.uniform(100.0, 10_000.0), chance.choice(kinds)
        rates = {
            "wild": [alone * chance.uniform(0.2, 1.2) * n ** chance.uniform(0, 0.8) for n in SIZES],
            "steps": [alone * (n // 4 + 0.5) * chance.uniform(0.9, 1.1) for n in SIZES],
        }[chance.choice(["wild", "steps"])]
        own = [node for node in free if node.eligibility == kind][: chance.choice([0, 0, 4, 12])]
        free = [node for node in free if node not in own]
        names = tuple(node.name for node in own)
        trainers.append(
            ProblemTrainer(
                trainer_id=f"t{j}",
                n_min=chance.choice([1, 1, 2, 4]),
                n_max=64,
                curve=Curve(sizes=SIZES, samples_per_s=tuple(rates)),
                rescale_up_s=chance.choice([0.5, 18.0, 60.0]),
                rescale_down_s=0.5,
                warm_up_s=chance.choice([0.0, 5.0]),
                current=names,
                settled=names,
                eligible=chance.choice([(), (kind,)]),
            )
        )
    n_users, n_accounts = n_trainers // 4, n_trainers // 6
    groups: dict[str, list[ProblemTrainer]] = {}
    for j, trainer in enumerate(trainers):
        groups.setdefault(f"user {j % n_users}", []).append(trainer)
        groups.setdefault(f"account {(j // n_users + j) % n_accounts}", []).append(trainer)
    caps = []
    for name, members in groups.items():
        held = sum(len(trainer.current) for trainer in members)
        share = n_nodes // (n_users if name.startswith("user") else n_accounts)
        most = max(2, chance.randint(held // 2, held + share))
        caps.append(Cap(name=name, trainers=tuple(t.trainer_id for t in members), most=most))
    return Problem(
        nodes=tuple(nodes),
        trainers=tuple(trainers),
        t_fwd_s=120.0,
        p_jmax=n_trainers,
        caps=tuple(caps),
    )


@pytest.mark.parametrize(
    ("seed", "n_trainers", "n_nodes", "kinds"),
    [
        (1, 20, 100, "a"),
        (2, 20, 100, "ab"),
        pytest.param(3, 24, 200, "a", marks=pytest.mark.long),
        pytest.param(4, 24, 200, "abc", marks=pytest.mark.long),
        pytest.param(5, 50, 500, "a", marks=pytest.mark.long),
        pytest.param(6, 50, 500, "ab", marks=pytest.mark.long),
    ],
)
def test_under_crossing_caps_little_is_missed(
    seed: int, n_trainers: int, n_nodes: int, kinds: str
) -> None:
    problem = _crossing(random.Random(seed), n_trainers, n_nodes, kinds)  # noqa: S311 - no secret
    answer = solve(problem)
    assert find_violations(problem, answer) == []
    best = best_worth(problem_to_dict(problem), most_s=600.0)
    assert answer.objective >= 0.995 * best
    assert best <= answer.objective + answer.gap + 1e-6 * best
    freely = replace(problem, caps=())
    assert solve(freely).objective >= answer.objective
