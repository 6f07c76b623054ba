"""Random allocation problems with the solver's answers, to be frozen.

From the strategy of the property tests, whose rates make ties, and from the benchmarks'
generator, small and large.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings

from milp.check import check
from milp.codec import problem_to_dict
from milp.problem import Problem, ProblemNode, ProblemTrainer
from milp.solve import solve
from tests.support.drawn_problems import FAMILIES, draw_problem, draw_small
from tests.support.frozen.lines import Plain, write
from tests.support.problems import problems

KINDS: Mapping[str, Mapping[str, Any]] = {  # of the property tests' problems
    "one-class": {"max_nodes": 8, "max_trainers": 5},
    "classes": {"classes": "ab"},
    "mixes": {"classes": "ab", "mixes": True},
    "extras": {"extras": True},
}
CLASSES = ("a", "ab", "abc")
SIZES = ((5, 20), (10, 60), (30, 200))  # trainers and nodes


def record(target: Path, per_kind: int, first_seed: int) -> None:
    """Freeze so many problems of each kind, and one of each family and size."""
    cases = [_case(name, problem) for name, problem in _drawn(per_kind, first_seed)]
    write(target, {"problems": len(cases), "seed": first_seed}, cases)


def _drawn(per_kind: int, first_seed: int) -> Iterator[tuple[str, Problem]]:
    for kind, options in KINDS.items():
        for number, problem in enumerate(_of_property_tests(per_kind, first_seed, options)):
            yield f"{kind}-{number}", problem
    for classes, extras in itertools.product(CLASSES, (False, True)):
        kind = f"small-{classes}{'-extras' if extras else ''}"
        for number in range(first_seed, first_seed + per_kind):
            yield f"{kind}-{number}", draw_small(number, classes=classes, extras=extras)
    for family, (n_trainers, n_nodes) in itertools.product(FAMILIES, SIZES):
        name = f"{family.replace(' ', '-')}-{n_trainers}-{n_nodes}"
        yield name, draw_problem(n_trainers, n_nodes, family, first_seed)


def _of_property_tests(count: int, first_seed: int, options: Mapping[str, Any]) -> list[Problem]:
    """Draw different problems, of some nodes and trainers each."""
    found: dict[Problem, None] = {}

    @seed(first_seed)
    @settings(
        max_examples=4 * count,
        database=None,
        phases=[Phase.generate],
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(problem=problems(**options))
    def draw(problem: Problem) -> None:
        if problem.nodes and problem.trainers:
            found[problem] = None

    draw()
    return list(found)[:count]


def _case(name: str, problem: Problem) -> Plain:
    allocation = solve(problem)
    check(problem, allocation)
    return {
        "id": name,
        "problem": _short(problem),
        "objective": allocation.objective,
        "gap": allocation.gap,
        "sizes": dict(sorted(allocation.sizes().items())),
    }


def _short(problem: Problem) -> Plain:
    """Return it without what is at its default: a deleted feature then spoils its own cases."""
    plain = problem_to_dict(problem)
    plain["nodes"] = [_but_usual(node, ProblemNode) for node in plain["nodes"]]
    plain["trainers"] = [_but_usual(trainer, ProblemTrainer) for trainer in plain["trainers"]]
    return _but_usual(plain, Problem)


def _but_usual(plain: Plain, cls: Any) -> Plain:
    usual: Plain = {f.name: [] if f.default == () else f.default for f in fields(cls)}
    return {key: value for key, value in plain.items() if value != usual[key]}
