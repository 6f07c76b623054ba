"""DL2: a network hands out the nodes, one after the other, until it says void.

Source: Peng et al., "DL2" (arXiv 1909.06040), section 4. The paper starts from an empty cluster in
every time slot. Here the first decision of a slot also tries to go on from the present sizes, and
takes the better of the two by the work that is done until the forward-looking time, rescale costs
taken off (as in eq. 16 of BFTrainer), so that nobody moves for nothing. Within a slot, in which our
pool changes and the paper's does not, who was given nodes keeps as many, started or not, and what
is free is handed out. The network is small and the same for every trainer (``learned.network``);
docs/policies/dl2.md says how it is trained.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

import numpy as np

from bftrainer.decide.policies.base import AllocationPolicy, Context, Decided, Traits
from bftrainer.decide.policies.distribution import Handing
from bftrainer.decide.policies.dl2_model import ModelError, of_text, short_hash
from bftrainer.decide.policies.dl2_network import Array, Mask, Network
from bftrainer.decide.policies.dl2_rows import FEATURES, Rows
from bftrainer.model.decision import Term
from bftrainer.model.plugins import content_of
from milp.problem import Problem

WINDOW = 40  # trainers seen: those with nodes, then by submission
DIGITS = 6  # of a score: equal ones are equal on every processor
SHIPPED = content_of(files("bftrainer.decide.policies").joinpath("dl2.npz").read_bytes())

Choose = Callable[[Array, Mask], int]  # rows and what fits -> an action; the last one is void


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Which network decides, and how often."""

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
            options=Options,
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
        found = Filling(Handing(problem, admits=True), context)
        if not is_new:
            found.keep(state["sizes"])
        found.run(choose)
        if is_new:
            until_s = context.now_s + context.options.slot_s
            if self._goes_on and any(found.handing.pool.present):
                going_on = Filling(Handing(problem, admits=True), context)
                going_on.keep({})
                going_on.run(choose)
                if going_on.worth() >= found.worth():
                    found = going_on
        return found.answer(self.name, context, choose, until_s)


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
        """Begin with nobody having any."""
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
            one = handing.trainers[j]
            size = min(
                sizes.get(one.trainer_id, len(handing.pool.present[j])), self._rows.largest(j)
            )
            if size < one.n_min or self._running == handing.problem.p_jmax:
                continue
            if handing.settle(j, one.n_min) and handing.take(j, min(size, handing.room(j))):
                self._running += 1
                self._rows.update(j)

    def run(self, choose: Choose) -> None:
        """Take actions until void."""
        while self.seen:
            fits = [self._fits(j) for j in self.seen]
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
        return sum(self._rows.worth(j) for j in self.seen)

    def answer(self, name: str, context: Context, choose: Choose, until_s: float) -> Decided:
        """Return the allocation; the journal keeps the network's hash and the slot with it."""
        everybody = range(len(self.handing.trainers))
        found = self.handing.answer(name, self._terms(choose), everybody)
        model = getattr(context.options, "model", "") or SHIPPED
        sizes = dict(found.allocation.sizes())
        waits = any(trainer.trainer_id not in sizes for trainer in self.handing.trainers)
        state = {"model": short_hash(model), "until_s": until_s, "sizes": sizes}
        return replace(found, state=state, wake_at_s=until_s if waits else None)

    def _terms(self, choose: Choose) -> Callable[[int], tuple[Term, ...]]:
        """Return what the sizes follow from: scores where the filling ended."""
        scores = None
        if self.seen and isinstance(choose, Best):
            scores = choose.scores(self._rows.rows())
        place = {j: i for i, j in enumerate(self.seen)}

        def terms(j: int) -> tuple[Term, ...]:
            if j not in place:
                return (Term("trainers that are seen before it", len(place)),)
            worth = Term("of its work until T_fwd", 100.0 * self._rows.worth(j), "%")
            if scores is None:
                return (worth,)
            score = Term("score of one more, over void", float(scores[place[j]] - scores[-1]))
            return score, worth

        return terms


POLICY: AllocationPolicy = Dl2Policy()
