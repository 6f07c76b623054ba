"""The poll loop: polls when the rate limiter allows, and reacts to announcements.

Owned by ``bftrainer.daemon``; ``service`` and the metrics read ``figures``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol

from bftrainer.batch.announcer import Announcement, Announcer
from bftrainer.batch.batch_system import ORDER_KINDS, BatchSystem
from bftrainer.batch.rate_limit import PaceRules, PollRateLimiter
from bftrainer.daemon.poll_calls import PollCalls
from bftrainer.model.cluster import Snapshot
from bftrainer.model.errors import BatchSystemError
from bftrainer.model.views import PollingView, RequestCount
from bftrainer.site.policy.model import SitePolicy

LOG = logging.getLogger("bftrainer.polling")

LONGEST_RESTS: Final = {False: 5.0, True: 2.0}  # in intervals; by has_hook
LONGEST_CALLED_RESTS: Final = {False: 5.0, True: 2.0}  # in intervals without the hook; by has_hook
RECHECK_S: Final = 5.0  # orders between polls delay the next one


class Look(Protocol):
    """Polls on behalf of the daemon."""

    def __call__(self, *, wants_cycle: bool) -> Awaitable[None]:
        """Poll once and process the snapshot."""


def rules_of(policy: SitePolicy, *, has_hook: bool) -> PaceRules:
    """Return the limits for a daemon with or without notifications by the hook."""
    interval_s, requests = policy.poll_interval_s, policy.requests_per_minute
    if has_hook:
        interval_s = max(interval_s, policy.poll_interval_with_hook_s)
        requests = min(requests, policy.requests_per_minute_with_hook)
    return PaceRules(
        interval_s=interval_s,
        requests_per_minute=requests,
        called_interval_s=policy.poll_interval_s,
        total_per_minute=policy.requests_per_minute,
        longest_rest_s=LONGEST_RESTS[has_hook] * interval_s,
        longest_called_rest_s=LONGEST_CALLED_RESTS[has_hook] * policy.poll_interval_s,
    )


def longest_rest_s(policy: SitePolicy) -> float:
    """Return the longest time from one poll to the next, however the daemon is told of jobs."""
    longest_s = 0.0
    for has_hook in (False, True):
        rules = rules_of(policy, has_hook=has_hook)
        longest_s = max(longest_s, rules.longest_rest_s, rules.interval_s)
    return longest_s


class Poller:
    """Runs until cancelled; one poll at a time."""

    def __init__(
        self,
        system: BatchSystem,
        policy: SitePolicy,
        *,
        look: Look,
        hear: Callable[[tuple[Announcement, ...]], None],
        waits_for_cycle: Callable[[], bool],
    ) -> None:
        """Wire the loop: ``look`` polls, ``hear`` gets announcements."""
        self._system = system
        self._policy = policy
        self._look = look
        self._hear = hear
        self._waits_for_cycle = waits_for_cycle
        self._called = asyncio.Event()
        self._counts: Counter[str] = Counter()
        self._announcer: Announcer | None = None
        self._was_answered = True  # the last poll
        self._can_be_told, self._why_not_told = True, ""
        self._calls = PollCalls(rules_of(policy, has_hook=False))

    @property
    def pace(self) -> PollRateLimiter:
        """When the next poll is due."""
        return self._calls.pace

    @property
    def has_hook(self) -> bool:
        """Return whether the batch system notifies us of all changes."""
        return self._announcer is not None and self._announcer.hears_all

    def adopt_policy(self, policy: SitePolicy) -> None:
        """Poll at the intervals of another policy from now on."""
        self._policy = policy
        self.pace.rules = rules_of(policy, has_hook=self.has_hook)
        self._called.set()  # it waits by the earlier rules

    async def run(self) -> None:
        """Poll at once, then whenever a poll is due."""
        try:
            while True:
                await self._listen()
                await self._look_once()
                await self._until_due()
        finally:
            self._listen_no_more()

    def call(self, after_s: float) -> None:
        """Call for a poll in ``after_s`` seconds; several calls may share one poll."""
        self.pace.calls.call(time.monotonic() + after_s)
        self._called.set()

    def changed(self) -> None:
        """Call for a poll that shows a change of this moment."""
        self._calls.changed(time.monotonic())
        self._called.set()

    def saw(
        self,
        snapshot: Snapshot,
        *,
        is_unshown: bool,
        owes_node: bool = False,
        awaits_end: bool = False,
    ) -> None:
        """Call for further polls where a snapshot soon shows more, if only notices call for any.

        The arguments are those of ``PollCalls.saw``.
        """
        self._was_answered = not (snapshot.nodes is None and snapshot.jobs is None)
        if self.has_hook:
            self._calls.saw(
                snapshot,
                time.monotonic(),
                is_unshown=is_unshown,
                owes_node=owes_node,
                awaits_end=awaits_end,
            )
            self._called.set()

    def figures(self) -> PollingView:
        """Return the cost of polling to the controller, and its limits."""
        rules, now_s = self.pace.rules, time.monotonic()
        mode = "polling"
        if self.has_hook:
            mode = "hook"
        return PollingView(
            mode=mode,
            interval_s=rules.interval_s,
            requests_per_minute=rules.requests_per_minute,
            total_per_minute=rules.total_per_minute,
            requests_last_minute=self.pace.requests_last_minute(now_s),
            looks=self.pace.looks,
            called_looks=self.pace.called_looks,
            last_look_s=self.pace.last_look_s,
            requests=_in_order(self._system.request_counts()),
            told=_in_order(self._system.told_counts()),
        )

    async def _listen(self) -> None:
        """Open the notifications if possible; else poll, and retry before each poll."""
        if self._announcer is not None or not self._can_be_told:
            return
        try:
            announcer = await asyncio.to_thread(self._system.open_announcer)
        except BatchSystemError as problem:
            self._polls_because(problem)
            return
        self._can_be_told = announcer is not None
        if announcer is not None:
            self._announcer, self._why_not_told = announcer, ""
            self.pace.rules = rules_of(self._policy, has_hook=self.has_hook)
            asyncio.get_running_loop().add_reader(announcer.fileno(), self._on_announced)

    def _listen_no_more(self) -> None:
        if self._announcer is not None:
            asyncio.get_running_loop().remove_reader(self._announcer.fileno())
            self._announcer.close()
            self._announcer = None
            self.pace.rules = rules_of(self._policy, has_hook=False)

    def _polls_because(self, problem: BatchSystemError) -> None:
        if str(problem) != self._why_not_told:
            self._why_not_told = str(problem)
            LOG.warning("%s Until then the daemon polls.", problem)

    def _on_announced(self) -> None:
        if self._announcer is None:
            return
        try:
            announcements = self._announcer.read()
        except BatchSystemError as problem:
            self._listen_no_more()
            self._polls_because(problem)
            self.changed()
            return
        self.pace.rules = rules_of(self._policy, has_hook=self.has_hook)
        if not announcements:
            return
        self._hear(announcements)
        self._calls.heard(announcements, time.monotonic())
        self._called.set()

    async def _look_once(self) -> None:
        began_s = time.monotonic()
        self._note_orders(began_s)
        is_called = self.pace.is_called(began_s)
        wants_cycle = self._waits_for_cycle() and self._calls.may_ask_for_cycle(
            began_s, self._system.cycle_s
        )
        await self._look(wants_cycle=wants_cycle)
        ended_s = time.monotonic()
        requests = self._since()
        orders = sum(requests[kind] for kind in ORDER_KINDS)
        self.pace.ordered(ended_s, orders)
        self.pace.looked(
            began_s,
            ended_s,
            requests.total() - orders,
            is_called=is_called,
            was_answered=self._was_answered,
        )

    async def _until_due(self) -> None:
        while True:
            now_s = time.monotonic()
            self._note_orders(now_s)
            rest_s = self.pace.due_s(now_s) - now_s
            if rest_s <= 0:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(rest_s, RECHECK_S)):
                    await self._called.wait()
            self._called.clear()

    def _note_orders(self, now_s: float) -> None:
        """Count requests made outside polls as orders."""
        self.pace.ordered(now_s, self._since().total())

    def _since(self) -> Counter[str]:
        """Return the requests since the last call."""
        counts = Counter(self._system.request_counts())
        before, self._counts = self._counts, counts
        return counts - before


def _in_order(totals: Mapping[str, int]) -> tuple[RequestCount, ...]:
    return tuple(RequestCount(kind=kind, total=totals[kind]) for kind in sorted(totals))
