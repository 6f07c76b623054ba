"""A synthetic machine: idle fragments from a few parameters and a seed.

Idle time comes in holes: several nodes become idle together and are taken back in a few
groups. Gaps between holes and their sizes are lognormal, lengths Weibull; the defaults
are fitted to what is published about Summit (see ``docs/reference/traces.md``). The same arguments
give the same trace, bit for bit: only uniform numbers are drawn, times are whole polls.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bftrainer.batch.traces.fragments import HOUR_S, Fragments, make_fragments
from bftrainer.batch.traces.text import Progress, TraceError

SUMMIT_NODES = 4734
WARM_UP_S = 12 * HOUR_S  # before the trace, so that it starts with a typical pool
LONGEST_S = 24 * HOUR_S
HOLES_PER_REPORT = 500


def _in(low: float, high: float, default: Any) -> Any:
    return field(default=default, metadata={"range": (low, high)})


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorParameters:
    """Parameters of a synthetic machine; defaults are fitted to Summit in February 2021."""

    n_nodes: int = _in(1, 200_000, 256)  # of the trace: the first nodes of the machine
    # Raised to n_nodes; sizes of holes grow with it.
    machine_nodes: int = _in(1, 200_000, SUMMIT_NODES)
    hours: float = _in(0.01, 2 * 366 * 24, 48.0)
    seed: int = 1
    start_s: float = 0.0
    poll_s: float = _in(0.1, 3600, 10.0)  # all times are multiples of it
    holes_per_hour: float = _in(0.001, 3600, 44.5)
    hole_gap_sigma: float = _in(0, 5, 1.2)  # lognormal: holes come in bursts
    hole_median_nodes: float = _in(0.001, 200_000, 4.0)  # on a machine of SUMMIT_NODES
    hole_sigma: float = _in(0, 5, 1.4)
    # Of the median's slow ups and downs (log), which forget themselves in load_hours.
    load_sigma: float = _in(0, 5, 1.4)
    load_hours: float = _in(0.001, 1e6, 1.0)
    largest_hole_share: float = _in(0, 1, 0.5)  # of the machine
    groups_per_log_size: float = _in(0, 100, 0.42)  # k nodes: 1 + Poisson(this * ln k) groups
    shortest_s: float = _in(0, 86_400, 70.0)
    length_scale_s: float = _in(0.001, 1e9, 683.0)  # Weibull, above shortest_s
    length_shape: float = _in(0.1, 10, 0.56)
    together_s: float = 20.0  # a group ends with another one that ends so near,
    together_share: float = 0.12  # or within this share of its length
    short_gap_share: float = _in(0, 0.9, 0.15)  # of all fragments: gaps under shortest_s (assumed)


def generate(
    parameters: GeneratorParameters | None = None, progress: Progress | None = None
) -> Fragments:
    """Return a trace; every fragment counts as unfillable.

    Raises:
        TraceError: BFT-4009, a parameter is out of range.
    """
    p = parameters or GeneratorParameters()
    for parameter in fields(p):
        name, value = parameter.name, float(getattr(p, parameter.name))
        low, high = parameter.metadata.get("range", (0.0, 1e11))
        if not low <= value <= high:  # false for NaN, too
            raise TraceError(
                "BFT-4009",
                f"{name} is {value:g}, which is not in {low:g}..{high:g}.",
                "Choose it in that range.",
            )
    machine = _Machine(p)
    short_per_hour = p.holes_per_hour * p.short_gap_share / (1 - p.short_gap_share)
    holes = machine.holes(_stream(p, 0), p.holes_per_hour, is_short=False)
    holes += machine.holes(_stream(p, 1), short_per_hour, is_short=True)
    holes.sort()
    for k, (at_s, size, is_short) in enumerate(holes):
        machine.open_hole(at_s, size, is_short=is_short)
        if progress is not None and k % HOLES_PER_REPORT == 0:
            progress(k / len(holes))
    return machine.trace()


def _stream(p: GeneratorParameters, purpose: int) -> np.random.Generator:
    """Independent random numbers by purpose: a change of one does not affect the others."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([p.seed, purpose])))


