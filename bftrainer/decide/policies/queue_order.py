"""Policies that order the trainers by a key and serve them one after the other.

Used by fifo, srtf, las and tiresias. A rigid trainer *requests* n_max nodes, or all that it could
have if it were alone where that is less, and runs on so many or on none. A trainer that does not
fit is passed over, so that no node waits for the first of the queue. At most p_jmax run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from bftrainer.decide.policies.base import Context, Decided
from bftrainer.decide.policies.distribution import Handing
from bftrainer.model.decision import Term


def no_terms(_: int) -> tuple[Term, ...]:
    """Return no further terms."""
    return ()


def serve(
    handing: Handing,
    order: Sequence[int],
    name: str,
    why: Callable[[int], tuple[Term, ...]] = no_terms,
    *,
    is_elastic: bool = False,
) -> Decided:
    """Serve trainers in order; elastic ones take what is left of n_min to n_max.

    Args:
        handing: the pool.
        order: of the trainers.
        name: of the policy.
        why: what a trainer's place follows from.
        is_elastic: whether trainers take less than they request.
    """
    running, terms = 0, dict[int, tuple[Term, ...]]()
    for place, j in enumerate(order, start=1):
        n_min = handing.trainers[j].n_min
        request = handing.largest(j)
        terms[j] = (
            Term("place in the queue", place),
            *why(j),
            Term("requested", request, "nodes"),
            Term("left at its turn", handing.could_have(j), "nodes"),
        )
        if running == handing.problem.p_jmax or not any(handing.free):
            continue
        need = n_min
        if not is_elastic:
            need = max(n_min, request)
        if handing.settle(j, need) and handing.take(j, min(request, handing.room(j))):
            running += 1
    return handing.answer(name, terms.__getitem__, order)


def by_key(handing: Handing, key: Callable[[int], Any]) -> list[int]:
    """Return the trainers by a key, least first; ties in order of submission."""
    return sorted(range(len(handing.trainers)), key=key)


class Lease:
    """A time until which running trainers are not displaced; then the order is made anew.

    Without it, trainers whose keys change as they run take turns at every event. The state of the
    policy is the time.
    """

    def __init__(self, context: Context, period_s: float) -> None:
        """Go on with the lease in force, or begin one of ``period_s``."""
        until_s = context.state
        self.is_new = until_s is None or until_s <= context.now_s
        self._until_s: float = context.now_s + period_s if self.is_new else until_s

    def order(self, handing: Handing, key: Callable[[int], Any]) -> list[int]:
        """Return the trainers by a key; under a lease those with nodes come first."""
        if self.is_new:
            return by_key(handing, key)
        return by_key(handing, lambda j: (not handing.pool.present[j], key(j)))

    def keep(self, decided: Decided) -> Decided:
        """Return the answer with the lease; its end matters when somebody waits."""
        sizes = decided.allocation.sizes()
        is_waited_for = any(trainer_id not in sizes for trainer_id in decided.order)
        decided = replace(decided, state=self._until_s, wake_at_s=None)
        if is_waited_for:
            decided = replace(decided, wake_at_s=self._until_s)
        return decided
