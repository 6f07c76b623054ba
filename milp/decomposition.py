"""A bound of what solutions under caps that cross can be worth, and what each size costs.

Takes the value of each size of each trainer, and caps. ``milp.classes`` looks for solutions among
the sizes that cost least.

* Caps of which no two have a trainer in common are a *family*: those of users, or of accounts.
  Under one family the best sizes are found cap by cap, exactly, on any curve.
* Each family has values v_f(j, n) of its own, which add up to those of the problem. Sizes that
  keep all caps are worth sum_f v_f, and no more than the best of each family by itself. The sum of
  these is a bound, however the values are shared out (Guignard and Kim, "Lagrangean decomposition",
  Mathematical Programming 39, 1987).
* With l_f(j, n), what the best under family f loses when trainer j has size n, a solution with that
  size is worth no more than the bound - sum_f l_f(j, n): this is what the size *costs*.
* Where families do not agree on what a size loses, value moves from those in which it loses less
  to those in which it loses more. If each moved to the mean for one trainer at a time, the bound
  would never rise. All move at once, a part of the way; if the bound rises, the part gets smaller.

At the start a family's values are the prices of nodes under its caps, from a linear relaxation,
and the first family has the rest: the bound is then no worse than that of the relaxation. Rounds
are counted, not timed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from milp.exact.group_caps import Members
from milp.tables import FloatArray, IntArray

MOST_ROUNDS = 40
MOST_WORK = 200_000_000  # sums in all rounds
AT_ONCE = 1 << 18  # sums made at once: 2 MB
FIRST_PART, SMALLER = 0.7, 0.6  # of the way to the mean, and by what that shrinks
ENOUGH, IDLE_ROUNDS = 1e-6, 3  # gain of the bound, relative; after so many rounds with less: done


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SizeCosts:
    """What is true of all solutions."""

    bound: float  # none is worth more
    costs: FloatArray  # [j, n] >= 0: one with size n of trainer j is worth so much less; inf: none


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Alike:
    """Caps of one family with equally many members."""

    members: IntArray  # [cap, position]: trainers
    limits: IntArray  # [cap]: nodes, as far as the members can use them


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Family:
    price: FloatArray  # [j]: of a node under the trainer's cap, at the start
    alike: tuple[_Alike, ...]
    outside: IntArray  # trainers under none of the caps


class _DisjointCaps(NamedTuple):
    """Caps without a trainer in common."""

    trainers: set[int]  # of all these caps
    indices: list[int]  # of the caps


def decompose(
    values: FloatArray, caps: Sequence[tuple[Members, int]], cap_prices: Sequence[float]
) -> SizeCosts | None:
    """Bound what sizes under the caps can be worth.

    Args:
        values: [j, n], -inf where trainer j may not have size n.
        caps: members and how many nodes they have at most.
        cap_prices: of a node under each cap, to start from; any serve.

    Returns:
        None: a single round would take too long, or no sizes keep the caps.
    """
    n_trainers, n_sizes = values.shape
    families = _families(caps, cap_prices, n_trainers, n_sizes)
    work = 0
    for family in families:
        for alike in family.alike:
            work += _work(alike, n_sizes)
    n_rounds = min(MOST_ROUNDS, MOST_WORK // max(work, 1))
    if not n_rounds:
        return None
    sizes = np.arange(n_sizes, dtype=np.float64)
    shares = [family.price[:, None] * sizes for family in families]
    shares[0] = values - _added([np.zeros_like(values), *shares[1:]])
    best, losses = _bound_and_losses(families, shares)
    if best == -np.inf:
        return None
    part, n_idle = FIRST_PART, 0
    for _ in range(n_rounds - 1):
        moved = _moved(shares, losses, part)
        bound, losses_of_moved = _bound_and_losses(families, moved)
        if bound == -np.inf:
            return None
        if bound > best:
            part *= SMALLER
            continue
        n_idle += 1
        if best - bound > ENOUGH * abs(best):
            n_idle = 0
        best, shares, losses = bound, moved, losses_of_moved
        if n_idle == IDLE_ROUNDS:
            break
    return SizeCosts(bound=best, costs=_added(losses))


def _families(
    caps: Sequence[tuple[Members, int]], prices: Sequence[float], n_trainers: int, n_sizes: int
) -> list[_Family]:
    """Put each cap into the first family with which it has no trainer in common."""
    groups: list[_DisjointCaps] = []
    for i, (members, _) in enumerate(caps):
        group = next((group for group in groups if group.trainers.isdisjoint(members)), None)
        if group is None:
            group = _DisjointCaps(set(), [])
            groups.append(group)
        group.trainers.update(members)
        group.indices.append(i)
    families = []
    for trainers, indices in groups:
        price, by_count = np.zeros(n_trainers), dict[int, list[tuple[Members, int]]]()
        for i in indices:
            members, limit = caps[i]
            price[list(members)] = prices[i]
            usable = min(limit, len(members) * (n_sizes - 1))
            by_count.setdefault(len(members), []).append((members, usable))
        families.append(
            _Family(
                price=price,
                alike=tuple(map(_alike, by_count.values())),
                outside=np.setdiff1d(np.arange(n_trainers), list(trainers)),
            )
        )
    return families


def _alike(caps: Sequence[tuple[Members, int]]) -> _Alike:
    members, limits = zip(*caps, strict=True)
    return _Alike(
        members=np.array(members, dtype=np.int64), limits=np.array(limits, dtype=np.int64)
    )


def _work(alike: _Alike, n_sizes: int) -> int:
    """Return how many sums a round makes."""
    return 3 * alike.members.size * (int(alike.limits.max()) + 1) * n_sizes


def _moved(
    shares: Sequence[FloatArray], losses: Sequence[FloatArray], part: float
) -> list[FloatArray]:
    """Return the families' values, closer to those with which all lose the same."""
    cost = _added(losses)
    is_open = cost < np.inf
    mean = np.where(is_open, cost, 0.0) / len(losses)
    return [
        np.where(is_open, share + part * (np.where(is_open, loss, 0.0) - mean), -np.inf)
        for share, loss in zip(shares, losses, strict=True)
    ]


