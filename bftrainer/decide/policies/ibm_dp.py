"""The greatest sum of scaling factors, with n_min for each trainer that has entered.

Source: Saxena et al., "Effective elastic scaling of deep learning workloads" (arXiv 2006.13878),
sections III-C (optimiser) and III-D (autoscaler). Batches are part of the curve, which has the
throughput of the best batch at each size. Beyond the paper: n_min may be more than 1, nodes are
lost, there are several classes of them, and between two rounds no trainer shrinks.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace

from bftrainer.decide.policies.base import About, Context, Decided, Policy, Traits, in_order
from bftrainer.decide.policies.convolution import Floats, best_sizes
from bftrainer.decide.policies.distribution import Handing
from bftrainer.model.decision import Term
from bftrainer.model.lookups import by_trainer
from milp.check import validate
from milp.pool import PoolView, view_pool
from milp.problem import Curve, Objective, Problem, ProblemTrainer
from milp.tables import rate_curve, rates_up_to

STAYS = 1e-9  # a size that does not change is worth so much more: fewest rescales of equal answers


@dataclass(frozen=True, slots=True, kw_only=True)
class IbmOptions:
    """Options of the policy."""

    period_s: float = 600.0  # between two rounds, in which trainers may shrink: the paper's delta
    drop: bool = False  # a trainer that cannot enter in a round is refused; False: it waits

    def __post_init__(self) -> None:
        """Raise ValueError for a period that is none."""
        if not 0.0 <= self.period_s < math.inf:
            raise ValueError(f"period_s is {self.period_s:g}, but must be 0 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entered:
    """A trainer that gets nodes."""

    j: int  # in the pool's order
    k: int  # class of its nodes
    smallest: int  # nodes


def _allocate(problem: Problem, context: Context, /) -> Decided:
    """Trainers enter in order of submission while everybody in has n_min; then sizes are chosen.

    One that does not fit is passed over. Trainers shrink in a round only, at most every
    ``period_s`` or when one that runs has lost nodes and would stop; free nodes are handed out
    at every decision. When nodes are lost the last to enter stop first, and enter again first.
    """
    validate(problem)
    options, state = context.options, context.state or {"entered": [], "round_s": None}
    # One that is no part of this problem, because its nodes are fixed for now, keeps its place.
    before = [trainer_id for trainer_id in state["entered"] if trainer_id in context.trainers]
    line = _line(problem, before)
    pool = view_pool(replace(_ordered(problem, line), p_jmax=len(line)), is_apart=True)
    is_round = _is_due(state["round_s"], options.period_s, context.now_s) or _stops(pool)
    entered = _enter(pool, len(line), problem.p_jmax, shrinks=is_round)
    entering = tuple([line[entry.j] for entry in entered])
    members = dict.fromkeys([*before, *entering])
    handing = Handing(_ordered(problem, in_order(_by_id(problem), entering)), is_spread=True)
    entries = _enter(handing.pool, len(entering), len(entering), shrinks=is_round)
    worths = _worths(handing.pool, entries)
    _hand_out(handing, entries, worths)
    round_s = context.now_s
    if not is_round:
        round_s = state["round_s"]
    return replace(
        handing.answer(POLICY.name, _terms(handing, entries, worths).__getitem__),
        state={"entered": list(members), "round_s": round_s},
        wake_at_s=None if is_round else round_s + options.period_s,
        order=entering,
        dropped=_dropped(problem, members) if options.drop and is_round else {},
    )


def _line(problem: Problem, entered: Sequence[str]) -> list[str]:
    """Return trainers that have entered, in that order, then others with nodes, then all others."""
    trainers = _by_id(problem)
    line = dict.fromkeys([trainer_id for trainer_id in entered if trainer_id in trainers])
    for trainer_id, trainer in trainers.items():
        if trainer.current:
            line.setdefault(trainer_id)
    return in_order(trainers, tuple(line))


def _ordered(problem: Problem, order: Sequence[str]) -> Problem:
    trainers = _by_id(problem)
    return replace(problem, trainers=tuple([trainers[trainer_id] for trainer_id in order]))


def _by_id(problem: Problem) -> dict[str, ProblemTrainer]:
    return by_trainer(problem.trainers)


def _is_due(round_s: float | None, period_s: float, now_s: float) -> bool:
    return round_s is None or not round_s <= now_s < round_s + period_s


def _stops(pool: PoolView) -> bool:
    """Return whether a trainer has nodes, but fewer than n_min."""
    for j, names in enumerate(pool.present):
        _, n_there = _home(pool, j)
        if len(names) and n_there < pool.trainers[j].n_min:
            return True
    return False


def _home(pool: PoolView, j: int) -> tuple[int, int]:
    """Return the class of which a trainer has most nodes that it accepts, and how many."""
    home, max_held = 0, -1
    for k, n_held in enumerate(pool.held[j]):
        if pool.accepts[j][k] and n_held > max_held:
            home, max_held = k, n_held
    return home, max(0, max_held)


def _enter(pool: PoolView, first: int, most: int, *, shrinks: bool) -> list[_Entered]:
    """Let some of the first trainers enter, one by one.

    If no trainer shrinks, those with nodes keep them and come before the others.
    """
    line = sorted(range(first), key=lambda j: not (shrinks or pool.present[j]))
    free, entries = list(pool.counts()), list[_Entered]()
    for j in line:
        if len(entries) == most:
            break
        k, n_held = _home(pool, j)
        if not n_held:  # any class that it accepts: the one with most nodes left
            k = max(range(len(free)), key=lambda k: (pool.accepts[j][k], free[k]))
        n_min, largest = pool.trainers[j].n_min, pool.largest_of_one(j, k)
        size = n_min
        if not shrinks:
            size = max(n_min, min(n_held, largest))
        if size <= min(largest, free[k]):
            entries.append(_Entered(j=j, k=k, smallest=size))
            free[k] -= size
    return entries


def _worths(pool: PoolView, entries: Sequence[_Entered]) -> list[Floats]:
    """Return the worth of each one's sizes, as far as there are nodes for them."""
    spare = list(pool.counts())
    for entry in entries:
        spare[entry.k] -= entry.smallest
    return [_worth(pool, entry, spare[entry.k]) for entry in entries]


