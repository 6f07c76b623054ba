"""Amounts of hosts that jobs share: free, and ours to give back. Pure.

On hosts whose GPUs are lent one by one a job asks for an amount: CPUs, memory and GPUs, of any
type or of one. A *room* is what a host has for ordinary jobs: what is free, and the parts that
pilots of ours hold there. Rooms get smaller as jobs of a decision are placed in them, never larger.
Called by ``giveback_parts``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from bftrainer.model.cluster import Node, NodeLeft, NodeState
from bftrainer.model.node_sets import NodeSet
from bftrainer.model.parts import ANY_TYPE, NodePart, type_name

OF_OTHERS = 4


@dataclass(slots=True, kw_only=True)
class HostAmount:
    """CPUs, memory and GPUs of a host; not negative."""

    cpus: int = 0
    memory_mb: float = 0.0  # inf: memory is not allocated to jobs
    gpus: dict[str, int] = field(default_factory=dict)  # by type, as ``NodePart.gpu_type``

    def copy(self) -> HostAmount:
        """Return an equal amount that changes by itself."""
        return HostAmount(cpus=self.cpus, memory_mb=self.memory_mb, gpus=dict(self.gpus))

    def n_gpus(self, gpu_type: str = "") -> int:
        """Return the number of GPUs of a type, as jobs name it; "": of all types."""
        if not gpu_type:
            return sum(self.gpus.values())
        full_type = f"{ANY_TYPE}:{gpu_type}"
        if full_type in self.gpus or any(kind != ANY_TYPE for kind in self.gpus):
            return self.gpus.get(full_type, 0)
        return self.gpus.get(ANY_TYPE, 0)  # the host's types are not told apart

    def add(self, part: NodePart) -> None:
        """Add what a part has."""
        self.cpus += part.cores
        self.memory_mb += part.memory_mb
        if part.gpus:
            self.gpus[part.gpu_type] = self.gpus.get(part.gpu_type, 0) + part.gpus

    def take(self, need: RoomNeed) -> None:
        """Take what a job needs; of several types first the one of which most are left."""
        self.cpus = max(0, self.cpus - need.cpus)
        self.memory_mb = max(0.0, self.memory_mb - need.memory_mb)
        missing = need.gpus
        kinds = sorted(self.gpus, key=lambda kind: (-self.gpus[kind], kind))
        if need.gpu_type and f"{ANY_TYPE}:{need.gpu_type}" in self.gpus:
            kinds = [f"{ANY_TYPE}:{need.gpu_type}"]
        for kind in kinds:
            n_gpus = min(missing, self.gpus[kind])
            self.gpus[kind] -= n_gpus
            missing -= n_gpus

    def lacks(self, need: RoomNeed) -> tuple[int, float, int]:
        """Return how many CPUs, how much memory and how many GPUs are missing for a job."""
        n_gpus = 0
        if need.gpus:
            n_gpus = need.gpus - self.n_gpus(need.gpu_type)
        return (
            max(0, need.cpus - self.cpus),
            max(0.0, need.memory_mb - self.memory_mb),
            max(0, n_gpus),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomNeed:
    """What a job needs of each of its hosts."""

    cpus: int
    memory_mb: int = 0
    gpus: int = 0
    gpu_type: str = ""  # as jobs name it; "": any

    @classmethod
    def of(cls, share: NodeLeft, gpu_type: str) -> RoomNeed:
        """Return a job's share of a host as a need."""
        return cls(cpus=share.cpus, memory_mb=share.memory_mb, gpus=share.gpus, gpu_type=gpu_type)


class LentPart(NamedTuple):  # made by the thousand, in two thirds of a frozen dataclass's time
    """A part in the way of ordinary jobs."""

    part: NodePart
    tier: int  # 0 to 2: no trainer loses by its release; 3: one does; ``OF_OTHERS``
    pilot_id: str = ""  # "": of another daemon, which gives it back by itself


