"""Nodes that jobs share: CPUs, memory and GPUs by type, and backfill's view of their future.

As select/cons_tres of Slurm 22.05 does it without a topology (slurm.conf(5); read in job_test.c of
its select plugins and in backfill.c, and measured): a job takes its share of each of its nodes;
a job of whole nodes needs nodes without any other. Of the nodes that have room, rows of neighbours
with equal weight count together: the row with the fewest free CPUs that is enough is taken, and a
job of one node takes the node with the fewest free CPUs in it. With CR_LLN it is the node with the
largest free share of its CPUs.

Backfill knows what is free at the ends of running jobs, part by part, but what it plans closes
*whole* nodes to all jobs behind, for the planned time.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from bftrainer.lab.site.sharing import ANY_TYPE, NodeCapacity, NodeSet, Share, SitePartition
from bftrainer.lab.site.timeline import EarliestStart, ends_together, positions

Matrix = NDArray[np.int64]  # resources x nodes
UNLIMITED = 1 << 40
ALONE = 0  # row: so many jobs more may come; a job of whole nodes takes all of it
CPUS, MEMORY, GPUS = 1, 2, 3  # rows; those of each type of GPU and of limited partitions follow


@dataclass(frozen=True, slots=True, eq=False)
class Need:
    """The least a node has to have left for a job."""

    least: Matrix  # resources
    n_untyped_gpus: int
    is_whole: bool

    def __deepcopy__(self, _memo: object) -> Need:
        return self


@dataclass(frozen=True, slots=True, eq=False)
class Taken:
    """What a job has of its nodes."""

    nodes: NodeSet
    at: NDArray[np.intp]  # the numbers of the nodes
    amounts: Matrix  # resources x these nodes

    def __deepcopy__(self, _memo: object) -> Taken:
        return self


class Left:
    """What is left on each node, and which nodes have enough for a need."""

    def __init__(self, amounts: Matrix) -> None:
        """``amounts``: resources x nodes; it becomes this object's own."""
        self.amounts = amounts
        self._fitting: dict[Need, NodeSet] = {}

    def copy(self) -> Left:
        """Return another one with as much."""
        return Left(self.amounts.copy())

    def fits(self, need: Need) -> NodeSet:
        """Return the nodes that have enough."""
        nodes = self._fitting.get(need)
        if nodes is None:
            has_room = (self.amounts >= need.least[:, None]).all(axis=0)
            nodes = int.from_bytes(np.packbits(has_room, bitorder="little").tobytes(), "little")
            self._fitting[need] = nodes
        return nodes

    def take(self, taken: Taken) -> None:
        """Let a job have its part."""
        self.amounts[:, taken.at] -= taken.amounts
        self._fitting.clear()

    def give(self, taken: Taken) -> None:
        """Let it leave."""
        self.amounts[:, taken.at] += taken.amounts
        self._fitting.clear()


