"""Nodes that jobs share: CPUs, memory and GPUs by type.

As select/cons_tres of Slurm 22.05 does it without a topology (slurm.conf(5); read in job_test.c of
its select plugins and in backfill.c, and measured): a job takes its share of each of its nodes;
a job of whole nodes needs nodes without any other. Of the nodes that have room, rows of neighbours
with equal weight count together: the row with the fewest free CPUs that is enough is taken, and a
job of one node takes the node with the fewest free CPUs in it. With CR_LLN it is the node with the
largest free share of its CPUs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from bftrainer.lab.site.sharing import ANY_TYPE, NodeCapacity, NodeSet, Share, SitePartition
from bftrainer.lab.site.timeline import positions

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
class TakenParts:
    """What a job has of its nodes."""

    nodes: NodeSet
    at: NDArray[np.intp]  # the numbers of the nodes
    amounts: Matrix  # resources x these nodes

    def __deepcopy__(self, _memo: object) -> TakenParts:
        return self


class Remainder:
    """What is left on each node, and which nodes have enough for a need."""

    def __init__(self, amounts: Matrix) -> None:
        """``amounts``: resources x nodes; it becomes this object's own."""
        self.amounts = amounts
        self._fitting: dict[Need, NodeSet] = {}

    def copy(self) -> Remainder:
        """Return another one with as much."""
        return Remainder(self.amounts.copy())

    def fits(self, need: Need) -> NodeSet:
        """Return the nodes that have enough."""
        nodes = self._fitting.get(need)
        if nodes is None:
            has_room = (self.amounts >= need.least[:, None]).all(axis=0)
            nodes = int.from_bytes(np.packbits(has_room, bitorder="little").tobytes(), "little")
            self._fitting[need] = nodes
        return nodes

    def take(self, parts: TakenParts) -> None:
        """Let a job have its part."""
        self.amounts[:, parts.at] -= parts.amounts
        self._fitting.clear()

    def give(self, parts: TakenParts) -> None:
        """Let it leave."""
        self.amounts[:, parts.at] += parts.amounts
        self._fitting.clear()


@dataclass(slots=True, eq=False)
class ResourceLayout:
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
        kinds = set[str]()
        for node in self.capacities:
            kinds.update(dict(node.gpus))
        self.types = tuple(sorted(kinds))
        row = GPUS + 1 + len(self.types)
        self._limited = {}
        limits: list[int] = []
        for partition in self.partitions:
            if partition.max_cpus_per_node:
                self._limited[partition.name] = row + len(limits)
                limits.append(partition.max_cpus_per_node)
        self._whole = frozenset(p.name for p in self.partitions if p.is_whole)
        columns = [[*self._of(node), *limits] for node in self.capacities]
        self.capacity = np.array(columns, dtype=np.int64).T.copy()

    def __deepcopy__(self, _memo: object) -> ResourceLayout:
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
        amounts = np.zeros(len(self.capacity), dtype=np.int64)
        amounts[ALONE] = 1
        if share is None or partition in self._whole:
            amounts[ALONE] = UNLIMITED
            if share is not None:  # it still has to be a node that has as much
                self._add(amounts, share)
            return Need(amounts, 0, is_whole=True)
        self._add(amounts, share)
        if partition in self._limited:
            amounts[self._limited[partition]] = share.cpus
        is_typed = share.gpu_type != ANY_TYPE
        return Need(amounts, 0 if is_typed else share.gpus, is_whole=False)

    def _add(self, amounts: Matrix, share: Share) -> None:
        amounts[CPUS], amounts[MEMORY], amounts[GPUS] = share.cpus, share.memory_mb, share.gpus
        if share.gpus and share.gpu_type != ANY_TYPE:
            if share.gpu_type in self.types:
                amounts[self._row_of(share.gpu_type)] = share.gpus
            else:
                amounts[GPUS] = UNLIMITED  # nobody has such a GPU

    def _row_of(self, kind: str) -> int:
        return GPUS + 1 + self.types.index(kind)

    def take(self, need: Need, nodes: NodeSet, remainder: Remainder) -> TakenParts:
        """Return what a job gets of these nodes; of GPUs whose type it leaves open, the first."""
        at = np.array(list(positions(nodes)), dtype=np.intp)
        amounts = np.repeat(need.least[:, None], len(at), axis=1)
        if need.n_untyped_gpus and self.types:
            open_gpus = np.full(len(at), need.n_untyped_gpus, dtype=np.int64)
            for row in range(GPUS + 1, GPUS + 1 + len(self.types)):
                of_type = np.minimum(open_gpus, np.maximum(remainder.amounts[row, at], 0))
                amounts[row] = of_type
                open_gpus -= of_type
        return TakenParts(nodes, at, amounts)

    def left(self, remainder: Remainder, node: int) -> Share | None:
        """Return what is left of a node; None: some job has it alone."""
        alone, cpus, memory_mb, gpus = remainder.amounts[: GPUS + 1, node].tolist()
        if not alone:
            return None
        if not self.capacities[node].memory_mb:
            memory_mb = 0
        return Share(cpus=cpus, memory_mb=memory_mb, gpus=gpus)

    def gpus_left(self, remainder: Remainder, node: int) -> dict[str, int]:
        """Return how many GPUs of each type are left of a node."""
        counts = remainder.amounts[GPUS + 1 : GPUS + 1 + len(self.types), node].tolist()
        return dict(zip(self.types, counts, strict=True))

    def choose(self, need: Need, nodes: NodeSet, count: int, remainder: Remainder) -> NodeSet:
        """Return the nodes that Slurm takes; at least ``count`` are in ``nodes``."""
        cpus_each = max(1, int(need.least[CPUS]))
        usable = {
            k: int(remainder.amounts[CPUS, k]) // cpus_each * cpus_each for k in positions(nodes)
        }
        if self.is_least_loaded_first:
            return self._least_loaded(usable, count, remainder)
        rows = self._rows(usable)
        choice = 0
        missing, missing_cpus = count, count * cpus_each
        while missing > 0:
            row = self._tightest(rows, usable, missing, missing_cpus)
            rows.remove(row)
            numbers = row[:missing]
            if missing == 1:
                enough = [k for k in row if usable[k] >= missing_cpus]
                numbers = [min(enough or row, key=usable.__getitem__)]
            choice |= sum(1 << k for k in numbers)
            missing -= len(numbers)
            missing_cpus -= cpus_each * len(numbers)
        return choice

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

    def _least_loaded(self, usable: Iterable[int], count: int, remainder: Remainder) -> NodeSet:
        def load(k: int) -> tuple[int, float]:
            free_share = int(remainder.amounts[CPUS, k]) / max(1, self.capacities[k].cpus)
            return self.capacities[k].weight, -free_share

        return sum(1 << k for k in sorted(usable, key=load)[:count])
