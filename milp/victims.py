"""The nodes to give back now: the pilots and shrinks that cost the least, exactly.

Takes a Problem and the number of nodes that must go, returns the nodes and what every
trainer is left with; called when ordinary jobs need nodes at once. Nodes that no
trainer has go first, they cost nothing. The rest is shared out among the trainers by
an exact program over how many each gives; a trainer left below n_min is parked, and
what it still had is freed but not given back. One that may have certain sizes only goes
down to the next of them, and the rest is freed likewise.

Where GPUs are lent, a node here is a part with a pilot, which is one unit of its trainer whatever
its width. ``choose_victims_on`` asks for GPUs of one host instead of a number of nodes.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from milp.problem import (
    Problem,
    ProblemError,
    ProblemNode,
    ProblemTrainer,
    names_outside,
    names_within,
    nodes_by_name,
)
from milp.tables import FloatArray, value_table

TIE = 1e-12  # of the largest cost: how much one trainer touched more counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Victims:
    """The nodes to give back, and what the trainers are left with."""

    nodes: tuple[str, ...]  # given back, exactly as many as asked for (of GPUs: at least)
    freed: tuple[str, ...]  # lost by trainers beyond that: ours still, without a trainer
    sizes_after: Mapping[str, int]  # trainer_id -> size, of every trainer that had nodes
    parked: tuple[str, ...]  # trainer_ids that end at size 0
    cost: float  # objective units times seconds over t_fwd_s, pauses included


@dataclass(frozen=True, slots=True, kw_only=True)
class _Giver:
    """A trainer that has nodes, and what giving 0, 1, 2... of them costs."""

    trainer: ProblemTrainer
    present: tuple[str, ...]
    may_go: tuple[str, ...]  # in the order they go, where that order matters
    costs: FloatArray  # [g]: v_j(C_j) - v_j(what is left after giving g)


class _Offer(NamedTuple):
    """Parts that somebody may give together."""

    cost: float
    n_gpus: int
    n_parts: int


class _Cover(NamedTuple):
    """Parts that all give so far; of covers the least is the best, in the order of the fields."""

    cost: float
    n_gpus: int
    n_parts: int
    counts: tuple[int, ...]  # parts by who gives them


def choose_victims(
    problem: Problem, n_nodes: int, *, candidates: Collection[str] | None = None
) -> Victims:
    """Choose exactly ``n_nodes`` nodes to give back at the least cost.

    ``candidates`` are the names of nodes that may go; by default all that trainers have
    or that have a pilot. Ties: fewest trainers, then later trainers.
    Within a trainer nodes that are not settled go first, then those that leave soonest.

    Raises:
        ProblemError: fewer candidates than ``n_nodes``, or one that is not in the pool.
    """
    pool = nodes_by_name(problem.nodes)
    free_names = _unheld(pool, _held_names(problem), candidates)
    givers = _givers(problem, pool, candidates)
    n_available = len(free_names) + sum([len(giver.may_go) for giver in givers])
    if not 0 <= n_nodes <= n_available:
        raise ProblemError(
            "BFT-3060",
            f"{n_nodes} nodes are to be given back, {n_available} can be.",
            "Ask for no more nodes than trainers and pilots hold.",
        )
    if n_nodes < len(free_names):
        free_names.sort(key=lambda name: (_remaining_s(pool[name]), name))
    names_to_go = free_names[:n_nodes]
    counts = _share(givers, n_nodes - len(names_to_go))
    return _victims(names_to_go, givers, counts, pool)


def choose_victims_on(
    problem: Problem, host: str, n_gpus: int, *, candidates: Collection[str] | None = None
) -> Victims:
    """Choose parts of one host to give back, so that ``n_gpus`` of its GPUs at least get free.

    They cost as little as possible; of those that cost the same the ones with fewest trainers,
    then with fewest GPUs and fewest parts. GPUs that are free already do not count.
    ``candidates`` are as in ``choose_victims``.

    Raises:
        ProblemError: the candidates have fewer GPUs on that host.
    """
    pool = nodes_by_name(problem.nodes)
    on_host = {name for name, node in pool.items() if node.host == host and node.has_pilot}
    if candidates is not None:
        on_host &= set(candidates)
    free_names = sorted(
        on_host - _held_names(problem), key=lambda name: (_remaining_s(pool[name]), name)
    )
    givers: list[_Giver] = []
    for giver in _givers(problem, pool, on_host):
        if giver.may_go:
            in_order = tuple(_in_order(giver.trainer, giver.may_go, pool))
            givers.append(replace(giver, may_go=in_order))
    n_most = sum([pool[name].width for name in on_host])
    if not 0 <= n_gpus <= n_most:
        raise ProblemError(
            "BFT-3062",
            f"{n_gpus} GPUs of host {host} are to be given back, {n_most} can be.",
            "Ask for no more GPUs than the parts of trainers and pilots on the host have.",
        )
    tie = _tie(givers)
    offers: list[list[_Offer]] = []
    for name in free_names:
        nothing, part = _Offer(0.0, 0, 0), _Offer(0.0, pool[name].width, 1)
        offers.append([nothing, part])
    offers += [_offers_of(giver, tie, pool) for giver in givers]
    counts = _cheapest_cover(offers, n_gpus)
    names_to_go = list(itertools.compress(free_names, counts))
    return _victims(names_to_go, givers, counts[len(free_names) :], pool)


def _offers_of(giver: _Giver, tie: float, pool: Mapping[str, ProblemNode]) -> list[_Offer]:
    """Return what it may give: nothing, the first part, the first two..."""
    costs = giver.costs.tolist()
    offers = [_Offer(costs[0], 0, 0)]
    n_gpus = 0
    for count, name in enumerate(giver.may_go, 1):
        n_gpus += pool[name].width
        offers.append(_Offer(costs[count] + tie, n_gpus, count))
    return offers


def _cheapest_cover(offers: Sequence[Sequence[_Offer]], n_gpus: int) -> list[int]:
    """Return how many parts each gives so that they have ``n_gpus`` at least, at the least cost."""
    covers = {0: _Cover(0.0, 0, 0, ())}  # by GPUs that are covered so far
    for offers_of_one in offers:
        covers_before, covers = covers, {}
        for n_covered, cover in covers_before.items():
            for offer in offers_of_one:
                n_covered_now = min(n_covered + offer.n_gpus, n_gpus)
                extended = _Cover(
                    cover.cost + offer.cost,
                    cover.n_gpus + offer.n_gpus,
                    cover.n_parts + offer.n_parts,
                    (*cover.counts, offer.n_parts),
                )
                if n_covered_now not in covers or extended < covers[n_covered_now]:
                    covers[n_covered_now] = extended
    return list(covers[n_gpus].counts)


def _victims(
    free_names: Sequence[str],
    givers: Sequence[_Giver],
    counts: Sequence[int],
    pool: Mapping[str, ProblemNode],
) -> Victims:
    """Return the names of what is given back: those that nobody has, and so many of each giver."""
    nodes = list(free_names)
    freed: list[str] = []
    parked: list[str] = []
    sizes_after: dict[str, int] = {}
    costs: list[float] = []
    for giver, count in zip(givers, counts, strict=True):
        going = giver.may_go
        if 0 < count < len(going):
            going = tuple(_in_order(giver.trainer, going, pool))
        going = going[:count]
        nodes += going
        costs.append(float(giver.costs[count]))
        n_left = size = len(giver.present) - count
        if count:
            size = giver.trainer.largest_of(n_left)
        if size < n_left:
            names_left = names_outside(giver.present, set(going))
            if size:
                names_left = _in_order(giver.trainer, names_left, pool)
            freed += names_left[: n_left - size]
        sizes_after[giver.trainer.trainer_id] = size
        if not size:
            parked.append(giver.trainer.trainer_id)
    return Victims(
        nodes=tuple(nodes),
        freed=tuple(freed),
        sizes_after=sizes_after,
        parked=tuple(parked),
        cost=math.fsum(costs),
    )


def _held_names(problem: Problem) -> set[str]:
    names: set[str] = set()
    names.update(*[trainer.current for trainer in problem.trainers])
    return names


def _unheld(
    pool: Mapping[str, ProblemNode], held_names: Collection[str], candidates: Collection[str] | None
) -> list[str]:
    """Candidates that no trainer has, by name."""
    if candidates is None:
        return sorted([name for name in pool.keys() - held_names if pool[name].has_pilot])
    for name in candidates:
        if name not in pool:
            raise ProblemError(
                "BFT-3061",
                f"Node {name} is to be given back and is not in the pool.",
                "Name nodes of the problem only.",
            )
    return sorted(set(candidates).difference(held_names))


def _remaining_s(node: ProblemNode) -> float:
    return math.inf if node.expected_remaining_s is None else node.expected_remaining_s


def _in_order(
    trainer: ProblemTrainer, names: Sequence[str], pool: Mapping[str, ProblemNode]
) -> list[str]:
    """First to go: still starting, soonest to leave, on a sparse switch."""
    settled = set(trainer.settled)
    on_switch = Counter([pool[name].switch for name in names])

    def rank(name: str) -> tuple[bool, float, int, str, str]:
        node = pool[name]
        n_on_switch = on_switch[node.switch]
        return name in settled, _remaining_s(node), n_on_switch, node.switch, name

    return sorted(names, key=rank)


def _givers(
    problem: Problem, pool: Mapping[str, ProblemNode], candidates: Collection[str] | None
) -> list[_Giver]:
    may_go_at_all = set(candidates or ())
    givers: list[_Giver] = []
    for trainer in problem.trainers:
        present = tuple(names_within(trainer.current, pool))
        if not present:
            continue
        may_go = present
        if candidates is not None:
            may_go = tuple(names_within(present, may_go_at_all))
        values = value_table(
            trainer,
            len(present),
            len(present),
            t_fwd_s=problem.t_fwd_s,
            objective=problem.objective,
        )
        costs = values[-1] - values[::-1][: len(may_go) + 1]
        # Left below n_min is left with nothing.
        costs[max(len(present) - trainer.n_min + 1, 1) :] = values[-1] - values[0]
        if trainer.sizes:
            for count in range(1, len(costs)):
                costs[count] = values[-1] - values[trainer.largest_of(len(present) - count)]
        givers.append(_Giver(trainer=trainer, present=present, may_go=may_go, costs=costs))
    return givers


def _tie(givers: Sequence[_Giver]) -> float:
    """Return how much one trainer touched more counts."""
    largest_cost = max([float(np.abs(giver.costs).max()) for giver in givers], default=0.0)
    return TIE * (largest_cost or 1.0)


def _share(givers: Sequence[_Giver], n_nodes: int) -> list[int]:
    """Return how many each gives so that the sum is ``n_nodes`` and the cost least.

    Walks from the last giver to the first over what those up to it give together, then
    forward over the choices; only sums that the others can complete are kept.
    """
    limits = [len(giver.may_go) for giver in givers]
    n_before = np.concatenate([[0], np.cumsum(limits, dtype=np.int64)]).tolist()  # of givers < j
    tie = _tie(givers)
    costs: list[FloatArray] = []
    for giver in givers:
        with_tie = giver.costs + tie
        with_tie[0] -= tie
        costs.append(with_tie)
    low, best = 0, np.zeros(1)  # best[x - low]: least cost at which givers j.. give x
    stages = [(low, best)]
    for j in range(len(givers) - 1, -1, -1):
        limit = limits[j]
        high = min(low + len(best) - 1 + limit, n_nodes)
        new_low = max(n_nodes - n_before[j], 0)
        # Row g of the window, column x: best[x - g - low], inf where that is impossible.
        pad = np.full(limit + high - new_low + 1 + limit, np.inf)
        first = new_low - limit - low  # position in ``best`` of the start of ``pad``
        start, stop = max(first, 0), min(first + len(pad), len(best))
        pad[start - first : stop - first] = best[start:stop]
        step = pad.itemsize
        window: FloatArray = np.ndarray(
            (limit + 1, high - new_low + 1),
            dtype=np.float64,
            buffer=pad,
            offset=limit * step,
            strides=(-step, step),
        )
        low, best = new_low, (window + costs[j][:, None]).min(axis=0)
        stages.append((low, best))
    counts: list[int] = []
    n_missing = n_nodes
    for j, costs_of_giver in enumerate(costs):
        low, best = stages[len(givers) - 1 - j]
        fewest, largest = max(n_missing - low - len(best) + 1, 0), min(limits[j], n_missing - low)
        # Those behind give n_missing - low - fewest, then one less each.
        costs_behind = best[n_missing - low - largest : n_missing - low - fewest + 1][::-1]
        sums = costs_behind + costs_of_giver[fewest : largest + 1]
        count = fewest + int((sums <= sums.min() + tie / 2).argmax())
        counts.append(count)
        n_missing -= count
    return counts
