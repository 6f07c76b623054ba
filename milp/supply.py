"""Rows and columns for the units of several kinds that the same GPUs make at once.

Takes a PoolView whose GPUs are lent, returns linear rows over whole numbers; ``milp.classes`` adds
them to its model, and ``milp.placement.packing`` solves them for sizes that are decided. Exact:
what keeps these rows can be placed, and what can be placed keeps them.

* Each width divides the next larger one, as 1, 2, 4 and 8 do: units of widths w_1 < w_2 < ... fit
  into hosts with f_h free GPUs exactly if for every i those of w_i and more, counted in w_i, are no
  more than sum_h floor(f_h / w_i). For the largest go first, wherever they fit, and take so many
  places of the smaller ones in any case. A column z counts the hosts that are lent whole.
* Other widths: a host is filled from its first free GPU to its last. Columns count the hosts of a
  group in which a unit of width w reaches from GPU p to p + w; no more begin at a place than end
  there (the arc-flow model of cutting stock; Valerio de Carvalho, Annals of Operations Research 86,
  1999). Such a flow is a number of hosts that are filled one way or another.
* Parts with a pilot that are a whole host serve trainers of their width and those of whole hosts.
  Columns count how many serve which. As there is no migration, a trainer that grows keeps all of
  them that it has, and one that shrinks as many as it cannot do without.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from milp.hosts import WHOLE, HostGroup, HostsView, PartKind, UnitKind
from milp.pool import PoolView
from milp.tables import FloatArray

Terms: TypeAlias = list[tuple[int, float]]  # column, factor


class Arc(NamedTuple):
    """A unit in the hosts of a group, from one of their free GPUs on."""

    eligibility: str
    group: HostGroup
    start: int
    width: int  # WHOLE: all of the host


class Keeping(NamedTuple):
    """What trainers keep of contended parts that serve one kind: no more than ``serving``."""

    serving: int  # column
    kind: int  # k
    columns: list[int]  # of trainers with ``HeldParts``
    simple: list[tuple[int, int]]  # trainer j, parts: all it has of the kind, kept to its size


class HeldParts(NamedTuple):
    """Contended parts of a trainer that has other units of the kind, too."""

    trainer: int  # j
    kind: int  # k
    columns: dict[PartKind, int]  # how many of them it keeps
    counts: dict[PartKind, int]  # how many of them it has
    n_others: int  # its other units of this kind


def arrays_of(terms: Terms) -> tuple[NDArray[np.int32], FloatArray]:
    """Return the columns and the factors of the terms, as HiGHS takes them."""
    table = np.array(terms, dtype=np.float64).reshape(-1, 2)
    columns, factors = table.T
    return columns.astype(np.int32), factors.copy()


@dataclass(slots=True, kw_only=True)
class Supply:
    """Columns that are whole numbers from 0 to ``upper``, and what follows from them."""

    base: list[int]  # [k]: units that nothing else competes for
    units: list[Terms]  # [k]: units beside these
    upper: list[int] = field(default_factory=list)  # [column]
    rows: list[tuple[Terms, int]] = field(default_factory=list)  # terms <= number
    held: list[HeldParts] = field(default_factory=list)
    keepings: list[Keeping] = field(default_factory=list)
    arcs: dict[Arc, int] = field(default_factory=dict)  # -> column
    serving: dict[tuple[PartKind, int], int] = field(default_factory=dict)  # with k -> column
    coupled: set[int] = field(default_factory=set)  # k: those that compete
    contended: set[int] = field(default_factory=set)  # k: of those the ones for the same parts
    is_greedy: bool = True  # the largest units first, wherever they fit, always come out

    def column(self, upper: int) -> int:
        """Add a column."""
        self.upper.append(upper)
        return len(self.upper) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Kinds that are made of the same free GPUs, the widest first; each divides the one before."""

    kinds: list[int]  # k
    gpus: list[int]  # of a unit
    base: list[int]  # units beside those made of free GPUs
    most: list[int]  # units of this width, and of all wider ones in such, made of free GPUs

    @property
    def steps(self) -> list[int]:
        """How many units of a kind one of the kind before is; none of it is made where 0 fit."""
        gpus_before = [self.gpus[0], *self.gpus[:-1]]
        pairs = zip(gpus_before, self.gpus, strict=True)
        return [max(wide // narrow, 1) for wide, narrow in pairs]


def chain_of(pool: PoolView) -> Chain | None:
    """Return the kinds of a class as a chain; None: they are more than that."""
    hosts = pool.hosts
    if hosts is None:
        return None
    classes = hosts.classes()
    if len(classes) != 1:
        return None
    (eligibility,) = classes
    if hosts.contended(eligibility):
        return None
    carvable = hosts.carvable(eligibility)
    whole_sizes = {group.n_free for group in hosts.groups.get(eligibility, []) if group.is_whole}
    gpus_of_whole = 0
    if WHOLE in carvable:
        if len(whole_sizes) > 1 or max(whole_sizes) < max(carvable):
            return None
        (gpus_of_whole,) = whole_sizes
    # Those of which none fits first: they are wider than all that do. Then the widest.
    rows: list[tuple[bool, int, int, int]] = []
    for k, kind in enumerate(hosts.kinds):
        n_gpus = gpus_of_whole if kind.width == WHOLE else kind.width
        rows.append((kind.width in carvable, -n_gpus, kind.width, k))
    rows.sort()
    chain = Chain(kinds=[], gpus=[], base=[], most=[])
    fitting_gpus: list[int] = []
    for is_carvable, minus_gpus, _, k in rows:
        chain.kinds.append(k)
        chain.gpus.append(max(-minus_gpus, 1))
        chain.base.append(len(pool.names[k]))
        chain.most.append(hosts.most_carved(hosts.kinds[k]))
        if is_carvable:
            fitting_gpus.append(-minus_gpus)
    if not _are_nested(fitting_gpus[::-1]):
        return None
    return chain


def _are_nested(widths: Sequence[int]) -> bool:
    """Return whether each of the ascending widths divides the next one."""
    return all(larger % smaller == 0 for smaller, larger in pairwise(widths))


def supply_of(pool: PoolView) -> Supply | None:
    """Return what limits the kinds together; None: each has its own units."""
    hosts = pool.hosts
    if hosts is None or not hosts.kinds:
        return None
    coupled = list(filter(hosts.is_coupled, hosts.classes()))
    if not coupled:
        return None
    # Not the counts of the pool, which may be shares.
    pairs = zip(pool.names, hosts.kinds, strict=True)
    base = [len(names) + hosts.most_carved(kind) for names, kind in pairs]
    supply = Supply(base=base, units=[[] for _ in hosts.kinds])
    index = hosts.index()
    for eligibility in coupled:
        for width in hosts.widths_of(eligibility):
            supply.coupled.add(index[UnitKind(eligibility, width)])
        if len(hosts.carvable(eligibility)) > 1:
            _carve(supply, hosts, eligibility, index)
        for part in hosts.contended(eligibility):
            _share(supply, pool, part, index)
    _hold(supply, pool)
    return supply


def _carve(supply: Supply, hosts: HostsView, eligibility: str, index: dict[UnitKind, int]) -> None:
    """Add what several kinds make of the free GPUs of a class."""
    carvable = hosts.carvable(eligibility)
    widths = [width for width in carvable if width != WHOLE]
    for width in carvable:
        kind = UnitKind(eligibility, width)
        supply.base[index[kind]] -= hosts.most_carved(kind)
    whole_columns: dict[HostGroup, int] = {}
    for group in hosts.groups[eligibility]:
        if group.is_whole and WHOLE in carvable:
            column = supply.column(group.n_hosts)
            whole_columns[group] = column
            supply.arcs[Arc(eligibility, group, 0, WHOLE)] = column
            supply.units[index[UnitKind(eligibility, WHOLE)]].append((column, 1.0))
    if _are_nested(widths):
        _nest(supply, hosts, eligibility, widths, index, whole_columns)
        return
    supply.is_greedy = False
    for group in hosts.groups[eligibility]:
        _fill(supply, eligibility, group, widths, index, whole_columns.get(group))


def _nest(
    supply: Supply,
    hosts: HostsView,
    eligibility: str,
    widths: Sequence[int],
    index: dict[UnitKind, int],
    whole_columns: Mapping[HostGroup, int],
) -> None:
    """Add a row for each width, of which each divides the next: wider units take their places."""
    column_of: dict[int, int] = {}  # by width
    for width in widths:
        kind = UnitKind(eligibility, width)
        column_of[width] = supply.column(hosts.most_carved(kind))
        supply.units[index[kind]].append((column_of[width], 1.0))
    for width in widths:
        terms: Terms = []
        for wider in widths:
            if wider >= width:
                terms.append((column_of[wider], float(wider // width)))
        for group, column in whole_columns.items():
            terms.append((column, float(group.most(width))))
        supply.rows.append((terms, hosts.most_carved(UnitKind(eligibility, width))))


def _fill(
    supply: Supply,
    eligibility: str,
    group: HostGroup,
    widths: Sequence[int],
    index: dict[UnitKind, int],
    whole_column: int | None,
) -> None:
    """Add the ways to fill the hosts of a group: a flow from GPU to GPU."""
    balance: dict[int, Terms] = {0: []}  # by GPU: units that begin there less those that end there
    if whole_column is not None:
        balance[0].append((whole_column, 1.0))
    for start in _places(group.n_free, widths):
        for width in widths:
            if start + width > group.n_free:
                continue
            column = supply.column(group.n_hosts)
            supply.arcs[Arc(eligibility, group, start, width)] = column
            supply.units[index[UnitKind(eligibility, width)]].append((column, 1.0))
            balance.setdefault(start, []).append((column, 1.0))
            balance.setdefault(start + width, []).append((column, -1.0))
    for start, terms in balance.items():
        if any(factor > 0 for _, factor in terms):
            supply.rows.append((terms, 0 if start else group.n_hosts))


def _places(n_free: int, widths: Sequence[int]) -> Iterator[int]:
    """Yield the GPUs at which a unit may begin, ascending."""
    reached = {0}
    for start in range(n_free):
        if start in reached:
            yield start
            reached.update([start + width for width in widths])


def _share(supply: Supply, pool: PoolView, part: PartKind, index: dict[UnitKind, int]) -> None:
    """Add which contended parts serve which of two kinds."""
    hosts = pool.hosts
    count = len(hosts.parts[part]) if hosts else 0
    terms: Terms = []
    for width in (part.width, WHOLE):
        k = index[UnitKind(part.eligibility, width)]
        column = supply.column(count)
        supply.base[k] -= count
        supply.units[k].append((column, 1.0))
        supply.serving[part, k] = column
        supply.contended.add(k)
        terms.append((column, 1.0))
    supply.rows.append((terms, count))


def _hold(supply: Supply, pool: PoolView) -> None:
    """Add what trainers keep of the contended parts that they have."""
    hosts = pool.hosts
    if hosts is None or not supply.serving:
        return
    part_of: dict[str, PartKind] = {}  # of contended parts
    keepings: dict[tuple[PartKind, int], Keeping] = {}
    for (part, k), column in supply.serving.items():
        part_of.update(dict.fromkeys(hosts.parts[part], part))
        keepings[part, k] = Keeping(column, k, [], [])
    for j, present in enumerate(pool.present):
        parts = [part_of[name] for name in present if name in part_of]
        for k, counts in _counts_of_kinds(supply, pool.accepts[j], parts).items():
            n_others = pool.held[j][k] - sum(counts.values())
            if not n_others and len(counts) == 1 and not pool.mixes[j]:
                ((part, count),) = counts.items()
                keepings[part, k].simple.append((j, count))
                continue
            columns = {part: supply.column(count) for part, count in counts.items()}
            supply.held.append(HeldParts(j, k, columns, counts, n_others))
            for part, column in columns.items():
                keepings[part, k].columns.append(column)
    for keeping in keepings.values():
        if keeping.columns or keeping.simple:
            supply.keepings.append(keeping)


def _counts_of_kinds(
    supply: Supply, accepts: Sequence[bool], parts: Sequence[PartKind]
) -> dict[int, dict[PartKind, int]]:
    """Return by kind that a trainer accepts how many of its contended parts can serve it."""
    counts_of_kinds: dict[int, dict[PartKind, int]] = {}  # by k
    for part in parts:
        for other_part, k in supply.serving:
            if other_part == part and accepts[k]:
                counts = counts_of_kinds.setdefault(k, {})
                counts[part] = counts.get(part, 0) + 1
    return counts_of_kinds
