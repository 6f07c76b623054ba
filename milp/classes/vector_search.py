"""Search over used-node vectors: the trainers that can choose between node classes.

Takes per trainer a menu of (class, size), and profiles of what the others make of the
nodes that are left; returns the best answer found and a loss no other answer is below.
Called by the solver for several classes with a growing limit of work.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from milp.classes.fillers import fill_up
from milp.classes.vector_bound import KIND_BITS, MARKED, Bound, Menu, Search, kinds_of
from milp.tables import BoolArray, FloatArray, IntArray

LARGEST_CODE = 1 << 62  # vectors are compared as one whole number
CHUNK = 1 << 17  # vectors looked at at once: bounds memory
MIXER, MIXER_MASK = 0x9E3779B1, 0xFFFFFFFF  # an odd number: spreads 0, 1, 2, ... evenly


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The best answer found, if any, and what the others lose at least."""

    floor: float
    is_found: bool = False
    value: float = -np.inf
    sizes: tuple[int, ...] = ()  # by menu
    classes: tuple[int, ...] = ()
    left: tuple[int, ...] = ()  # nodes of each class left to its profile


@dataclass(frozen=True, slots=True, kw_only=True)
class States:
    """Best ways for the trainers from j on to use exactly a vector of nodes."""

    used: IntArray  # [s, d]
    inner: IntArray  # KIND_BITS per dimension: not 0 when some trainer has an inner size of it
    values: FloatArray
    losses: FloatArray  # against the prices
    rescales: IntArray
    ranks: IntArray  # order of their sizes in FCFS order, 0 = earlier trainers get more
    picks: IntArray  # index into the trainer's options
    parents: IntArray  # state of the trainers after j

    def only(self, which: IntArray) -> States:
        """A part of the states."""
        return States(
            used=self.used[which],
            inner=self.inner[which],
            values=self.values[which],
            losses=self.losses[which],
            rescales=self.rescales[which],
            ranks=self.ranks[which],
            picks=self.picks[which],
            parents=self.parents[which],
        )


def search(task: Search) -> Found:
    """Search the menus last to first, then divide what is to be divided.

    Nothing is dropped that could be part of an answer within the gap, unless the limit
    is hit: then the states that lose least so far go on, and ``floor`` falls to what the
    others lose at least. A size of a trainer is an inner one when the two beside it are
    together worth no less than twice as much. Two trainers with inner sizes of one class
    could exchange nodes to no loss, and to the first one's gain, until one has none: so
    of each class (or set of classes to divide) at most one trainer gets an inner size.
    """
    bound = Bound(task)
    states = _no_trainer(len(task.counts) + len(task.dividing))
    steps: list[States] = []
    floor = min([task.gap, *(menu.floor for menu in task.menus)])
    for j in range(len(task.menus) - 1, -1, -1):
        menu = task.menus[j]
        widths = _count_options(states, menu)
        states, dropped = _fit_limit(task, bound, steps, states, j + 1, widths)
        states = _extend(states, menu, task, bound, j)
        floor = min(floor, dropped)
        steps.append(states)
    if task.dividing:
        states = _open_division(states, len(task.counts))
        for k in range(len(task.counts)):
            low, high = _parts(states.used, k, task)
            widths = np.maximum(high - low + 1, 0)
            states, dropped = _fit_limit(task, bound, steps, states, -k, widths)
            floor = min(floor, dropped)
            states = _divide(states, k, task, bound)
            steps.append(states)
    if not len(states.values):
        return Found(floor=floor)
    return _best(states, steps, task, floor)


def _no_trainer(n_dimensions: int) -> States:
    zero = np.zeros(1, dtype=np.int64)
    return States(
        used=np.zeros((1, n_dimensions), dtype=np.int64),
        inner=zero,
        values=np.zeros(1),
        losses=np.zeros(1),
        rescales=zero,
        ranks=zero,
        picks=zero,
        parents=zero,
    )


def _fit_limit(
    task: Search, bound: Bound, steps: list[States], states: States, stage: int, widths: IntArray
) -> tuple[States, float]:
    """The states that lose least, as many as the limit allows; what others lose at least.

    ``widths`` are how many states each leads to. Of equal ones a fixed mixture goes on,
    so that they do not all look alike. The last of ``steps`` becomes these states.
    """
    if int(widths.sum()) <= task.limit or len(widths) == 1:
        return states, np.inf
    losses = bound.losses(states.used, states.losses, stage, states.inner)
    mixture = (np.arange(len(losses)) * MIXER) & MIXER_MASK
    order = np.lexsort((mixture, np.floor(losses / (8 * task.tolerance or 1.0))))
    n_states = max(int((widths[order].cumsum() <= task.limit).sum()), 1)
    fewer = states.only(np.sort(order[:n_states]))
    if steps:
        steps[-1] = fewer
    return fewer, float(losses[order[n_states:]].min(initial=np.inf))