def _bound_and_losses(
    families: Sequence[_Family], shares: Sequence[FloatArray]
) -> tuple[float, list[FloatArray]]:
    """Return the bound, and by family what each size of each trainer loses; -inf: none fit."""
    bests: list[float] = []
    losses: list[FloatArray] = []
    for family, share in zip(families, shares, strict=True):
        family_losses = np.empty_like(share)
        outside = family.outside
        best = share[outside].max(axis=1)
        if best.min(initial=0.0) == -np.inf:
            return -np.inf, []
        family_losses[outside] = best[:, None] - share[outside]
        bests += best.tolist()
        for alike in family.alike:
            step = max(1, AT_ONCE // (_work(alike, share.shape[1]) // (3 * alike.members.size)))
            for start in range(0, len(alike.members), step):
                members, limits = alike.members[start:][:step], alike.limits[start:][:step]
                best, member_losses = _best_and_losses(share[members], limits)
                if best.min() == -np.inf:
                    return -np.inf, []
                family_losses[members] = member_losses
                bests += best.tolist()
        losses.append(family_losses)
    return math.fsum(bests), losses


def _best_and_losses(values: FloatArray, limits: IntArray) -> tuple[FloatArray, FloatArray]:
    """Return, for caps with equally many members, the best values and what sizes lose.

    Args:
        values: [cap, member, n].
        limits: [cap].
    """
    n_caps, n_members, _ = values.shape
    width, every = int(limits.max()) + 1, np.arange(n_caps)
    nodes_left = limits[:, None] - np.arange(width)  # for those before, when the others use so many
    before = [np.zeros((n_caps, width))]  # [cap, c]: best of those before with c nodes at most
    for member in range(n_members - 1):
        before.append(_sums(before[-1], values[:, member]).max(axis=2))
    after = np.zeros((n_caps, width))
    best_with = np.empty_like(values)  # [cap, member, n]: of all when the member has n
    for member in reversed(range(n_members)):
        sums = _sums(after, values[:, member])
        best_before = np.take_along_axis(before[member], nodes_left.clip(min=0), axis=1)
        best_before[nodes_left < 0] = -np.inf
        best_with[:, member] = (sums + best_before[:, :, None]).max(axis=1)[:, ::-1]
        after = sums.max(axis=2)
    best = after[every, limits]
    if best.min() == -np.inf:
        return best, best_with
    return best, (best[:, None, None] - best_with).clip(min=0.0)


def _sums(best: FloatArray, values: FloatArray) -> FloatArray:
    """Return [cap, c, -n]: with c nodes at most, of which a member has n."""
    n_caps, n_sizes = values.shape
    padded = np.concatenate([np.full((n_caps, n_sizes - 1), -np.inf), best], axis=1)
    windows = np.lib.stride_tricks.sliding_window_view(padded, n_sizes, axis=1)
    return windows + values[:, None, ::-1]


def _added(arrays: Sequence[FloatArray]) -> FloatArray:
    """Add in the stated order, so that every digit is the same on all machines."""
    total = arrays[0]
    for array in arrays[1:]:
        total = total + array
    return total