@dataclass(slots=True, kw_only=True)
class HostRoom:
    """What a host has for ordinary jobs."""

    name: str
    bit: NodeSet
    free: HostAmount  # now, or as soon as what was asked to leave has left
    lent: list[LentPart] = field(default_factory=list)  # and not released by this decision
    is_shared_out: bool = False  # an ordinary job is on it: no job may have all of it
    free_names: list[str] = field(default_factory=list)  # of parts, or of the host as a whole

    def victims(self, need: RoomNeed | None) -> list[LentPart] | None:
        """Return the parts without which a job has room; None: it has none without all of ours.

        Args:
            need: None: of all of the host.
        """
        if need is None:
            if self.is_shared_out:
                return None
            return list(self.lent)
        lack = self.free.lacks(need)
        if not any(lack):
            return []
        parts: list[LentPart] = []
        trial = self.free.copy()
        for lent in sorted(self.lent, key=_cheapness):
            if not _helps(lent.part, trial.lacks(need), need):
                continue
            trial.add(lent.part)
            parts.append(lent)
            if not any(trial.lacks(need)):
                return self._without_idle_ones(parts, need)
        return None

    def sufficient(self, need: RoomNeed | None) -> Iterator[LentPart]:
        """Yield the parts each of which makes room for a job by itself."""
        if need is None:
            if len(self.lent) == 1:
                yield from self.lent
            return
        cpus, memory_mb, gpus = self.free.lacks(need)
        for lent in self.lent:
            part = lent.part
            has_rest = part.cores >= cpus and part.memory_mb >= memory_mb
            if has_rest and part.gpus >= gpus and _helps(part, (cpus, memory_mb, gpus), need):
                yield lent

    def _without_idle_ones(self, parts: Sequence[LentPart], need: RoomNeed) -> list[LentPart]:
        """Leave out parts that the others make unnecessary, the dearest first."""
        necessary = list(parts)
        for lent in reversed(parts):
            without_it = [part for part in necessary if part is not lent]
            trial = self.free.copy()
            for part in without_it:
                trial.add(part.part)
            if not any(trial.lacks(need)):
                necessary = without_it
        return necessary

    def place(self, need: RoomNeed | None, released: Iterable[LentPart]) -> None:
        """Put a job on the host, after these parts are released."""
        released_names = {lent.part.name for lent in released}
        for lent in released:
            self.free.add(lent.part)
        self.lent = [lent for lent in self.lent if lent.part.name not in released_names]
        self.is_shared_out = True
        if need is None:
            self.free = HostAmount()
        else:
            self.free.take(need)

    def names_held_off(self, shapes: Mapping[str, NodePart]) -> list[str]:
        """Return the free parts that no longer fit beside the jobs placed here.

        Args:
            shapes: part of each name of ``free_names``.
        """
        room_left = self.free.copy()
        crowded_out: list[str] = []
        for name in self.free_names:
            part = shapes[name]
            need = RoomNeed(cpus=part.cores, memory_mb=part.memory_mb)
            has_gpus = room_left.gpus.get(part.gpu_type, 0) >= part.gpus
            if not part.gpus:
                has_gpus = True
            if not has_gpus or any(room_left.lacks(need)):
                crowded_out.append(name)
                continue
            room_left.take(need)
            if part.gpus:
                room_left.gpus[part.gpu_type] -= part.gpus
        return crowded_out


def _cheapness(lent: LentPart) -> tuple[int, int, str]:
    return lent.tier, lent.part.gpus, lent.part.name


def _helps(part: NodePart, lack: tuple[int, float, int], need: RoomNeed) -> bool:
    """Return whether a part has of what is missing; a job lacking GPUs needs parts with GPUs."""
    cpus, memory_mb, gpus = lack
    if gpus:
        full_type = f"{ANY_TYPE}:{need.gpu_type}"
        return part.gpus > 0 and (not need.gpu_type or part.gpu_type in (full_type, ANY_TYPE))
    return bool((cpus and part.cores) or (memory_mb and part.memory_mb))


def free_amount(node: Node) -> HostAmount:
    """Return what of a host no job and no pilot has."""
    room = node.left
    if node.state in (NodeState.IDLE, NodeState.PLANNED):
        room = NodeLeft(cpus=node.cpus, memory_mb=node.memory_mb, gpus=node.gpus)
    if room is None:
        room = NodeLeft(cpus=0)
    memory_mb: float = room.memory_mb
    if not node.memory_mb:
        memory_mb = math.inf
    return HostAmount(cpus=room.cpus, memory_mb=memory_mb, gpus=_gpus_by_type(node, room.gpus))


def _gpus_by_type(node: Node, n_free: int) -> dict[str, int]:
    """Return the free GPUs by type, as far as they are told apart."""
    if len(node.lends) > 1:
        return {type_name(lent): lent.n_free for lent in node.lends}
    kind = ANY_TYPE
    for lent in node.lends:
        kind = type_name(lent)
    return {kind: n_free}