def _hand_out(handing: Handing, entries: Sequence[_Entered], worths: Sequence[Floats]) -> None:
    """Choose the sizes, class by class."""
    for k, count in enumerate(handing.counts):
        of_class, its_worths = list[_Entered](), list[Floats]()
        for entry, worth in zip(entries, worths, strict=True):
            if entry.k == k:
                of_class.append(entry)
                its_worths.append(worth)
        best = best_sizes(count, [entry.smallest for entry in of_class], its_worths)
        for entry, size in zip(of_class, best or (), strict=True):
            handing.home[entry.j] = k
            handing.take(entry.j, size)


def _worth(pool: PoolView, entry: _Entered, spare: int) -> Floats:
    """Return the scaling factors of a trainer's sizes, from the least one to the largest."""
    curve = rate_curve(pool.trainers[entry.j], Objective.SCALING_EFFICIENCY)
    largest = min(pool.largest_of_one(entry.j, entry.k), entry.smallest + spare)
    worth = rates_up_to(curve, largest)[entry.smallest :] / _single(curve)
    present = pool.held[entry.j][entry.k] - entry.smallest
    if 0 <= present < len(worth):
        worth[present] += STAYS
    return worth


def _terms(
    handing: Handing, entries: Sequence[_Entered], worths: Sequence[Floats]
) -> dict[int, tuple[Term, ...]]:
    """Return the scaling factors of those that entered, and what the others lack."""
    free, terms = list(handing.counts), dict[int, tuple[Term, ...]]()
    for place, (entry, worth) in enumerate(zip(entries, worths, strict=True), start=1):
        free[entry.k] -= entry.smallest
        extra = handing.size(entry.j) - entry.smallest
        near = range(max(0, extra - 1), min(extra + 2, len(worth)))
        terms[entry.j] = (
            Term("entered as number", place),
            Term("least size now", entry.smallest, "nodes"),
            *[Term(f"scaling factor at {entry.smallest + n}", float(worth[n])) for n in near],
        )
    for j, trainer in enumerate(handing.trainers):
        n_left = max([free[k] for k in handing.accepted(j)], default=0)
        waits = Term("waits; needs at least", trainer.n_min, "nodes")
        terms.setdefault(j, (waits, Term("left by the least sizes", n_left, "nodes")))
    return terms


def _single(curve: Curve) -> float:
    """O(1); of a curve that starts at 0 what a node of the first other point has."""
    points = zip(curve.sizes, curve.samples_per_s, strict=True)
    return next((rate / size for size, rate in points if rate > 0.0), 1.0)


def _dropped(problem: Problem, members: Container[str]) -> dict[str, str]:
    reasons: dict[str, str] = {}
    for trainer in problem.trainers:
        if trainer.trainer_id not in members and not trainer.current:
            reasons[trainer.trainer_id] = (
                f"The policy ibm-dp found no {trainer.n_min} nodes for it"
                " beside the trainers that entered before it."
            )
    return reasons


POLICY = Policy(
    "ibm-dp",
    Traits(
        about=About(
            does="the greatest sum of scaling factors",
            optimises="the sum of the trainers' speed-ups over one node",
            source="Saxena et al., Effective elastic scaling, 2020",
        ),
        options=IbmOptions,
        admits=True,
    ),
    _allocate,
)
