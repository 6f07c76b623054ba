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
_RANGES = {
    "n_nodes": (1, 200_000),
    "machine_nodes": (1, 200_000),
    "hours": (0.01, 2 * 366 * 24),
    "poll_s": (0.1, 3600),
    "holes_per_hour": (0.001, 3600),
    "hole_gap_sigma": (0, 5),
    "hole_median_nodes": (0.001, 200_000),
    "hole_sigma": (0, 5),
    "load_sigma": (0, 5),
    "load_hours": (0.001, 1e6),
    "largest_hole_share": (0, 1),
    "groups_per_log_size": (0, 100),
    "shortest_s": (0, 86_400),
    "length_scale_s": (0.001, 1e9),
    "length_shape": (0.1, 10),
    "short_gap_share": (0, 0.9),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorParameters:
    """Parameters of a synthetic machine; defaults are fitted to Summit in February 2021."""

    n_nodes: int = 256  # of the trace: the first nodes of the machine
    machine_nodes: int = SUMMIT_NODES  # raised to n_nodes; sizes of holes grow with it
    hours: float = 48.0
    seed: int = 1
    start_s: float = 0.0
    poll_s: float = 10.0  # all times are multiples of it
    holes_per_hour: float = 44.5
    hole_gap_sigma: float = 1.2  # lognormal: holes come in bursts
    hole_median_nodes: float = 4.0  # on a machine of SUMMIT_NODES
    hole_sigma: float = 1.4
    load_sigma: float = 1.4  # of the median's slow ups and downs (log), which forget
    load_hours: float = 1.0  # themselves in this time
    largest_hole_share: float = 0.5  # of the machine
    groups_per_log_size: float = 0.42  # a hole of k nodes ends in 1 + Poisson(this * ln k) groups
    shortest_s: float = 70.0
    length_scale_s: float = 683.0  # Weibull, above shortest_s
    length_shape: float = 0.56
    together_s: float = 20.0  # a group ends with another one that ends so near,
    together_share: float = 0.12  # or within this share of its length
    short_gap_share: float = 0.15  # of all fragments: gaps under shortest_s (an assumption)


@dataclass(slots=True, kw_only=True)
class _Machine:
    """The machine while holes are generated."""

    busy_from_s: NDArray[np.float64]  # of each node: when its last fragment ended
    node: list[NDArray[np.int64]] = field(default_factory=list)
    start_s: list[NDArray[np.float64]] = field(default_factory=list)
    end_s: list[NDArray[np.float64]] = field(default_factory=list)
    leaves_s: list[float] = field(default_factory=list)  # ascending


def generate(
    parameters: GeneratorParameters | None = None, progress: Progress | None = None
) -> Fragments:
    """Return a trace; every fragment counts as unfillable.

    Raises:
        TraceError: BFT-4009, a parameter is out of range.
    """
    p = parameters or GeneratorParameters()
    _check(p)
    n_machine = max(p.n_nodes, p.machine_nodes)
    until_s = WARM_UP_S + p.hours * HOUR_S
    holes = _holes(p, _stream(p, 0), p.holes_per_hour, until_s, is_short=False)
    holes += _holes(p, _stream(p, 1), _short_holes_per_hour(p), until_s, is_short=True)
    holes.sort()
    machine = _Machine(busy_from_s=np.full(n_machine, -1.0))
    chance = _stream(p, 2)
    for k, (at_s, size, is_short) in enumerate(holes):
        _open_hole(p, machine, chance, at_s, size, is_short=is_short)
        if progress is not None and k % HOLES_PER_REPORT == 0:
            progress(k / len(holes))
    return _trace(p, machine, until_s)


def _check(p: GeneratorParameters) -> None:
    for parameter in fields(p):
        name, value = parameter.name, float(getattr(p, parameter.name))
        low, high = _RANGES.get(name, (0.0, 1e11))
        if not low <= value <= high:  # false for NaN, too
            raise TraceError(
                "BFT-4009",
                f"{name} is {value:g}, which is not in {low:g}..{high:g}.",
                "Choose it in that range.",
            )


def _stream(p: GeneratorParameters, purpose: int) -> np.random.Generator:
    """Independent random numbers by purpose: a change of one does not affect the others."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([p.seed, purpose])))


def _short_holes_per_hour(p: GeneratorParameters) -> float:
    """Return the holes per hour that make ``short_gap_share`` of all fragments."""
    return p.holes_per_hour * p.short_gap_share / (1 - p.short_gap_share)


def _holes(
    p: GeneratorParameters,
    chance: np.random.Generator,
    per_hour: float,
    until_s: float,
    *,
    is_short: bool,
) -> list[tuple[float, int, bool]]:
    """Return when holes open, and their numbers of nodes."""
    if per_hour <= 0:
        return []
    mean_s = HOUR_S / per_hour
    median_s = mean_s * math.exp(-(p.hole_gap_sigma**2) / 2)
    n_machine = max(p.n_nodes, p.machine_nodes)
    median = p.hole_median_nodes * n_machine / SUMMIT_NODES
    largest = max(1, int(p.largest_hole_share * n_machine))
    holes: list[tuple[float, int, bool]] = []
    at_s, load = 0.0, _normal(chance)
    while at_s < until_s:
        gap_s = median_s * math.exp(p.hole_gap_sigma * _normal(chance))
        at_s += gap_s
        kept = math.exp(-gap_s / (p.load_hours * HOUR_S))
        load = kept * load + math.sqrt(1 - kept * kept) * _normal(chance)
        spread = p.load_sigma * load + p.hole_sigma * _normal(chance)
        size = round(min(largest, median * math.exp(spread)))
        holes.append((_polled(p, at_s), max(1, size), is_short))
    return holes


def _open_hole(
    p: GeneratorParameters,
    machine: _Machine,
    chance: np.random.Generator,
    at_s: float,
    size: int,
    *,
    is_short: bool,
) -> None:
    busy = np.flatnonzero(machine.busy_from_s < at_s)
    if not len(busy):
        return
    # Any nodes: their numbers carry no meaning, as in logs whose columns are shuffled.
    nodes = _some_of(busy, size, chance)
    n_groups = min(len(nodes), 1 + _poisson(chance, p.groups_per_log_size * math.log(size)))
    cuts = sorted(1 + int(chance.random() * (len(nodes) - 1)) for _ in range(n_groups - 1))
    for low, high in zip([0, *cuts], [*cuts, len(nodes)], strict=True):
        if high > low:
            end_s = _end(p, machine, chance, at_s, is_short=is_short)
            machine.node.append(nodes[low:high])
            machine.start_s.append(np.full(high - low, at_s))
            machine.end_s.append(np.full(high - low, end_s))
            machine.busy_from_s[nodes[low:high]] = end_s


def _some_of(
    nodes: NDArray[np.int64], count: int, chance: np.random.Generator
) -> NDArray[np.int64]:
    """Choose ``count`` of the nodes, or all if there are fewer."""
    if count * 8 > len(nodes):
        return nodes[np.argsort(chance.random(len(nodes)), kind="stable")[:count]]
    chosen: dict[int, None] = {}
    while len(chosen) < count:
        chosen[int(chance.random() * len(nodes))] = None
    return nodes[list(chosen)]


def _end(
    p: GeneratorParameters,
    machine: _Machine,
    chance: np.random.Generator,
    at_s: float,
    *,
    is_short: bool,
) -> float:
    """Return when a group is taken back, often with others: one job takes many nodes."""
    drawn = chance.random()
    if is_short:  # as many gaps of one poll to the next as of half to the whole longest
        longest_s = max(p.shortest_s - p.poll_s, p.poll_s)
        return at_s + _polled(p, p.poll_s * (longest_s / p.poll_s) ** drawn)
    above_s = p.length_scale_s * (-math.log1p(-drawn)) ** (1 / p.length_shape)
    length_s = min(LONGEST_S, p.shortest_s + above_s)
    target_s = _polled(p, at_s + length_s)
    near_s = p.together_s + p.together_share * length_s
    place = bisect_left(machine.leaves_s, target_s)
    others = [x for x in machine.leaves_s[max(0, place - 1) : place + 1]
              if abs(x - target_s) <= near_s and x >= at_s + p.shortest_s]  # fmt: skip
    if others:
        return min(others, key=lambda x: (abs(x - target_s), x))
    end_s = max(target_s, _polled(p, at_s + p.shortest_s))
    insort(machine.leaves_s, end_s)
    return end_s


def _trace(p: GeneratorParameters, machine: _Machine, until_s: float) -> Fragments:
    node: NDArray[Any] = np.concatenate(machine.node)
    start_s, end_s = np.concatenate(machine.start_s), np.concatenate(machine.end_s)
    changes = np.unique(np.concatenate((start_s, end_s)))
    begin_s = _polled(p, WARM_UP_S)
    stop_s = max(_polled(p, until_s), begin_s + p.poll_s)
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


def _polled(p: GeneratorParameters, at_s: float) -> float:
    """Return the time of the next poll."""
    return math.ceil(at_s / p.poll_s - 1e-9) * p.poll_s


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