class _Machine:
    """The machine while holes are generated."""

    def __init__(self, p: GeneratorParameters) -> None:
        self._p, self._chance = p, _stream(p, 2)
        self._n_machine = max(p.n_nodes, p.machine_nodes)
        self._until_s = WARM_UP_S + p.hours * HOUR_S
        self._busy_from_s = np.full(self._n_machine, -1.0)  # when a node's last fragment ended
        self._node: list[NDArray[np.int64]] = []
        self._start_s: list[NDArray[np.float64]] = []
        self._end_s: list[NDArray[np.float64]] = []
        self._leaves_s: list[float] = []  # ascending

    def holes(
        self, chance: np.random.Generator, per_hour: float, *, is_short: bool
    ) -> list[tuple[float, int, bool]]:
        """Return when holes open, and their numbers of nodes."""
        if per_hour <= 0:
            return []
        p = self._p
        median_s = HOUR_S / per_hour * math.exp(-(p.hole_gap_sigma**2) / 2)
        median = p.hole_median_nodes * self._n_machine / SUMMIT_NODES
        largest = max(1, int(p.largest_hole_share * self._n_machine))
        holes: list[tuple[float, int, bool]] = []
        at_s, load = 0.0, _normal(chance)
        while at_s < self._until_s:
            gap_s = median_s * math.exp(p.hole_gap_sigma * _normal(chance))
            at_s += gap_s
            memory = math.exp(-gap_s / (p.load_hours * HOUR_S))  # share of the load that stays
            load = memory * load + math.sqrt(1 - memory * memory) * _normal(chance)
            spread = p.load_sigma * load + p.hole_sigma * _normal(chance)
            size = round(min(largest, median * math.exp(spread)))
            holes.append((self._polled(at_s), max(1, size), is_short))
        return holes

    def open_hole(self, at_s: float, size: int, *, is_short: bool) -> None:
        """Free so many nodes, in groups that are taken back together."""
        busy = np.flatnonzero(self._busy_from_s < at_s)
        if not len(busy):
            return
        # Any nodes: their numbers carry no meaning, as in logs whose columns are shuffled.
        nodes, chance = _some_of(busy, size, self._chance), self._chance
        mean = self._p.groups_per_log_size * math.log(size)
        n_groups = min(len(nodes), 1 + _poisson(chance, mean))
        cuts = sorted(1 + int(chance.random() * (len(nodes) - 1)) for _ in range(n_groups - 1))
        for low, high in zip([0, *cuts], [*cuts, len(nodes)], strict=True):
            if high > low:
                end_s = self._end(at_s, is_short=is_short)
                self._node.append(nodes[low:high])
                self._start_s.append(np.full(high - low, at_s))
                self._end_s.append(np.full(high - low, end_s))
                self._busy_from_s[nodes[low:high]] = end_s

    def _end(self, at_s: float, *, is_short: bool) -> float:
        """Return when a group is taken back, often with others: one job takes many nodes."""
        p, draw = self._p, self._chance.random()
        if is_short:  # as many gaps of one poll to the next as of half to the whole longest
            longest_s = max(p.shortest_s - p.poll_s, p.poll_s)
            return at_s + self._polled(p.poll_s * (longest_s / p.poll_s) ** draw)
        above_s = p.length_scale_s * (-math.log1p(-draw)) ** (1 / p.length_shape)
        length_s = min(LONGEST_S, p.shortest_s + above_s)
        target_s = self._polled(at_s + length_s)
        near_s = p.together_s + p.together_share * length_s
        place = bisect_left(self._leaves_s, target_s)
        neighbours_s = [x for x in self._leaves_s[max(0, place - 1) : place + 1]
                        if abs(x - target_s) <= near_s and x >= at_s + p.shortest_s]  # fmt: skip
        if neighbours_s:
            return min(neighbours_s, key=lambda x: (abs(x - target_s), x))
        end_s = max(target_s, self._polled(at_s + p.shortest_s))
        insort(self._leaves_s, end_s)
        return end_s

    def trace(self) -> Fragments:
        """Return the trace, without the warm-up."""
        p, node = self._p, np.concatenate(self._node)
        start_s, end_s = np.concatenate(self._start_s), np.concatenate(self._end_s)
        changes = np.unique(np.concatenate((start_s, end_s)))
        begin_s = self._polled(WARM_UP_S)
        stop_s = max(self._polled(self._until_s), begin_s + p.poll_s)
        keep = (node < p.n_nodes) & (end_s > begin_s) & (start_s < stop_s)
        shift_s = p.start_s - begin_s
        observed = changes[(changes >= begin_s) & (changes < stop_s)]
        width = max(5, len(str(p.n_nodes - 1)))
        return make_fragments(
            names=[f"n{i:0{width}d}" for i in range(p.n_nodes)],
            node=node[keep],
            start_s=np.maximum(start_s[keep], begin_s) + shift_s,
            end_s=np.minimum(end_s[keep], stop_s) + shift_s,
            observed_s=observed + shift_s,
            span_s=(begin_s + shift_s, stop_s + shift_s),
            is_unfillable=np.ones(int(keep.sum()), dtype=bool),
            notes=("synthetic",),
            source="generated trace",
        )

    def _polled(self, at_s: float) -> float:
        """Return the time of the next poll."""
        return math.ceil(at_s / self._p.poll_s - 1e-9) * self._p.poll_s


def _some_of(
    nodes: NDArray[np.int64], count: int, chance: np.random.Generator
) -> NDArray[np.int64]:
    """Choose ``count`` of the nodes, or all if there are fewer."""
    if count * 8 > len(nodes):
        return nodes[np.argsort(chance.random(len(nodes)), kind="stable")[:count]]
    places: dict[int, None] = {}  # a set with an order
    while len(places) < count:
        places[int(chance.random() * len(nodes))] = None
    return nodes[list(places)]


def _normal(chance: np.random.Generator) -> float:
    """Return a standard normal number made of two uniform ones, the same in every numpy."""
    radius = math.sqrt(-2.0 * math.log1p(-chance.random()))
    return radius * math.cos(2.0 * math.pi * chance.random())


def _poisson(chance: np.random.Generator, mean: float) -> int:
    """Return a Poisson number by multiplying uniform ones; the means here are small."""
    limit, product, count = math.exp(-mean), chance.random(), 0
    while product > limit:
        product *= chance.random()
        count += 1
    return count
