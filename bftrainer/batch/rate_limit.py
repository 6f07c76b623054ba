"""The time of the next poll: request budgets, controller latency, announcements. No clock.

Polls, orders (pilots submitted and cancelled) and announcements come in with their times; the
time of the next poll goes out. Called by ``bftrainer.daemon.poller``.

A *regular* poll comes ``interval_s`` after the last one. A poll *called* by an announcement comes
as soon as it can show what was announced; one poll serves a whole burst. An announced job is
worth one node until a snapshot shows it, so its poll is called *soon*: it waits only for a short
burst, and a few such polls may come ahead of their time, for which later ones wait. Every poll
begins at least five times the duration of the last one after that began, or of the one before if
that was shorter: a controller that is slow gets a fifth of the time at most, and one that was slow
once does not make the daemon blind. A poll that nobody answered is repeated after 5 s.

Accounting. Regular polls have a budget of requests in any 60 s, and so have all polls together;
both always hold. Orders are counted but never delayed. Polls after them become rarer, so that
both together stay within the budget, but not rarer than every ``longest_rest_s``
(``longest_called_rest_s`` for called ones), because a daemon that does not poll harms ordinary
jobs and misses idle nodes. So only a burst of orders can exceed a budget, within its minute.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

WINDOW_S = 60.0
LATENCY_FACTOR = 5.0
LEAST_REST_S = 0.05
UNANSWERED_REST_S = 5.0  # after a poll that nobody answered: it cost the controller nothing
LOOK_REQUESTS = 4  # nodes, jobs, and two requests that not every poll makes
BURST_S = 1.0  # an endless burst is polled this often
SOON_BURST_S = 0.2  # the same for polls called soon
AHEAD = 4  # polls called soon that may come ahead of their time


@dataclass(frozen=True, slots=True, kw_only=True)
class PaceRules:
    """The limits set by the administrator."""

    interval_s: float  # between two regular polls
    requests_per_minute: int  # of regular polls
    called_interval_s: float  # between a poll and a called one
    total_per_minute: int  # of all polls
    longest_rest_s: float  # orders delay a regular poll at most this long
    longest_called_rest_s: float  # and a called one at most this long


class RequestWindow:
    """Requests of the last minute."""

    def __init__(self) -> None:
        self._entries: deque[tuple[float, int]] = deque()
        self._sum = 0

    def add(self, at_s: float, requests: int) -> None:
        """Record requests that were complete at ``at_s``; times never decrease."""
        if requests:
            self._entries.append((at_s, requests))
            self._sum += requests

    def count(self, now_s: float) -> int:
        """Return the number of requests in the last minute."""
        while self._entries:
            at_s, requests = self._entries[0]
            if at_s > now_s - WINDOW_S:
                break
            self._sum -= requests
            self._entries.popleft()
        return self._sum

    def free_s(self, now_s: float, requests: int, limit: int) -> float:
        """Return the earliest time at which ``requests`` more stay within the limit."""
        over = self.count(now_s) + min(requests, limit) - limit
        free_s = now_s
        for at_s, count in self._entries:
            if over <= 0:
                break
            over -= count
            free_s = at_s + WINDOW_S
        return free_s


class PendingTriggers:
    """Called polls that are still due, as the earliest times at which they may begin."""

    def __init__(self, burst_s: float = BURST_S) -> None:
        self._burst_s = burst_s
        self._ripe_s: list[float] = []
        self._first_s, self._last_s = math.inf, -math.inf

    def call(self, ripe_s: float) -> None:
        """Call for a poll that begins at ``ripe_s`` or later."""
        self._ripe_s.append(ripe_s)
        self._note(ripe_s)

    def due_s(self) -> float:
        """Return when one poll can show the whole burst, or after ``burst_s`` at the latest."""
        if not self._ripe_s:
            return math.inf
        return min(self._last_s, self._first_s + self._burst_s)

    def answer(self, began_s: float) -> None:
        """Drop what a poll that began then has answered."""
        self._ripe_s = [ripe_s for ripe_s in self._ripe_s if ripe_s > began_s]
        self._first_s, self._last_s = math.inf, -math.inf
        for ripe_s in self._ripe_s:
            self._note(ripe_s)

    def _note(self, ripe_s: float) -> None:
        self._first_s, self._last_s = min(self._first_s, ripe_s), max(self._last_s, ripe_s)


class PollRateLimiter:
    """A fold over polls, orders and calls; all times are of one monotonic clock."""

    def __init__(self, rules: PaceRules) -> None:
        self.rules = rules
        self.calls, self.soon = PendingTriggers(), PendingTriggers(SOON_BURST_S)
        self.looks = self.called_looks = 0
        self.last_look_s = 0.0  # its duration
        self._usual_look_s = 0.0  # the shorter of the last two
        self._uncalled, self._looked, self._ordered = (
            RequestWindow(),
            RequestWindow(),
            RequestWindow(),
        )
        self._began_s = self._ended_s = self._paid_s = -math.inf
        self._requests = 0  # of the last poll
        self._was_answered = True

    def ordered(self, now_s: float, requests: int) -> None:
        """Record requests that do not belong to a poll."""
        self._ordered.add(now_s, requests)

    def looked(
        self,
        began_s: float,
        ended_s: float,
        requests: int,
        *,
        is_called: bool,
        was_answered: bool = True,
    ) -> None:
        """Record a poll; the calls it can have answered are dropped."""
        self._was_answered = was_answered
        self.looks += 1
        self.called_looks += is_called
        self._began_s, self._ended_s = began_s, ended_s
        took_s = ended_s - began_s
        self._usual_look_s = took_s
        if self.looks > 1:  # there is a last one
            self._usual_look_s = min(took_s, self.last_look_s)
        self.last_look_s, self._requests = took_s, requests
        rest_s = self._called_rest_s(ended_s)
        # Slightly longer, so that polls ahead of their time stay within the minute's budget, too.
        self._paid_s = max(self._paid_s, began_s) + rest_s * (1.0 + AHEAD * rest_s / WINDOW_S)
        self.calls.answer(began_s)
        self.soon.answer(began_s)
        self._looked.add(ended_s, requests)
        if not is_called:
            self._uncalled.add(ended_s, requests)

    def is_called(self, now_s: float) -> bool:
        """Return whether a poll that begins now answers a call and no regular poll is due."""
        due_s = min(self.calls.due_s(), self.soon.due_s())
        return due_s <= now_s < self._uncalled_s(now_s)

    def due_s(self, now_s: float) -> float:
        """Return when the next poll is due, not before ``now_s``."""
        return max(now_s, min(self._uncalled_s(now_s), self._called_s(now_s)))

    def requests_last_minute(self, now_s: float) -> int:
        """Of polls and orders."""
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
        """Return the time between begins of polls that keeps the minute's budget."""
        requests_left = max(1, limit - self._ordered.count(now_s))
        own_s = self._requests * WINDOW_S / limit
        spacing_s = self._requests * WINDOW_S / requests_left
        return max(own_s, min(spacing_s, longest_rest_s))

    def _able_s(self) -> float:
        """Return when the controller may be polled again at all."""
        slowly_s = self._began_s + LATENCY_FACTOR * self._usual_look_s
        if not self._was_answered:
            slowly_s = min(slowly_s, self._ended_s + UNANSWERED_REST_S)
        return max(slowly_s, self._ended_s + LEAST_REST_S)