@dataclass(slots=True, eq=False)
class Layout:
    """The resources of a site's nodes, what jobs need of them, and the choice among nodes."""

    capacities: Sequence[NodeCapacity]
    partitions: Sequence[SitePartition]
    is_least_loaded_first: bool
    types: tuple[str, ...] = field(init=False)
    capacity: Matrix = field(init=False)  # resources x nodes
    _limited: dict[str, int] = field(init=False)  # partition -> its row
    _whole: frozenset[str] = field(init=False)
    _needs: dict[tuple[Share | None, str], Need] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.types = tuple(sorted({kind for node in self.capacities for kind, _ in node.gpus}))
        first = GPUS + 1 + len(self.types)
        limited = [partition for partition in self.partitions if partition.max_cpus_per_node]
        self._limited = {partition.name: first + k for k, partition in enumerate(limited)}
        self._whole = frozenset(p.name for p in self.partitions if p.is_whole)
        columns = [[*self._of(node), *(p.max_cpus_per_node for p in limited)]
                   for node in self.capacities]  # fmt: skip
        self.capacity = np.array(columns, dtype=np.int64).T.copy()

    def __deepcopy__(self, _memo: object) -> Layout:
        return self

    def _of(self, node: NodeCapacity) -> list[int]:
        by_type = dict(node.gpus)
        memory_mb = node.memory_mb or UNLIMITED
        gpus = [by_type.get(kind, 0) for kind in self.types]
        return [UNLIMITED, node.cpus, memory_mb, sum(gpus), *gpus]

    def need(self, share: Share | None, partition: str) -> Need:
        """Return what a job of this partition needs of each of its nodes."""
        key = (share, partition)
        if key not in self._needs:
            self._needs[key] = self._need(share, partition)
        return self._needs[key]

    def _need(self, share: Share | None, partition: str) -> Need:
        least = np.zeros(len(self.capacity), dtype=np.int64)
        least[ALONE] = 1
        if share is None or partition in self._whole:
            least[ALONE] = UNLIMITED
            if share is not None:  # it still has to be a node that has as much
                self._add(least, share)
            return Need(least, 0, is_whole=True)
        self._add(least, share)
        if partition in self._limited:
            least[self._limited[partition]] = share.cpus
        is_typed = share.gpu_type != ANY_TYPE
        return Need(least, 0 if is_typed else share.gpus, is_whole=False)

    def _add(self, least: Matrix, share: Share) -> None:
        least[CPUS], least[MEMORY], least[GPUS] = share.cpus, share.memory_mb, share.gpus
        if share.gpus and share.gpu_type != ANY_TYPE:
            if share.gpu_type in self.types:
                least[self._row_of(share.gpu_type)] = share.gpus
            else:
                least[GPUS] = UNLIMITED  # nobody has such a GPU

    def _row_of(self, kind: str) -> int:
        return GPUS + 1 + self.types.index(kind)

    def take(self, need: Need, nodes: NodeSet, left: Left) -> Taken:
        """Return what a job gets of these nodes; of GPUs whose type it leaves open, the first."""
        at = np.array(list(positions(nodes)), dtype=np.intp)
        amounts = np.repeat(need.least[:, None], len(at), axis=1)
        if need.n_untyped_gpus and self.types:
            open_gpus = np.full(len(at), need.n_untyped_gpus, dtype=np.int64)
            for row in range(GPUS + 1, GPUS + 1 + len(self.types)):
                of_type = np.minimum(open_gpus, np.maximum(left.amounts[row, at], 0))
                amounts[row] = of_type
                open_gpus -= of_type
        return Taken(nodes, at, amounts)

    def left(self, left: Left, node: int) -> Share | None:
        """Return what is left of a node; None: some job has it alone."""
        alone, cpus, memory_mb, gpus = left.amounts[: GPUS + 1, node].tolist()
        if not alone:
            return None
        if not self.capacities[node].memory_mb:
            memory_mb = 0
        return Share(cpus=cpus, memory_mb=memory_mb, gpus=gpus)

    def choose(self, need: Need, nodes: NodeSet, count: int, left: Left) -> NodeSet:
        """Return the nodes that Slurm takes; at least ``count`` are in ``nodes``."""
        each = max(1, int(need.least[CPUS]))
        usable = {k: int(left.amounts[CPUS, k]) // each * each for k in positions(nodes)}
        if self.is_least_loaded_first:
            return self._least_loaded(usable, count, left)
        rows = self._rows(usable)
        chosen = 0
        missing, missing_cpus = count, count * each
        while missing > 0:
            row = self._tightest(rows, usable, missing, missing_cpus)
            rows.remove(row)
            taken = row[:missing]
            if missing == 1:
                enough = [k for k in row if usable[k] >= missing_cpus]
                taken = [min(enough or row, key=usable.__getitem__)]
            chosen |= sum(1 << k for k in taken)
            missing -= len(taken)
            missing_cpus -= each * len(taken)
        return chosen

    def _rows(self, usable: Iterable[int]) -> list[list[int]]:
        """Return the rows of neighbours of equal weight."""
        rows: list[list[int]] = []
        for k in usable:
            is_next = bool(rows) and rows[-1][-1] == k - 1
            if is_next and self.capacities[k].weight == self.capacities[k - 1].weight:
                rows[-1].append(k)
            else:
                rows.append([k])
        return rows

    def _tightest(
        self, rows: Sequence[list[int]], usable: dict[int, int], missing: int, missing_cpus: int
    ) -> list[int]:
        """Return of the lowest weight the row with the fewest CPUs that are enough.

        If none has enough, it is the one with the most.
        """

        def badness(row: Sequence[int]) -> tuple[int, bool, int]:
            weight = self.capacities[row[0]].weight
            cpus = sum(usable[k] for k in row)
            if cpus >= missing_cpus and len(row) >= missing:
                return weight, False, cpus
            return weight, True, -cpus

        return min(rows, key=badness)

    def _least_loaded(self, usable: Iterable[int], count: int, left: Left) -> NodeSet:
        def load(k: int) -> tuple[int, float]:
            free_share = int(left.amounts[CPUS, k]) / max(1, self.capacities[k].cpus)
            return self.capacities[k].weight, -free_share

        return sum(1 << k for k in sorted(usable, key=load)[:count])


class SharedTimeline:
    """What is left on shared nodes from when on, and which nodes are planned for others."""

    def __init__(
        self,
        now_s: float,
        left: Left,
        ends: Iterable[tuple[float, Taken]],
        slot_s: float,
        layout: Layout,
    ) -> None:
        """Begin with nothing planned.

        Args:
            now_s: when the plan is made.
            left: beside ordinary jobs now.
            ends: of running jobs: when their limit strikes, and what they have.
            slot_s: bf_resolution.
            layout: of the nodes.
        """
        self.now_s, self._slot_s, self._layout = now_s, slot_s, layout
        self._levels: list[tuple[float, Left]] = [(-math.inf, left.copy())]
        self._bounds_s: list[float] = []
        self._last_s: list[float] = []
        self._closed: list[tuple[float, float, NodeSet]] = []
        for span in ends_together(now_s, ends):
            later = self._levels[-1][1].copy()
            for taken in span.who:
                later.give(taken)
            self._levels.append((span.last_s, later))
            self._bounds_s.append(span.bound_s)
            self._last_s.append(span.last_s)

    def advance(self, now_s: float) -> None:
        """Let time pass in which no job started or ended."""
        self.now_s = now_s

    def earliest(
        self, count: int, limit_s: float, among: NodeSet, need: Need | None = None
    ) -> EarliestStart | None:
        """Return the earliest start of a job on some of these nodes; None: there is none."""
        need = need or self._layout.need(None, "")
        levels_s = [at_s for at_s, _ in self._levels]
        moments_s = {self.now_s, *levels_s[1:], *(end_s for _, end_s, _ in self._closed)}
        for at_s in sorted(moments_s):
            if at_s < self.now_s:
                continue
            _, left = self._levels[bisect_right(levels_s, at_s) - 1]
            nodes = left.fits(need) & among
            if nodes.bit_count() >= count:
                nodes &= self._open(at_s, limit_s)
                if nodes.bit_count() >= count:
                    return EarliestStart(at_s, nodes)
        return None

    def choose(self, start: EarliestStart, count: int, need: Need | None = None) -> NodeSet:
        """Return the nodes of a planned start."""
        need = need or self._layout.need(None, "")
        levels_s = [at_s for at_s, _ in self._levels]
        _, left = self._levels[bisect_right(levels_s, start.at_s) - 1]
        return self._layout.choose(need, start.nodes, count, left)

    def close(self, start_s: float, end_s: float, nodes: NodeSet) -> None:
        """Plan a job on these nodes as a whole, in slots."""
        begin_s = max(self._slot(start_s), self.now_s)
        self.cut(begin_s, max(self._slot(end_s), begin_s + self._slot_s), nodes)

    def start(self, end_s: float, nodes: NodeSet, need: Need | None = None) -> None:
        """Let a job run from now until its limit."""
        _, now_left = self._levels[0]
        taken = self._layout.take(need or self._layout.need(None, ""), nodes, now_left)
        at = min(bisect_right(self._bounds_s, end_s), len(self._last_s) - 1)
        until_s = end_s
        if at >= 0:
            until_s = max(end_s, self._last_s[at])
        levels_s = [from_s for from_s, _ in self._levels]
        after = bisect_left(levels_s, until_s)
        if after == len(levels_s) or levels_s[after] != until_s:
            _, before = self._levels[after - 1]
            self._levels.insert(after, (until_s, before.copy()))
        for _, left in self._levels[:after]:
            left.take(taken)

    def cut(self, begin_s: float, end_s: float, nodes: NodeSet) -> None:
        """Close nodes from one moment to another."""
        self._closed.append((begin_s, end_s, nodes))

    def open_now(self, limit_s: float) -> NodeSet:
        """Return the nodes that nobody is planned on for the whole limit; they may be in use."""
        return self._open(self.now_s, limit_s)

    def _open(self, at_s: float, limit_s: float) -> NodeSet:
        closed = 0
        for begin_s, end_s, nodes in self._closed:
            if begin_s <= at_s + limit_s and end_s > at_s:
                closed |= nodes
        every = (1 << len(self._layout.capacities)) - 1
        return every & ~closed

    def _slot(self, at_s: float) -> float:
        return at_s if math.isinf(at_s) else math.floor(at_s / self._slot_s) * self._slot_s
