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
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import highspy
import numpy as np

from milp.highs import new_highs
from milp.hosts import WHOLE, FreeHost, HostGroup, PartKind, UnitKind
from milp.pool import PoolView
from milp.problem import ProblemError
from milp.supply import Arc, Supply, Terms, arrays_of

Carved: TypeAlias = dict[UnitKind, list[tuple[int, int]]]  # index of a host, units of it
Pattern: TypeAlias = tuple[int, ...]  # widths that one host is filled with


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitPlan:
    """A way in which the units of all kinds come about; empty: there is nothing to keep to."""

    # By j and k: contended parts that the trainer keeps.
    keeps: dict[tuple[int, int], dict[PartKind, int]] = field(default_factory=dict)
    # Contended parts that serve kind k.
    serves: dict[tuple[PartKind, int], int] = field(default_factory=dict)
    # Of a class's hosts that are filled.
    patterns: dict[tuple[str, HostGroup], list[Pattern]] = field(default_factory=dict)


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
    gpus_left = [len(host.names) for host in free]
    indices_of_class: dict[str, list[int]] = {}
    for index, host in enumerate(free):
        indices_of_class.setdefault(host.eligibility, []).append(index)
    # Whole hosts, then the widest.
    for kind in sorted(wanted, key=lambda kind: (kind.width != WHOLE, -kind.width)):
        n_missing, liked_hosts = wanted[kind], liked.get(kind, ())
        slots = carved.setdefault(kind, [])
        by_rank: dict[tuple[bool, int, bool], list[int]] = {}  # the lowest rank is used first
        for index in indices_of_class.get(kind.eligibility, ()):
            host, n_left = free[index], gpus_left[index]
            if n_left >= (kind.width or host.host_width):
                rank = n_left == host.host_width, n_left, host.host not in liked_hosts
                by_rank.setdefault(rank, []).append(index)
        for _, indices in sorted(by_rank.items()):
            if not n_missing:
                break
            indices.sort(key=remaining_s.__getitem__, reverse=True)
            for index in indices:
                width = kind.width or free[index].host_width
                n_taken = min(gpus_left[index] // width, n_missing)
                n_missing -= n_taken
                slots.append((index, n_taken))
                gpus_left[index] -= n_taken * width
                if not n_missing:
                    break
        if n_missing:
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
    keys = sorted(plan.patterns, key=_is_whole_and_free_gpus)
    for eligibility, group in keys:
        alike = hosts[eligibility, group.n_free, group.is_whole]
        alike.sort(key=lambda index: -remaining_s[index])
        for index, pattern in zip(alike, plan.patterns[eligibility, group], strict=False):
            for width in sorted(set(pattern)):
                kind = UnitKind(eligibility, width)
                n_taken = min(pattern.count(width), missing.get(kind, 0))
                if n_taken:
                    missing[kind] -= n_taken
                    carved[kind].append((index, n_taken))
    return carved


def _is_whole_and_free_gpus(key: tuple[str, HostGroup]) -> tuple[bool, int]:
    _, group = key
    return group.is_whole, group.n_free


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
    values = list(map(round, highs.getSolution().col_value))
    keeps: dict[tuple[int, int], dict[PartKind, int]] = {}
    for parts in supply.held:
        counts = {part: values[column] for part, column in parts.columns.items()}
        keeps[parts.trainer, parts.kind] = counts
    serves = {key: values[column] for key, column in supply.serving.items()}
    return UnitPlan(keeps=keeps, serves=serves, patterns=_patterns(supply, values))


def _solved_rows(pool: PoolView, supply: Supply, split: Sequence[Sequence[int]]) -> Any:
    """Return HiGHS when it has solved the rows of the supply for these sizes."""
    highs = new_highs()
    for name, value in (("output_flag", False), ("threads", 1), ("random_seed", 0)):
        highs.setOptionValue(name, value)
    n_columns = len(supply.upper)
    costs = np.zeros(n_columns)
    for arc, column in supply.arcs.items():
        costs[column] = float(arc.group.is_whole and not arc.start)
    for column, upper in enumerate(supply.upper):
        highs.addVar(0.0, float(upper))
        highs.changeColCost(column, float(costs[column]))
    every = np.arange(n_columns, dtype=np.int32)
    highs.changeColsIntegrality(n_columns, every, np.ones(n_columns, dtype=np.uint8))

    def add(terms: Terms, lower: float, upper: float) -> None:
        columns, factors = arrays_of(terms)
        highs.addRow(lower, upper, len(terms), columns, factors)

    for terms, upper in supply.rows:
        add(terms, -highspy.kHighsInf, float(upper))
    for k in supply.coupled:
        n_used = sum([row[k] for row in split])
        add(supply.units[k], float(n_used - supply.base[k]), highspy.kHighsInf)
    for keeping in supply.keepings:
        n_kept = sum([min(split[j][keeping.kind], count) for j, count in keeping.simple])
        terms = [(keeping.serving, -1.0), *_sum_of(keeping.columns)]
        add(terms, -highspy.kHighsInf, float(-n_kept))
    for parts in supply.held:
        sizes = split[parts.trainer]
        if sum(sizes) >= len(pool.present[parts.trainer]):
            for part, column in parts.columns.items():
                add([(column, 1.0)], float(parts.counts[part]), highspy.kHighsInf)
        else:
            n_units = sizes[parts.kind]
            n_at_least = max(n_units - parts.n_others, 0)
            add(_sum_of(parts.columns.values()), float(n_at_least), float(n_units))
    highs.run()
    return highs


def _sum_of(columns: Iterable[int]) -> Terms:
    return [(column, 1.0) for column in columns]


def _patterns(supply: Supply, values: Sequence[int]) -> dict[tuple[str, HostGroup], list[Pattern]]:
    """Return how single hosts are filled: paths of the flow of each group."""
    flows: dict[tuple[str, HostGroup], dict[Arc, int]] = {}
    for arc, column in supply.arcs.items():
        if values[column]:
            flows.setdefault((arc.eligibility, arc.group), {})[arc] = values[column]
    patterns: dict[tuple[str, HostGroup], list[Pattern]] = {}
    for key, flow in flows.items():
        patterns_of_group = patterns.setdefault(key, [])
        while path := _path(flow):
            patterns_of_group.append(tuple([arc.width for arc in path]))
            for arc in path:
                flow[arc] -= 1
    return patterns


def _path(flow: Mapping[Arc, int]) -> list[Arc]:
    """Return arcs from GPU 0 on, each from where the one before ends; empty: none begins there."""
    path: list[Arc] = []
    end = 0
    while True:
        following = [arc for arc, count in flow.items() if count and arc.start == end]
        if not following or (path and path[-1].width == WHOLE):
            return path
        path.append(following[0])
        end += following[0].width
