"""When the next look may be: budgets of requests, latency, announcements; no clock.

Looks, orders (pilots submitted and cancelled) and announcements come in with their
times; the moment of the next look goes out. Called by ``bftrainer.polling``.

A look nobody called for comes ``interval_s`` after the last one; a look that an
announcement calls for comes as soon as it can show what was announced, and one look
serves a whole burst. A job that was announced is worth one node until a look shows it, so
its look is called *soon*: it waits for a short burst only, and a few of them may come right
after others, for which later ones wait. All come five times as long after the last
look began as that one took, so that never more than a fifth of the time is spent inside
the controller.

Accounting. Looks nobody called for have a budget of requests in any 60 s, and so have
all looks together; both are kept whatever happens. Orders are counted but never delayed:
the looks after them come more seldom, so that both together stay within the budget, but
not more seldom than every ``longest_rest_s``, and ``longest_called_rest_s`` for one that an
announcement calls for, because a daemon that does not look harms ordinary jobs and misses
idle nodes. So what can exceed a budget is a burst of orders, within its minute.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

WINDOW_S = 60.0
LATENCY_FACTOR = 5.0
LEAST_REST_S = 0.05
LOOK_REQUESTS = 4  # nodes, jobs, and two of what is not asked every time
BURST_S = 1.0  # a burst that does not end is looked at this often
SOON_BURST_S = 0.2  # the same where somebody waits for the look
AHEAD = 4  # looks that may come before their time where somebody waits for them


@dataclass(frozen=True, slots=True, kw_only=True)
class PaceRules:
    """What the administrator allows."""

    interval_s: float  # between two looks nobody called for
    requests_per_minute: int  # of looks nobody called for
    called_interval_s: float  # between a look and one that is called for
    total_per_minute: int  # of all looks
    longest_rest_s: float  # orders put a look off no longer than this
    longest_called_rest_s: float  # and no longer than this one that is called for


class RequestWindow:
    """Requests of the last minute."""

    def __init__(self) -> None:
        self._entries: deque[tuple[float, int]] = deque()
        self._sum = 0

    def add(self, at_s: float, requests: int) -> None:
        """Note requests that were over by ``at_s``; times only grow."""
        if requests:
            self._entries.append((at_s, requests))
            self._sum += requests

    def count(self, now_s: float) -> int:
        """How many."""
        while self._entries and self._entries[0][0] <= now_s - WINDOW_S:
            self._sum -= self._entries.popleft()[1]
        return self._sum

    def free_s(self, now_s: float, requests: int, limit: int) -> float:
        """Return the earliest time from which so many more keep the limit."""
        over = self.count(now_s) + min(requests, limit) - limit
        free_s = now_s
        for at_s, count in self._entries:
            if over <= 0:
                break
            over -= count
            free_s = at_s + WINDOW_S
        return free_s


class PendingTriggers:
    """Announcements that no look has shown yet, as the times from which one can."""

    def __init__(self, burst_s: float = BURST_S) -> None:
        self._burst_s = burst_s
        self._ripe_s: list[float] = []
        self._first_s, self._last_s = math.inf, -math.inf

    def call(self, ripe_s: float) -> None:
        """Ask for a look that begins at ``ripe_s`` or later."""
        self._ripe_s.append(ripe_s)
        self._note(ripe_s)

    def due_s(self) -> float:
        """Return when one look shows the whole burst; it waits for its end, but not for ever."""
        return min(self._last_s, self._first_s + self._burst_s) if self._ripe_s else math.inf

    def answer(self, began_s: float) -> None:
        """Forget what a look that began then has shown."""
        self._ripe_s = [ripe_s for ripe_s in self._ripe_s if ripe_s > began_s]
        self._first_s, self._last_s = math.inf, -math.inf
        for ripe_s in self._ripe_s:
            self._note(ripe_s)

    def _note(self, ripe_s: float) -> None:
        self._first_s, self._last_s = min(self._first_s, ripe_s), max(self._last_s, ripe_s)


class PollRateLimiter:
    """The fold over looks, orders and calls; all times are of one monotonic clock."""

    def __init__(self, rules: PaceRules) -> None:
        self.rules = rules
        self.calls, self.soon = PendingTriggers(), PendingTriggers(SOON_BURST_S)
        self.looks = self.called_looks = 0
        self.last_look_s = 0.0  # how long it took
        self._uncalled, self._looked, self._ordered = (
            RequestWindow(),
            RequestWindow(),
            RequestWindow(),
        )
        self._began_s = self._ended_s = self._paid_s = -math.inf
        self._requests = 0  # of the last look

    def ordered(self, now_s: float, requests: int) -> None:
        """Note requests that are not a look's."""
        self._ordered.add(now_s, requests)

    def looked(self, began_s: float, ended_s: float, requests: int, *, is_called: bool) -> None:
        """Note a look; what it can have shown is answered."""
        self.looks += 1
        self.called_looks += is_called
        self._began_s, self._ended_s = began_s, ended_s
        self.last_look_s, self._requests = ended_s - began_s, requests
        rest_s = self._called_rest_s(ended_s)
        # A little longer: those that came ahead are within the budget of the minute as well.
        self._paid_s = max(self._paid_s, began_s) + rest_s * (1.0 + AHEAD * rest_s / WINDOW_S)
        self.calls.answer(began_s)
        self.soon.answer(began_s)
        self._looked.add(ended_s, requests)
        if not is_called:
            self._uncalled.add(ended_s, requests)

    def is_called(self, now_s: float) -> bool:
        """Whether a look that begins now answers a call and is not due without one."""
        due_s = min(self.calls.due_s(), self.soon.due_s())
        return due_s <= now_s < self._uncalled_s(now_s)

    def due_s(self, now_s: float) -> float:
        """Return when the next look is due, not before ``now_s``."""
        return max(now_s, min(self._uncalled_s(now_s), self._called_s(now_s)))

    def requests_last_minute(self, now_s: float) -> int:
        """Of looks and orders."""
        return self._looked.count(now_s) + self._ordered.count(now_s)

    def _uncalled_s(self, now_s: float) -> float:
        rules = self.rules
        return max(
            self._began_s + rules.interval_s,
            self._began_s + self._rest_s(now_s, rules.requests_per_minute, rules.longest_rest_s),
            self._able_s(),
            self._uncalled.free_s(now_s, LOOK_REQUESTS, rules.requests_per_minute),
            self._looked.free_s(now_s, LOOK_REQUESTS, rules.total_per_minute),
        )

    def _called_s(self, now_s: float) -> float:
        rest_s = self._called_rest_s(now_s)
        due_s = min(
            max(self.calls.due_s(), self._began_s + rest_s),
            max(self.soon.due_s(), self._paid_s - AHEAD * rest_s),
        )
        if due_s == math.inf:
            return due_s
        free_s = self._looked.free_s(now_s, LOOK_REQUESTS, self.rules.total_per_minute)
        return max(due_s, self._able_s(), free_s)

    def _called_rest_s(self, now_s: float) -> float:
        rules = self.rules
        rest_s = self._rest_s(now_s, rules.total_per_minute, rules.longest_called_rest_s)
        return max(rules.called_interval_s, rest_s)

    def _rest_s(self, now_s: float, limit: int, longest_rest_s: float) -> float:
        """Return how long after the begin of a look the next keeps the budget of a minute."""
        left = max(1, limit - self._ordered.count(now_s))
        own_s = self._requests * WINDOW_S / limit
        spacing_s = self._requests * WINDOW_S / left
        return max(own_s, min(spacing_s, longest_rest_s))

    def _able_s(self) -> float:
        """Return when the controller may be asked again, whatever for."""
        slowly_s = self._began_s + LATENCY_FACTOR * self.last_look_s
        return max(slowly_s, self._ended_s + LEAST_REST_S)
