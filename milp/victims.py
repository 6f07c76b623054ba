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

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from milp.problem import Problem, ProblemError, ProblemNode, ProblemTrainer
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
    pool = {node.name: node for node in problem.nodes}
    held = {name for trainer in problem.trainers for name in trainer.current}
    free = _unheld(pool, held, candidates)
    givers = _givers(problem, pool, candidates)
    n_available = len(free) + sum(len(giver.may_go) for giver in givers)
    if not 0 <= n_nodes <= n_available:
        raise ProblemError(
            "BFT-3060",
            f"{n_nodes} nodes are to be given back, {n_available} can be.",
            "Ask for no more nodes than trainers and pilots hold.",
        )
    if n_nodes < len(free):
        free.sort(key=lambda name: (_remaining_s(pool[name]), name))
    given = free[:n_nodes]
    counts = _share(givers, n_nodes - len(given))
    return _victims(given, givers, counts, pool)


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
    pool = {node.name: node for node in problem.nodes}
    on_host = {name for name, node in pool.items() if node.host == host and node.has_pilot}
    if candidates is not None:
        on_host &= set(candidates)
    held = {name for trainer in problem.trainers for name in trainer.current}
    free = sorted(on_host - held, key=lambda name: (_remaining_s(pool[name]), name))
    givers = [
        replace(giver, may_go=tuple(_in_order(giver.trainer, giver.may_go, pool)))
        for giver in _givers(problem, pool, on_host)
        if giver.may_go
    ]
    n_most = sum([pool[name].width for name in on_host])
    if not 0 <= n_gpus <= n_most:
        raise ProblemError(
            "BFT-3062",
            f"{n_gpus} GPUs of host {host} are to be given back, {n_most} can be.",
            "Ask for no more GPUs than the parts of trainers and pilots on the host have.",
        )
    tie = TIE * (max([float(np.abs(giver.costs).max()) for giver in givers], default=0.0) or 1.0)
    # What each may give: cost, GPUs and parts of giving none, the first, the first two...
    offers: list[list[tuple[float, int, int]]] = [
        [(0.0, 0, 0), (0.0, pool[name].width, 1)] for name in free
    ]
    for giver in givers:
        widths = np.cumsum([0, *(pool[name].width for name in giver.may_go)]).tolist()
        offers.append(
            [
                (float(cost) + (tie if count else 0.0), width, count)
                for count, (cost, width) in enumerate(zip(giver.costs, widths, strict=True))
            ]
        )
    counts = _cheapest_cover(offers, n_gpus)
    given = [name for name, count in zip(free, counts, strict=False) if count]
    return _victims(given, givers, counts[len(free) :], pool)


def _cheapest_cover(offers: Sequence[Sequence[tuple[float, int, int]]], n_gpus: int) -> list[int]:
    """Return how many parts each gives so that they have ``n_gpus`` at least, at the least cost."""
    # By GPUs that are covered so far: cost, GPUs, parts and who gives how many.
    best: dict[int, tuple[float, int, int, tuple[int, ...]]] = {0: (0.0, 0, 0, ())}
    for offer in offers:
        reached: dict[int, tuple[float, int, int, tuple[int, ...]]] = {}
        for covered, (cost, gpus, parts, counts) in best.items():
            for more_cost, more_gpus, more_parts in offer:
                at = min(covered + more_gpus, n_gpus)
                row = (
                    cost + more_cost,
                    gpus + more_gpus,
                    parts + more_parts,
                    (*counts, more_parts),
                )
                if at not in reached or row < reached[at]:
                    reached[at] = row
        best = reached
    return list(best[n_gpus][-1])


def _victims(
    given: Sequence[str],
    givers: Sequence[_Giver],
    counts: Sequence[int],
    pool: Mapping[str, ProblemNode],
) -> Victims:
    """Return the names of what is given back: those that nobody has, and so many of each giver."""
    nodes = list(given)
    freed: list[str] = []
    sizes_after: dict[str, int] = {}
    for giver, count in zip(givers, counts, strict=True):
        going = giver.may_go
        if 0 < count < len(going):
            going = tuple(_in_order(giver.trainer, going, pool)[:count])
        nodes += going[:count]
        left = size = len(giver.present) - count
        if count and (size := giver.trainer.largest_of(left)) < left:
            gone = set(going[:count])
            stays = [name for name in giver.present if name not in gone]
            freed += _in_order(giver.trainer, stays, pool)[: left - size] if size else stays
        sizes_after[giver.trainer.trainer_id] = size
    return Victims(
        nodes=tuple(nodes),
        freed=tuple(freed),
        sizes_after=sizes_after,
        parked=tuple(name for name, size in sizes_after.items() if size == 0),
        cost=math.fsum(float(g.costs[n]) for g, n in zip(givers, counts, strict=True)),
    )


