"""DL2: a network gives out nodes one by one until its next action is to stop.

DL2 (arXiv 1909.06040, section 4.1) tells models apart by a one-hot code, which says nothing of a
model that was not trained with. Here the shape of a trainer's curve stands for it, and what a
rescale costs; times and gains are relative to the mean of the trainers seen.

Source: Peng et al., "DL2" (arXiv 1909.06040), section 4. The paper starts from an empty cluster in
every time slot. Here the first decision of a slot also tries to go on from the present sizes, and
takes the better of the two by the work that is done until the forward-looking time, rescale costs
taken off (as in eq. 16 of BFTrainer), so that no trainer moves for nothing. Within a slot, in which
our pool changes and the paper's does not, a trainer that was given nodes keeps as many, started or
not, and what is free is handed out. The network is small and the same for every trainer
(``dl2_network``); docs/policies/dl2.md says how it is trained.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any, Final

import numpy as np

from bftrainer.decide.policies.base import About, AllocationPolicy, Context, Decided, Traits
from bftrainer.decide.policies.distribution import Handing
from bftrainer.decide.policies.dl2_network import (
    Array,
    Mask,
    ModelError,
    Network,
    of_text,
    short_hash,
)
from bftrainer.decide.policies.greedy_steps import samples_ahead
from bftrainer.model.decision import Term
from bftrainer.model.plugins import content_of
from milp.problem import Problem

FEATURES: Final = 16
HOUR_S: Final = 3600.0
FAR: Final = 3.0  # logarithms are cut off here
TINY: Final = 1e-12

# Columns that change with the size of a trainer.
SIZE, SHARE, RETURNS, EFFICIENCY, MARGINAL, GAIN = range(6)
TIME_LEFT: Final = 6  # relative to the mean, as GAIN
WINDOW: Final = 40  # trainers seen: those with nodes, then by submission
DIGITS: Final = 6  # of a score: equal ones are equal on every processor
SHIPPED: Final = content_of(files("bftrainer.decide.policies").joinpath("dl2.npz").read_bytes())
Choose = Callable[[Array, Mask], int]  # rows and what fits -> an action; the last one is void


class Rows:
    """The rows of the trainers seen, kept up to date while nodes are handed out."""

    def __init__(self, handing: Handing, context: Context, seen: Sequence[int]) -> None:
        """Fill in the rows of trainers without nodes.

        Args:
            handing: the pool.
            context: what is known of the trainers.
            seen: indices of the trainers, in the order of the rows.
        """
        self._handing, self.seen = handing, list(seen)
        self._place: dict[int, int] = {}
        self._rates: dict[int, list[float]] = {}
        self._ahead: dict[int, float] = {}
        for place, j in enumerate(seen):
            self._place[j] = place
            self._rates[j] = handing.rates(j)
            self._ahead[j] = samples_ahead(handing, context, j)
        self._total = max(1, sum(handing.counts))
        self._rows = np.zeros((len(self.seen), FEATURES))
        for j in seen:
            self._begin(j, context)
            self.update(j)

    def _begin(self, j: int, context: Context) -> None:
        """Fill in what does not change with its size."""
        handing, row = self._handing, self._rows[self._place[j]]
        trainer, t_fwd_s = handing.trainers[j], max(handing.problem.t_fwd_s, TINY)
        standing = context.trainers[trainer.trainer_id]
        rate_per_node, ahead = self._one(j), self._ahead[j]
        has_goal = standing.left_samples is not None
        goal = standing.done_samples + ahead
        row[TIME_LEFT] = math.log(max(ahead, TINY) / max(rate_per_node, TINY))
        row[7:] = (
            standing.done_samples / goal if has_goal and goal else 0.0,
            float(has_goal),
            math.log1p(max(0.0, context.now_s - standing.submitted_s) / HOUR_S) / FAR,
            math.log1p(standing.attained_node_s / HOUR_S) / FAR,
            min(trainer.rescale_up_s / t_fwd_s, FAR),
            min(trainer.rescale_down_s / t_fwd_s, FAR),
            len(handing.pool.present[j]) / max(1, self.largest(j)),
            trainer.n_min / max(1, self.largest(j)),
            1.0,
        )

    def _one(self, j: int) -> float:
        """Samples per second and node at n_min."""
        rates, n_min = self._rates[j], self._handing.trainers[j].n_min
        if n_min < len(rates):
            return rates[n_min] / n_min
        return 0.0

    def largest(self, j: int) -> int:
        """Return the largest size of a trainer, were it alone."""
        return len(self._rates[j]) - 1

    def next_size(self, j: int) -> int:
        """Return the size that one action more gives."""
        size = self._handing.size(j)
        if size:
            return size + 1
        return self._handing.trainers[j].n_min

    def update(self, j: int) -> None:
        """Fill in what changes with a trainer's size."""
        handing, row, rates = self._handing, self._rows[self._place[j]], self._rates[j]
        size, after, rate_per_node = handing.size(j), self.next_size(j), max(self._one(j), TINY)
        is_over = after >= len(rates)
        gain_per_node = 0.0
        if not is_over:
            gain_per_node = max(0.0, rates[after] - rates[size]) / (after - size)
        row[SIZE] = size / max(1, self.largest(j))
        row[SHARE] = size / self._total
        row[RETURNS] = float(size < len(handing.pool.present[j]))
        row[EFFICIENCY] = 0.0 if is_over else rates[after] / after / rate_per_node
        row[MARGINAL] = gain_per_node / rate_per_node
        row[GAIN] = math.log(max(gain_per_node, TINY) / max(self._ahead[j], TINY))

    def rows(self) -> Array:
        """Return the rows (J, F), gain and time left relative to the mean of those seen."""
        rows = self._rows.copy()
        for column in (GAIN, TIME_LEFT):
            rows[:, column] -= rows[:, column].mean()
        np.clip(rows, -FAR, FAR, out=rows)
        return rows

    def worth(self, j: int) -> float:
        """Return the share of its work done until T_fwd, less what a change of size costs."""
        handing, rates = self._handing, self._rates[j]
        trainer, size, now = handing.trainers[j], handing.size(j), len(handing.pool.present[j])
        cost_s = 0.0
        if size != now:
            cost_s = trainer.rescale_down_s
            if size > now:
                cost_s = trainer.rescale_up_s
        rate_now = rates[min(now, len(rates) - 1)]
        samples = handing.problem.t_fwd_s * rates[size] - cost_s * rate_now
        return samples / max(self._ahead[j], TINY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dl2Options:
    """The network that decides, and the length of a slot."""

    # Its content, so that the journal holds it; a policy file names the file (Traits.file_options).
    model: str = ""  # empty: the one that is shipped
    slot_s: float = 1200.0  # so long nobody loses nodes to another; as in the paper, section 6.1

    def __post_init__(self) -> None:
        """Check both."""
        if self.slot_s <= 0.0:
            raise ValueError("slot_s must be > 0")
        try:
            network = of_text(self.model or SHIPPED)
        except ModelError as error:
            raise ValueError(f"model is not a network of dl2: {error}") from error
        if (network.features, network.actions) != (FEATURES, 1):
            raise ValueError("model is a network, but not of dl2")


class Dl2Policy:
    """Incremental allocation by a network."""

    name = "dl2"

    def __init__(self, choose: Choose | None = None, *, goes_on: bool = True) -> None:
        """Decide by the network of the options, or by something else, as training does.

        Args:
            choose: chooses the actions; None: the network of the options.
            goes_on: whether going on from the present sizes is tried, too.
        """
        self._choose, self._goes_on = choose, goes_on
        self.traits = Traits(
            about=About(
                does="a network that learns",
                optimises="completion time",
                source="Peng et al., DL2, 2019",
            ),
            options=Dl2Options,
            admits=True,
            reads_rates=True,
            follows_curves=choose is None,  # sizes are not explored while it learns
            file_options=("model",),
        )

    def allocate(self, problem: Problem, context: Context, /) -> Decided:
        """Hand out the nodes from none and from the present sizes; keep the better."""
        choose = self._choose or Best(of_text(context.options.model or SHIPPED))
        state: Mapping[str, Any] = context.state or {}
        until_s = state.get("until_s", -math.inf)
        is_new = not self._goes_on or until_s <= context.now_s
        filling = Filling(Handing(problem, admits=True), context)
        if not is_new:
            filling.keep(state["sizes"])
        filling.run(choose)
        if is_new:
            until_s = context.now_s + context.options.slot_s
            if self._goes_on and any(filling.handing.pool.present):
                resumed = Filling(Handing(problem, admits=True), context)
                resumed.keep({})
                resumed.run(choose)
                if resumed.worth() >= filling.worth():
                    filling = resumed
        return filling.answer(self.name, context, choose, until_s)


class Best:
    """A network's most probable action; of equal ones the first."""

    def __init__(self, network: Network) -> None:
        """Choose by a network."""
        self._network = network

    def scores(self, rows: Array) -> Array:
        """Score every action, void last."""
        return np.round(self._network.scores(rows), DIGITS)

    def __call__(self, rows: Array, mask: Mask) -> int:
        """Choose an action."""
        return int(np.where(mask, self.scores(rows), -np.inf).argmax())


class Filling:
    """One way of handing out the nodes."""

    def __init__(self, handing: Handing, context: Context) -> None:
        """Begin with no trainer having any."""
        self.handing = handing
        everybody = range(len(handing.trainers))
        order = sorted(everybody, key=lambda j: not handing.pool.present[j])
        self._rows = Rows(handing, context, order[:WINDOW])
        self.seen = self._rows.seen
        self._running = 0

    def keep(self, sizes: Mapping[str, int]) -> None:
        """Give everybody what it was given, by its id, or what it has."""
        handing = self.handing
        for j in self.seen:
            trainer = handing.trainers[j]
            size = min(
                sizes.get(trainer.trainer_id, len(handing.pool.present[j])), self._rows.largest(j)
            )
            if size < trainer.n_min or self._running == handing.problem.p_jmax:
                continue
            if handing.settle(j, trainer.n_min) and handing.take(j, min(size, handing.room(j))):
                self._running += 1
                self._rows.update(j)

    def run(self, choose: Choose) -> None:
        """Take actions until void."""
        while self.seen:
            fits = list(map(self._fits, self.seen))
            if not any(fits):
                return
            action = choose(self._rows.rows(), np.array([*fits, True]))
            if action == len(self.seen):
                return
            j = self.seen[action]
            is_new = not self.handing.size(j)
            self.handing.settle(j, self._rows.next_size(j))
            self.handing.take(j, self._rows.next_size(j))
            self._running += is_new
            self._rows.update(j)

    def _fits(self, j: int) -> bool:
        handing, size = self.handing, self._rows.next_size(j)
        if size > self._rows.largest(j):
            return False
        if not handing.size(j) and self._running == handing.problem.p_jmax:
            return False
        if handing.home[j] is None:
            return any(handing.free[k] >= size for k in handing.accepted(j))
        return size <= handing.room(j)

    def worth(self) -> float:
        """Return the work that is done until the forward-looking time."""
        return math.fsum(map(self._rows.worth, self.seen))

    def answer(self, name: str, context: Context, choose: Choose, until_s: float) -> Decided:
        """Return the allocation; the journal keeps the network's hash and the slot with it."""
        everybody = range(len(self.handing.trainers))
        decided = self.handing.answer(name, self._terms(choose), everybody)
        model = getattr(context.options, "model", "") or SHIPPED
        sizes = decided.allocation.unit_sizes(self.handing.problem)
        waits = len(sizes) < len(self.handing.trainers)
        state = {"model": short_hash(model), "until_s": until_s, "sizes": sizes}
        return replace(decided, state=state, wake_at_s=until_s if waits else None)

    def _terms(self, choose: Choose) -> Callable[[int], tuple[Term, ...]]:
        """Return a function of a trainer: its worth, and its score where the filling ended."""
        scores = None
        if self.seen and isinstance(choose, Best):
            scores = choose.scores(self._rows.rows())
        place = {j: i for i, j in enumerate(self.seen)}

        def terms(j: int) -> tuple[Term, ...]:
            if j not in place:
                return (Term("trainers seen, without it", len(place)),)
            worth = Term("of its work until T_fwd", 100.0 * self._rows.worth(j), "%")
            if scores is None:
                return (worth,)
            void_score = scores[-1]
            score = Term("score of one more, over void", float(scores[place[j]] - void_score))
            return score, worth

        return terms


POLICY: AllocationPolicy = Dl2Policy()
