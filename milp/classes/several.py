"""Several node classes: each trainer takes nodes of one class, or mixes those it accepts.

Takes Options with several classes and their PoolView, returns class and size per trainer;
called by the solver when the pool is not one. First the classes as if they were one pool:
if those sizes fit, they are the best. Else prices of a node of each class (any prices
give a valid bound, these the best), and a search over used-node vectors on what loses
little against them, with the loss allowed growing until the answer is proven: all that
was left out loses more. Beyond a fixed amount of work the gap is stated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from milp.classes.fillers import put_off
from milp.classes.improving import Classing, balance
from milp.classes.menus import Buyers, Instance, Priced, build_instance
from milp.classes.packing import meet, pack
from milp.classes.prices import find_prices
from milp.classes.profile import Choice, build_profile
from milp.classes.vector_bound import Menu, Search
from milp.classes.vector_search import search
from milp.exact.dual import solve_pool
from milp.options import Options
from milp.pool import PoolView
from milp.tables import FloatArray, IntArray

FIRST_GAP = 1 / 32  # of the highest price; most answers lose less than one node's worth
GAP_GROWTH = 4
WORK = (300_000, 1_500_000, 8_000_000, 16_000_000)  # vectors looked at in one search, all steps
WORK_ON_TIES = 1_000_000  # the same where only the preference among equals is open
WORK_BEYOND = (100_000, 400_000)  # the same with more classes
MOST_AT_ONCE = 1_000_000  # vectors of one step: bounds memory
EXACT_CLASSES = 3
SAME_PRICE = 1e-6  # relative


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassesAnswer:
    """Best class and size per trainer."""

    classes: IntArray  # 0 where the size is 0, the lowest where there are several
    sizes: IntArray
    split: tuple[tuple[int, ...], ...]  # [j][k]: nodes of class k
    price: float  # of a node of the dearest class
    gap: float  # the optimum is worth at most this much more; 0.0: it is this


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """Sizes, and a class for each trainer that does not mix."""

    sizes: IntArray
    classes: IntArray
    value: float


def solve_classes(options: Options, pool: PoolView) -> ClassesAnswer:
    """Maximise over classes and sizes; ties: rescales, sizes in FCFS order, low classes."""
    instance = build_instance(options, pool)
    together = solve_pool(
        instance.totals, instance.current, int(instance.counts.sum()), instance.tolerance
    )
    at_nothing = float(instance.totals[:, 0].sum())
    first_price = together.value_of_one_more - together.value
    buyers = Buyers(instance)
    prices = find_prices(buyers.take, at_nothing, options.counts, max(first_price, 0.0))
    price = float(prices.max(initial=0.0))
    plan = _fit(instance, together.sizes)
    if plan is not None:
        return _answer(instance, plan, price, 0.0)
    most = together.value  # no answer is worth more
    block_of = _blocks(prices)
    if 1 < max(block_of) + 1 < len(prices):
        block_prices = np.array([prices[block_of.index(b)] for b in range(max(block_of) + 1)])
        easier, gap = _search(instance.merged(block_of), block_prices, most, WORK[:2])
        most = min(most, easier.value + gap)
        plan = _fit(instance, easier.sizes) if gap == 0.0 else None
        if plan is not None:
            return _answer(instance, plan, price, 0.0)
    work = WORK if len(prices) <= EXACT_CLASSES else WORK_BEYOND
    plan, gap = _search(instance, prices, most, work)
    return _answer(instance, plan, price, gap)


def most_worth(options: Options, pool: PoolView) -> float:
    """Return what no answer is worth more than, by prices of a node of each class."""
    instance = build_instance(options, pool)
    together = solve_pool(
        instance.totals, instance.current, int(instance.counts.sum()), instance.tolerance
    )
    at_nothing = float(instance.totals[:, 0].sum())
    price = max(together.value_of_one_more - together.value, 0.0)
    prices = find_prices(Buyers(instance).take, at_nothing, options.counts, price)
    return min(together.value, Priced(instance, prices).bound)


def _blocks(prices: FloatArray) -> list[int]:
    """A number per class, the same for classes of the same price."""
    block_of: list[int] = []
    seen: list[float] = []
    for price in prices.tolist():
        same = [b for b, p in enumerate(seen) if abs(p - price) <= SAME_PRICE * max(p, price)]
        if not same:
            seen.append(price)
        block_of.append(same[0] if same else len(seen) - 1)
    return block_of


def _fit(instance: Instance, sizes: IntArray) -> _Plan | None:
    """The sizes as a plan, if they fit the classes."""
    rows = np.arange(len(sizes))
    demands = [
        one.demand(j, int(sizes[j]), int(instance.counts.sum()))
        for j, one in instance.mixed.items()
    ]
    single = sizes.copy()
    single[list(instance.mixed)] = 0
    may_take = np.isfinite(instance.allowed[:, rows, single])
    classes = pack(single, may_take, instance.counts.tolist(), demands)
    if classes is None:
        return None
    value = float(instance.totals[rows, sizes].sum())
    return _Plan(sizes=sizes, classes=np.asarray(classes, dtype=np.int64), value=value)


def _split(instance: Instance, plan: _Plan) -> IntArray:
    """Nodes of class k for trainer j: [j, k]."""
    mixed = list(instance.mixed)
    split = np.zeros((len(plan.sizes), len(instance.counts)), dtype=np.int64)
    split[np.arange(len(plan.sizes)), plan.classes] = plan.sizes
    split[mixed] = 0
    left = (instance.counts - split.sum(axis=0)).tolist()
    n_nodes = int(instance.counts.sum())
    demands = [one.demand(j, int(plan.sizes[j]), n_nodes) for j, one in instance.mixed.items()]
    met = meet(demands, left)
    if met is None:
        raise AssertionError("sizes that were to fit the classes do not")
    for j, row in zip(mixed, met, strict=True):
        split[j] = row
    return split


def _answer(instance: Instance, plan: _Plan, price: float, gap: float) -> ClassesAnswer:
    split = _split(instance, plan)
    return ClassesAnswer(
        classes=(split > 0).argmax(axis=1),
        sizes=plan.sizes,
        split=tuple(tuple(row) for row in split.tolist()),
        price=price,
        gap=gap,
    )


def _search(
    instance: Instance, prices: FloatArray, most: float, levels: Sequence[int]
) -> tuple[_Plan, float]:
    """The best plan found, and how much more the optimum is worth at most (0.0: none).

    ``most`` is a value known to be beyond reach.
    """
    priced = Priced(instance, prices)
    tolerance = instance.tolerance
    best = _unchanged(instance)
    least_loss = max(priced.bound - most, 0.0)  # no answer loses less than this
    # What an answer may lose beyond that: at first nothing, but for float noise.
    more = 4 * tolerance
    first_step = max(float(prices.max()) * FIRST_GAP, 4 * tolerance)
    puts_off = is_found = False
    rest = list(levels)
    while rest:
        gap = min(least_loss + more, priced.bound - best.value) + 4 * tolerance
        plan, floor = _search_within(instance, priced, gap, rest[0], puts_off=puts_off)
        is_found |= plan is not None
        if plan is not None and plan.value >= best.value - (0.0 if puts_off else tolerance):
            best = plan
        loss = priced.bound - best.value
        least_loss = max(least_loss, min(floor, loss))
        if loss <= floor - 2 * tolerance and not puts_off:
            return best, 0.0
        if loss <= max(floor - 2 * tolerance, least_loss + 4 * tolerance):
            return _settle_ties(instance, priced, best), 0.0
        if floor < gap:  # the limit of work was hit
            rest.pop(0)
            puts_off = True
            if len(rest) < 2:  # the next may be the last
                best = _improve(instance, prices, best)
        else:
            more = max(more * (2 if puts_off else GAP_GROWTH), first_step)
    while not is_found and gap < priced.bound - best.value:
        more = max(more * GAP_GROWTH, first_step)
        gap = min(least_loss + more, priced.bound - best.value)
        plan, _ = _search_within(instance, priced, gap, levels[0], puts_off=True)
        if plan is not None:
            is_found = True
            best = max(best, _improve(instance, prices, plan), key=lambda one: one.value)
    return best, _gap(priced.bound - best.value - least_loss, tolerance)


def _settle_ties(instance: Instance, priced: Priced, best: _Plan) -> _Plan:
    """Of the plans worth as much as the best: the preferred one, as far as the work allows."""
    gap = priced.bound - best.value + 4 * instance.tolerance
    plan, _ = _search_within(instance, priced, gap, WORK_ON_TIES)
    return plan if plan is not None and plan.value >= best.value - instance.tolerance else best


def _gap(gap: float, tolerance: float) -> float:
    return gap if gap > 4 * tolerance else 0.0


def _improve(instance: Instance, prices: FloatArray, plan: _Plan) -> _Plan:
    """The best of the plan and of what moves of single trainers make of it and of another."""
    mixed = list(instance.mixed)
    split = _split(instance, plan)
    left = instance.counts - split[mixed].sum(axis=0)
    best = plan
    for start in (plan.classes, balance(instance, prices, left)):
        classes, sizes = Classing(instance, start, left).improve()
        sizes[mixed] = plan.sizes[mixed]
        value = _value(instance, sizes)
        if value > best.value + instance.tolerance:
            best = _Plan(sizes=sizes, classes=classes, value=value)
    return best


def _search_within(
    instance: Instance, priced: Priced, gap: float, work: int, *, puts_off: bool = False
) -> tuple[_Plan | None, float]:
    """The best plan that loses at most the gap, and what those not looked at lose at least.

    ``puts_off``: quicker where many plans lose little, but blind to ties.
    """
    n_classes = len(instance.counts)
    dividing = sorted({one.accepts for one in instance.mixed.values()})
    menus = [priced.menu(j, gap, dividing) for j in range(len(instance.current))]
    own: list[list[Menu]] = [[] for _ in range(n_classes)]  # [k]: menus of class k alone
    free: list[Menu] = []
    for menu in menus:
        used = np.flatnonzero(menu.uses.any(axis=0))
        if len(used) > 1 or used.max(initial=0) >= n_classes:
            free.append(menu)
        else:
            own[int(used.max(initial=0))].append(menu)
    profiles = [
        build_profile(
            [menu.trainer for menu in members],
            [Choice(sizes=m.sizes, values=m.values, rescales=m.rescales) for m in members],
            int(instance.counts[k]),
            price=float(priced.prices[k]),
            best=float(priced.best[[menu.trainer for menu in members]].sum()),
            tolerance=instance.tolerance,
        )
        for k, members in enumerate(own)
    ]
    task = Search(
        menus=free,
        profiles=profiles,
        counts=instance.counts,
        dividing=dividing if free else (),
        gap=gap,
        tolerance=instance.tolerance,
        limit=min(work // (len(free) + n_classes), MOST_AT_ONCE),
    )
    shorter = put_off(free, n_classes, instance.tolerance) if puts_off and free else None
    if shorter is not None:
        task = replace(task, menus=shorter[0], fillers=shorter[1], whole_menus=free)
    found = search(task)
    if not found.is_found:
        return None, found.floor
    sizes = np.zeros(len(menus), dtype=np.int64)
    classes = np.zeros(len(menus), dtype=np.int64)
    for menu, size, k in zip(free, found.sizes, found.classes, strict=True):
        sizes[menu.trainer], classes[menu.trainer] = size, k
    for k, profile in enumerate(profiles):
        columns = profile.sizes_at(np.array([found.left[k]]))
        for j, column in zip(profile.trainers, columns, strict=True):
            sizes[j], classes[j] = column[0], k
    return _Plan(sizes=sizes, classes=classes, value=_value(instance, sizes)), found.floor


def _value(instance: Instance, sizes: IntArray) -> float:
    return float(instance.totals[np.arange(len(sizes)), sizes].sum())


def _unchanged(instance: Instance) -> _Plan:
    """The current sizes where they are legal, 0 elsewhere: always feasible."""
    rows = np.arange(len(instance.current))
    columns = np.minimum(instance.current, instance.totals.shape[1] - 1)
    legal = np.isfinite(instance.totals[rows, columns]) & (columns == instance.current)
    sizes = np.where(legal, instance.current, 0)
    classes = np.isfinite(instance.allowed[:, rows, sizes]).argmax(axis=0)
    return _Plan(sizes=sizes, classes=classes, value=_value(instance, sizes))
