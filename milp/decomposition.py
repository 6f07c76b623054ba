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
    most: IntArray  # [cap]: nodes, as far as the members can use them


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Family:
    price: FloatArray  # [j]: of a node under the trainer's cap, at the start
    alike: tuple[_Alike, ...]
    outside: IntArray  # trainers under none of the caps


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
    work = sum([_work(alike, n_sizes) for family in families for alike in family.alike])
    n_rounds = min(MOST_ROUNDS, MOST_WORK // max(work, 1))
    if not n_rounds:
        return None
    sizes = np.arange(n_sizes, dtype=np.float64)
    shares = [family.price[:, None] * sizes for family in families]
    shares[0] = values - _added([np.zeros_like(values), *shares[1:]])
    best, losses = _lost(families, shares)
    if best == -np.inf:
        return None
    part, n_idle = FIRST_PART, 0
    for _ in range(n_rounds - 1):
        moved = _moved(shares, losses, part)
        bound, of_moved = _lost(families, moved)
        if bound == -np.inf:
            return None
        if bound > best:
            part *= SMALLER
            continue
        n_idle = n_idle + 1 if best - bound <= ENOUGH * abs(best) else 0
        best, shares, losses = bound, moved, of_moved
        if n_idle == IDLE_ROUNDS:
            break
    return SizeCosts(bound=best, costs=_added(losses))


def _families(
    caps: Sequence[tuple[Members, int]], prices: Sequence[float], n_trainers: int, n_sizes: int
) -> list[_Family]:
    """Put each cap into the first family with which it has no trainer in common."""
    groups: list[tuple[set[int], list[int]]] = []  # trainers, caps
    for i, (members, _) in enumerate(caps):
        apart = [group for group in groups if group[0].isdisjoint(members)]
        if not apart:
            groups.append((set(), []))
        trainers, own = apart[0] if apart else groups[-1]
        trainers.update(members)
        own.append(i)
    families = []
    for trainers, group in groups:
        price, by_count = np.zeros(n_trainers), dict[int, list[tuple[Members, int]]]()
        for i in group:
            members, most = caps[i]
            price[list(members)] = prices[i]
            most = min(most, len(members) * (n_sizes - 1))
            by_count.setdefault(len(members), []).append((members, most))
        families.append(
            _Family(
                price=price,
                alike=tuple([_alike(own) for own in by_count.values()]),
                outside=np.setdiff1d(np.arange(n_trainers), list(trainers)),
            )
        )
    return families


def _alike(caps: Sequence[tuple[Members, int]]) -> _Alike:
    return _Alike(
        members=np.array([members for members, _ in caps], dtype=np.int64),
        most=np.array([most for _, most in caps], dtype=np.int64),
    )


def _work(alike: _Alike, n_sizes: int) -> int:
    """Return how many sums a round makes."""
    return 3 * alike.members.size * (int(alike.most.max()) + 1) * n_sizes


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


def _lost(
    families: Sequence[_Family], shares: Sequence[FloatArray]
) -> tuple[float, list[FloatArray]]:
    """Return the bound, and by family what each size of each trainer loses; -inf: none fit."""
    bests: list[float] = []
    losses: list[FloatArray] = []
    for family, share in zip(families, shares, strict=True):
        lost = np.empty_like(share)
        outside = family.outside
        best = share[outside].max(axis=1)
        if best.min(initial=0.0) == -np.inf:
            return -np.inf, []
        lost[outside] = best[:, None] - share[outside]
        bests += best.tolist()
        for alike in family.alike:
            step = max(1, AT_ONCE // (_work(alike, share.shape[1]) // (3 * alike.members.size)))
            for start in range(0, len(alike.members), step):
                members = alike.members[start : start + step]
                best, of_members = _lost_under(share[members], alike.most[start : start + step])
                if best.min() == -np.inf:
                    return -np.inf, []
                lost[members] = of_members
                bests += best.tolist()
        losses.append(lost)
    return math.fsum(bests), losses


def _lost_under(values: FloatArray, most: IntArray) -> tuple[FloatArray, FloatArray]:
    """Return, for caps with equally many members, the best values and what sizes lose.

    Args:
        values: [cap, member, n].
        most: [cap].
    """
    n_caps, n_members, _ = values.shape
    width, every = int(most.max()) + 1, np.arange(n_caps)
    left = most[:, None] - np.arange(width)  # for the others, when these members use so many
    before = [np.zeros((n_caps, width))]  # [cap, c]: best of those before with c nodes at most
    for member in range(n_members - 1):
        before.append(_sums(before[-1], values[:, member]).max(axis=2))
    after = np.zeros((n_caps, width))
    lost = np.empty_like(values)
    for member in reversed(range(n_members)):
        sums = _sums(after, values[:, member])
        others = np.take_along_axis(before[member], left.clip(min=0), axis=1)
        others[left < 0] = -np.inf
        lost[:, member] = (sums + others[:, :, None]).max(axis=1)[:, ::-1]
        after = sums.max(axis=2)
    best = after[every, most]
    if best.min() == -np.inf:
        return best, lost
    return best, (best[:, None, None] - lost).clip(min=0.0)


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
