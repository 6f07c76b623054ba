"""The jobs of pilots that are to be cancelled: one order for each user at a time. No clock.

What is asked for while an order is under way waits for its end, so that a burst costs the batch
system few requests. Who carries orders out is the caller's: ``bftrainer.fleet.release`` does it in
threads, ``bftrainer.lab.site.sidecar`` in the time of a simulated machine.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from bftrainer.fleet.pilots.pilots import PilotBook

CancelOrder = Mapping[str, bool]  # job id -> with force


class CancelQueue:
    """The cancels of one daemon."""

    def __init__(self, pilots: PilotBook) -> None:
        self._pilots = pilots
        self._orders: dict[str, dict[str, bool]] = {}  # by user
        self._busy: set[str] = set()  # users with an order under way
        # Cancelled pilots that a look was called for; with force
        self._looked_for: set[tuple[str, bool]] = set()

    def add(self, job_ids: Sequence[str], *, force: bool = False) -> list[str]:
        """Have jobs cancelled; return the users whose next order can be given now."""
        ready_users: list[str] = []
        for user, jobs in self._pilots.by_user(job_ids).items():
            orders = self._orders.setdefault(user, {})
            for job_id in jobs:
                orders[job_id] = force or orders.get(job_id, False)
            if user not in self._busy:
                ready_users.append(user)
        return ready_users

    def next_order(self, user: str) -> CancelOrder:
        """Return what to cancel now for a user who has no order under way; {}: nothing."""
        self._busy.discard(user)
        order = self._orders.pop(user, {})
        if order:
            self._busy.add(user)
        return order

    def ended(self, order: CancelOrder, connected: Container[str]) -> bool:
        """Return whether a look has to show what came of an order: nobody announces these ends.

        Args:
            order: that was carried out.
            connected: pilots whose agents tell when they leave.
        """
        pilots = self._pilots.pilots
        mute = set[tuple[str, bool]]()
        for pilot_id, pilot in pilots.items():
            job_id = pilot.record.job_id
            if job_id is not None and job_id in order and pilot_id not in connected:
                mute.add((pilot_id, order[job_id]))
        has_news = bool(mute - self._looked_for)
        # Once for each: the looks after it are further apart (``PollCalls.saw``).
        self._looked_for = {entry for entry in self._looked_for | mute if entry[0] in pilots}
        return has_news

    def remaining(self) -> list[CancelOrder]:
        """Return the orders that wait, and forget them."""
        by_user, self._orders = self._orders, {}
        return list(by_user.values())