def _count_options(states: States, menu: Menu) -> IntArray:
    """How many options each state has left: inner sizes only where none was taken."""
    kinds, kind = np.unique(states.inner, return_inverse=True)
    counts: IntArray = ((kinds[:, None] & _masks(menu)) == 0).sum(axis=1)[kind]
    return counts


def _masks(menu: Menu) -> IntArray:
    """All bits of the dimension of which an option is an inner size."""
    masks = np.zeros_like(menu.inner)
    for d in range(min(menu.uses.shape[1], MARKED)):
        mask = ((1 << KIND_BITS) - 1) << (KIND_BITS * d)
        masks[menu.inner & mask != 0] = mask
    return masks


def _extend(after: States, menu: Menu, task: Search, bound: Bound, j: int) -> States:
    """Prepend a trainer: all states it leads to, each with its best way."""
    n_options = len(menu.sizes)
    chunk, masks = max(CHUNK // n_options, 1), _masks(menu)
    parts: list[tuple[IntArray, IntArray, IntArray, FloatArray]] = []
    for start in range(0, max(len(after.values), 1), chunk):
        losses = after.losses[start : start + chunk, None] + menu.losses
        is_free = (after.inner[start : start + chunk, None] & masks) == 0
        near = np.flatnonzero((losses <= task.gap) & is_free)
        parents, picks = start + near // n_options, near % n_options
        used, losses = after.used[parents] + menu.uses[picks], losses.ravel()[near]
        inner = after.inner[parents] | menu.inner[picks]
        kept = np.flatnonzero(bound.losses(used, losses, j, inner) <= task.gap)
        parts.append((parents[kept], picks[kept], used[kept], losses[kept]))
    parents, picks, used, losses = (np.concatenate(column) for column in zip(*parts, strict=True))
    # Ranks of equal sizes of this trainer follow those of the trainers after it.
    n_ranks = int(after.ranks.max(initial=0)) + 1
    largest = int(menu.sizes.max())
    states = States(
        used=used,
        inner=after.inner[parents] | menu.inner[picks],
        values=after.values[parents] + menu.values[picks],
        losses=losses,
        rescales=after.rescales[parents] + menu.rescales[picks],
        ranks=(largest - menu.sizes[picks]) * n_ranks + after.ranks[parents],
        picks=picks,
        parents=parents,
    )
    merged = _merge(states, task.tolerance)
    _, ranks = np.unique(merged.ranks, return_inverse=True)
    return replace(merged, ranks=ranks.astype(np.int64))


def _open_division(states: States, n_classes: int) -> States:
    """Room beside each vector for what each class delivers to the sets."""
    delivered = np.zeros((len(states.values), n_classes), dtype=np.int64)
    return replace(states, used=np.hstack([states.used, delivered]))


def _parts(used: IntArray, k: int, task: Search) -> tuple[IntArray, IntArray]:
    """Least and most that class k can deliver, lower classes having delivered theirs.

    The classes of S together owe at least what only they can deliver; and so do, once
    k has delivered, the classes after it with any of those before.
    """
    n_classes, n_sets = len(task.counts), len(task.dividing)
    amounts = used[:, n_classes : n_classes + n_sets]
    delivered = used[:, n_classes + n_sets :]
    later = set(range(k + 1, n_classes))
    involved = [i for i in range(k) if any(i in classes for classes in task.dividing)]
    low = np.zeros(len(used), dtype=np.int64)
    others = np.zeros(len(used), dtype=np.int64)  # what the classes after k must deliver
    for n_before in range(len(involved) + 1):
        for before in itertools.combinations(involved, n_before):
            had = delivered[:, list(before)].sum(axis=1)
            for least, owing in ((low, {k, *before}), (others, {*later, *before})):
                owed = [i for i, classes in enumerate(task.dividing) if owing.issuperset(classes)]
                np.maximum(least, amounts[:, owed].sum(axis=1) - had, out=least)
    total = amounts.sum(axis=1) - delivered[:, :k].sum(axis=1)
    high = np.minimum(total - others, task.counts[k] - used[:, k])
    return low, high


def _divide(states: States, k: int, task: Search, bound: Bound) -> States:
    """Let class k deliver any part it can of what the sets of classes still need."""
    low, high = _parts(states.used, k, task)
    widths = np.maximum(high - low + 1, 0)
    every = np.repeat(np.arange(len(low)), widths)
    amounts = np.arange(len(every)) - np.repeat(np.cumsum(widths) - widths - low, widths)
    parts: list[tuple[IntArray, IntArray]] = []
    for start in range(0, max(len(every), 1), CHUNK):
        parents, amount = every[start : start + CHUNK], amounts[start : start + CHUNK]
        used = states.used[parents]
        used[:, k] += amount
        used[:, len(task.counts) + len(task.dividing) + k] = amount
        kept = np.flatnonzero(
            bound.losses(used, states.losses[parents], -k - 1, states.inner[parents]) <= task.gap
        )
        parts.append((parents[kept], used[kept]))
    parents, used = (np.concatenate(column) for column in zip(*parts, strict=True))
    return replace(states.only(parents), used=used, parents=parents)


def _merge(states: States, tolerance: float) -> States:
    """One state per vector: of the greatest values the fewest rescales, then the rank."""
    if not len(states.values):
        return states
    codes = _encode(np.column_stack([states.used, states.inner]))
    order = np.argsort(codes, kind="stable")
    codes, values = codes[order], states.values[order]
    is_first = np.concatenate(([True], codes[1:] != codes[:-1]))
    starts, group = np.flatnonzero(is_first), np.cumsum(is_first) - 1
    is_tied = values >= np.maximum.reduceat(values, starts)[group] - tolerance
    n_ranks = int(states.ranks.max()) + 1
    key = states.rescales[order] * n_ranks + states.ranks[order]
    key = np.where(is_tied, key, np.iinfo(np.int64).max)
    winners = np.flatnonzero(key == np.minimum.reduceat(key, starts)[group])
    is_first = np.concatenate(([True], group[winners][1:] != group[winners][:-1]))
    return states.only(order[winners[is_first]])


def _encode(used: IntArray) -> IntArray:
    """One whole number per vector, equal exactly for equal vectors."""
    codes = np.zeros(len(used), dtype=np.int64)
    n_codes = 1
    for column in used.T:
        width = int(column.max()) + 1
        if n_codes * width > LARGEST_CODE:
            _, codes = np.unique(codes, return_inverse=True)
            n_codes = int(codes.max()) + 1
        codes = codes * width + column
        n_codes *= width
    return codes


def _grow(states: States, left: IntArray, task: Search) -> IntArray:
    """Steps along the runs that were put off, [s, k], that suit the own trainers best."""
    grown = np.zeros_like(left)
    for k, fillers in enumerate(task.fillers):
        kinds = kinds_of(states.inner, k)
        for kind, filler in enumerate([None, *fillers]):
            at = np.flatnonzero(kinds == kind)
            filled = fill_up(task.profiles[k].values, filler)
            grown[at, k] = filled[left[at, k]]
    return grown


def _gains(states: States, grown: IntArray, task: Search) -> FloatArray:
    """What those steps are worth."""
    gains = np.zeros(len(grown))
    for k, fillers in enumerate(task.fillers):
        kinds = kinds_of(states.inner, k)
        for kind, filler in enumerate(fillers, start=1):
            at = np.flatnonzero(kinds == kind)
            gains[at] += filler.gains[grown[at, k]]
    return gains


def _sizes(menu: Menu, picks: IntArray, grown: IntArray, task: Search) -> IntArray:
    """Sizes of a trainer; one that fills its class up has grown."""
    sizes = menu.sizes[picks]
    if task.fillers:
        rows, classes = np.arange(len(picks)), menu.classes[picks]
        sizes = sizes + np.where(kinds_of(menu.inner[picks], classes) != 0, grown[rows, classes], 0)
    return sizes


def _best(states: States, steps: Sequence[States], task: Search, floor: float) -> Found:
    """The state of the best answer, walked back: value, rescales, FCFS, lower classes."""
    left = task.counts - states.used[:, : len(task.counts)]
    grown = _grow(states, left, task)
    left -= grown
    values, rescales = states.values + _gains(states, grown, task), states.rescales.copy()
    for k, profile in enumerate(task.profiles):
        values += profile.values[left[:, k]]
        rescales += profile.rescales[left[:, k]]
    tied: BoolArray = values >= values.max() - task.tolerance
    tied &= rescales == rescales[tied].min()
    at = np.flatnonzero(tied)
    picks = np.empty((len(at), len(task.menus)), dtype=np.int64)
    where = at.copy()
    for i, step in enumerate(reversed(steps)):
        # The divisions were the last steps; the first trainer's is the one before them.
        j = i - (len(steps) - len(task.menus))
        if j >= 0:
            picks[:, j] = step.picks[where]
        where = step.parents[where]
    columns: list[tuple[int, IntArray]] = []  # sizes by trainer
    for j, menu in enumerate(task.menus):
        columns.append((menu.trainer, -_sizes(menu, picks[:, j], grown[at], task)))
    for k, profile in enumerate(task.profiles):
        sizes = profile.sizes_at(left[at, k])
        columns += [(j, -size) for j, size in zip(profile.trainers, sizes, strict=True)]
    columns.sort(key=lambda column: column[0])
    keys = [column for _, column in columns]
    keys += [menu.classes[picks[:, j]] for j, menu in enumerate(task.menus)]
    first = int(np.lexsort(keys[::-1])[0]) if keys else 0
    return Found(
        floor=floor,
        is_found=True,
        value=float(values[at[first]]),
        sizes=tuple(
            int(_sizes(menu, picks[:, j], grown[at], task)[first])
            for j, menu in enumerate(task.menus)
        ),
        classes=tuple(
            int(menu.classes[pick]) for menu, pick in zip(task.menus, picks[first], strict=True)
        ),
        left=tuple(left[at[first]].tolist()),
    )
