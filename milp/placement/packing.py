"""The hosts whose free GPUs become units, when it is decided how many of each width there are.

``pack`` takes the free hosts and how many units of each kind are made of them, and returns by kind
how many of which host. Units of whole hosts go first, then wide ones before narrow ones. Each goes
to a partly used host before a wholly free one, to the host with fewest free GPUs among these, then
to one on which a trainer that wants such units has some already, then to that which stays free
longest. Where each width divides the next larger one this always comes out; where it does not, or
where parts with a pilot are contended, ``plan`` solves the rows of ``milp.supply`` for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import highspy
import numpy as np

from milp.highs import new_highs
from milp.hosts import WHOLE, FreeHost, HostGroup, PartKind, UnitKind
from milp.pool import PoolView
from milp.problem import ProblemError
from milp.supply import Arc, Supply

Carved: TypeAlias = dict[UnitKind, list[tuple[int, int]]]  # index of a host, units of it
Pattern: TypeAlias = tuple[int, ...]  # widths that one host is filled with


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitPlan:
    """A way in which the units of all kinds come about."""

    keeps: dict[tuple[int, int], dict[PartKind, int]]  # by j and k: contended parts it keeps
    serves: dict[tuple[PartKind, int], int]  # contended parts that serve kind k
    patterns: dict[tuple[str, HostGroup], list[Pattern]]  # of a class's hosts that are filled


NO_PLAN = UnitPlan(keeps={}, serves={}, patterns={})


def pack(
    free: Sequence[FreeHost],
    wanted: Mapping[UnitKind, int],
    liked: Mapping[UnitKind, Collection[str]],
    remaining_s: Sequence[float],
) -> Carved | None:
    """Return by kind how many units are made of which host; None: not all fit this way.

    Args:
        free: hosts with free GPUs.
        wanted: how many units of each kind.
        liked: hosts on which trainers that want such units have some.
        remaining_s: how long the GPUs of the host with this index are expected to stay free.
    """
    carved: Carved = {}
    left = [len(names) for *_, names in free]
    by_class: dict[str, list[int]] = {}
    for index, (_, eligibility, _, _) in enumerate(free):
        by_class.setdefault(eligibility, []).append(index)
    # Whole hosts, then the widest.
    for kind in sorted(wanted, key=lambda kind: (kind.width != WHOLE, -kind.width)):
        missing, liking, own = wanted[kind], liked.get(kind, ()), carved.setdefault(kind, [])
        ranks: dict[tuple[bool, int, bool], list[int]] = {}
        for index in by_class.get(kind.eligibility, ()):
            (host, _, host_width, _), n_left = free[index], left[index]
            if n_left >= (kind.width or host_width):
                rank = n_left == host_width, n_left, host not in liking
                ranks.setdefault(rank, []).append(index)
        for _, indices in sorted(ranks.items()):
            if not missing:
                break
            indices.sort(key=remaining_s.__getitem__, reverse=True)
            for index in indices:
                width = kind.width or free[index].host_width
                n_taken = min(left[index] // width, missing)
                missing -= n_taken
                own.append((index, n_taken))
                left[index] -= n_taken * width
                if not missing:
                    break
        if missing:
            return None
    return carved


def pack_as_planned(
    free: Sequence[FreeHost],
    wanted: Mapping[UnitKind, int],
    plan: UnitPlan,
    remaining_s: Sequence[float],
) -> Carved:
    """Return the same from a plan, as far as units are wanted."""
    hosts: dict[tuple[str, int, bool], list[int]] = {}
    for index, host in enumerate(free):
        key = host.eligibility, len(host.names), host.is_whole()
        hosts.setdefault(key, []).append(index)
    missing = dict(wanted)
    carved: Carved = {kind: [] for kind in wanted}
    # Wholly free hosts last: what is planned too much is not made of them.
    for (eligibility, group), patterns in sorted(
        plan.patterns.items(), key=lambda item: (item[0][1].is_whole, item[0][1].n_free)
    ):
        alike = hosts[eligibility, group.n_free, group.is_whole]
        alike.sort(key=lambda index: -remaining_s[index])
        for index, pattern in zip(alike, patterns, strict=False):
            for width in sorted(set(pattern)):
                kind = UnitKind(eligibility, width)
                n_taken = min(pattern.count(width), missing.get(kind, 0))
                if n_taken:
                    missing[kind] -= n_taken
                    carved[kind].append((index, n_taken))
    return carved


def plan_units(pool: PoolView, supply: Supply, split: Sequence[Sequence[int]]) -> UnitPlan:
    """Return a way to make the units of these sizes that breaks few wholly free hosts.

    Args:
        pool: of the problem.
        supply: of the same pool.
        split: [j][k], units of each kind for each trainer; such that there is a way.

    Raises:
        ProblemError: HiGHS finds none, which would be a defect.
    """
    highs = _solved_rows(pool, supply, split)
    if highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        raise ProblemError(
            "BFT-3023",
            "The sizes that were decided cannot be placed on the hosts.",
            "Report this with the problem: sizes are such that they can.",
        )
    taken = [round(value) for value in highs.getSolution().col_value]
    return UnitPlan(
        keeps={
            (held.trainer, held.kind): {part: taken[at] for part, at in held.columns.items()}
            for held in supply.held
        },
        serves={key: taken[column] for key, column in supply.serving.items()},
        patterns=_patterns(supply, taken),
    )


def _solved_rows(pool: PoolView, supply: Supply, split: Sequence[Sequence[int]]) -> Any:
    """Return HiGHS when it has solved the rows of the supply for these sizes."""
    highs = new_highs()
    for name, value in (("output_flag", False), ("threads", 1), ("random_seed", 0)):
        highs.setOptionValue(name, value)
    n_columns = len(supply.upper)
    cost = np.zeros(n_columns)
    for arc, column in supply.arcs.items():
        cost[column] = float(arc.group.is_whole and not arc.start)
    for column, upper in enumerate(supply.upper):
        highs.addVar(0.0, float(upper))
        highs.changeColCost(column, float(cost[column]))
    every = np.arange(n_columns, dtype=np.int32)
    highs.changeColsIntegrality(n_columns, every, np.ones(n_columns, dtype=np.uint8))

    def add(terms: Iterable[tuple[int, float]], lower: float, upper: float) -> None:
        pairs = list(terms)
        at = np.array([column for column, _ in pairs], dtype=np.int32)
        factors = np.array([factor for _, factor in pairs], dtype=np.float64)
        highs.addRow(lower, upper, len(pairs), at, factors)

    for terms, most in supply.rows:
        add(terms, -highspy.kHighsInf, float(most))
    for k in supply.coupled:
        n_used = sum([row[k] for row in split])
        add(supply.units[k], float(n_used - supply.base[k]), highspy.kHighsInf)
    for keeping in supply.keepings:
        n_kept = sum([min(split[j][keeping.kind], count) for j, count in keeping.simple])
        terms = [(keeping.serving, -1.0), *[(column, 1.0) for column in keeping.columns]]
        add(terms, -highspy.kHighsInf, float(-n_kept))
    for held in supply.held:
        size = sum(split[held.trainer])
        if size >= len(pool.present[held.trainer]):
            for part, column in held.columns.items():
                add([(column, 1.0)], float(held.counts[part]), highspy.kHighsInf)
        else:
            needed = split[held.trainer][held.kind]
            add(
                [(column, 1.0) for column in held.columns.values()],
                float(max(needed - held.n_others, 0)),
                float(needed),
            )
    highs.run()
    return highs


def _patterns(supply: Supply, taken: Sequence[int]) -> dict[tuple[str, HostGroup], list[Pattern]]:
    """Return how single hosts are filled: paths of the flow of each group."""
    arcs_of: dict[tuple[str, HostGroup], dict[Arc, int]] = {}
    for arc, column in supply.arcs.items():
        if taken[column]:
            arcs_of.setdefault((arc.eligibility, arc.group), {})[arc] = taken[column]
    patterns: dict[tuple[str, HostGroup], list[Pattern]] = {}
    for key, counts in arcs_of.items():
        own = patterns.setdefault(key, [])
        while path := _path(counts):
            own.append(tuple([arc.width for arc in path]))
            for arc in path:
                counts[arc] -= 1
    return patterns


def _path(counts: Mapping[Arc, int]) -> list[Arc]:
    """Return arcs from GPU 0 on, each from where the one before ends; empty: none begins there."""
    path: list[Arc] = []
    at = 0
    while True:
        following = [arc for arc, count in counts.items() if count and arc.start == at]
        if not following or (path and path[-1].width == WHOLE):
            return path
        path.append(following[0])
        at += following[0].width