def _unheld(
    pool: Mapping[str, ProblemNode], held: Collection[str], candidates: Collection[str] | None
) -> list[str]:
    """Candidates that no trainer has, by name."""
    if candidates is None:
        return sorted(name for name in pool.keys() - held if pool[name].has_pilot)
    for name in candidates:
        if name not in pool:
            raise ProblemError(
                "BFT-3061",
                f"Node {name} is to be given back and is not in the pool.",
                "Name nodes of the problem only.",
            )
    return sorted(set(candidates).difference(held))


def _remaining_s(node: ProblemNode) -> float:
    return math.inf if node.expected_remaining_s is None else node.expected_remaining_s


def _in_order(
    trainer: ProblemTrainer, names: Sequence[str], pool: Mapping[str, ProblemNode]
) -> list[str]:
    """First to go: still starting, soonest to leave, on a sparse switch."""
    settled = set(trainer.settled)
    nodes = [pool[name] for name in names]
    on_switch = Counter([node.switch for node in nodes])
    rows = [
        (
            node.name in settled,
            _remaining_s(node),
            on_switch[node.switch],
            node.switch,
            node.name,
        )
        for node in nodes
    ]
    return [row[-1] for row in sorted(rows)]


def _givers(
    problem: Problem, pool: Mapping[str, ProblemNode], candidates: Collection[str] | None
) -> list[_Giver]:
    may_go_at_all = set(candidates or ())
    givers: list[_Giver] = []
    for trainer in problem.trainers:
        present = tuple([name for name in trainer.current if name in pool])
        if not present:
            continue
        may_go = present
        if candidates is not None:
            may_go = tuple(name for name in present if name in may_go_at_all)
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
        for count in range(1, len(costs)) if trainer.sizes else ():
            costs[count] = values[-1] - values[trainer.largest_of(len(present) - count)]
        givers.append(_Giver(trainer=trainer, present=present, may_go=may_go, costs=costs))
    return givers


def _share(givers: Sequence[_Giver], n_nodes: int) -> list[int]:
    """Return how many each gives so that the sum is ``n_nodes`` and the cost least.

    Walks from the last giver to the first over what those up to it give together, then
    forward over the choices; only sums that the others can complete are kept.
    """
    most = [len(giver.may_go) for giver in givers]
    before = np.concatenate([[0], np.cumsum(most, dtype=np.int64)]).tolist()  # givers < j
    largest_cost = float(np.abs(np.concatenate([np.zeros(1), *(g.costs for g in givers)])).max())
    tie = TIE * (largest_cost or 1.0)
    costs = [giver.costs + tie for giver in givers]
    for own in costs:
        own[0] -= tie
    low, best = 0, np.zeros(1)  # best[x - low]: least cost at which givers j.. give x
    stages = [(low, best)]
    for j in range(len(givers) - 1, -1, -1):
        high = min(low + len(best) - 1 + most[j], n_nodes)
        new_low = max(n_nodes - before[j], 0)
        # Row g of the window, column x: best[x - g - low], inf where that is impossible.
        pad = np.full(most[j] + high - new_low + 1 + most[j], np.inf)
        first = new_low - most[j] - low  # position in ``best`` of the start of ``pad``
        start, stop = max(first, 0), min(first + len(pad), len(best))
        pad[start - first : stop - first] = best[start:stop]
        step = pad.itemsize
        window: FloatArray = np.ndarray(
            (most[j] + 1, high - new_low + 1),
            dtype=np.float64,
            buffer=pad,
            offset=most[j] * step,
            strides=(-step, step),
        )
        low, best = new_low, (window + costs[j][:, None]).min(axis=0)
        stages.append((low, best))
    counts: list[int] = []
    left = n_nodes
    for j, own in enumerate(costs):
        low, best = stages[len(givers) - 1 - j]
        fewest, largest = max(left - low - len(best) + 1, 0), min(most[j], left - low)
        # The others give left - low - fewest, then one less each.
        others = best[left - low - largest : left - low - fewest + 1][::-1]
        sums = others + own[fewest : largest + 1]
        count = fewest + int((sums <= sums.min() + tie / 2).argmax())
        counts.append(count)
        left -= count
    return counts
