"""The loop of looks: asks the pace when, lets the daemon look, hears what is announced.

A batch system, the policy and the daemon's look come in; looks at the right times go
out, and the figures of what they cost. Owned by ``bftrainer.daemon``; ``service`` and
whoever exports metrics read ``figures``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from bftrainer.errors import BatchSystemError
from bftrainer.model.cluster import NodeState, Snapshot
from bftrainer.model.views import PollingView, RequestCount
from bftrainer.policy.model import SitePolicy
from bftrainer.poll.announcer import SHOWN_S, UNSEEN_S, Announcement, Announcer
from bftrainer.poll.batch_system import ORDER_KINDS, BatchSystem
from bftrainer.poll.rate_limit import PaceRules, PollRateLimiter

LOG = logging.getLogger("bftrainer.polling")

LONGEST_RESTS: Final = {False: 5.0, True: 2.0}  # intervals; with announcements we look less
LONGEST_CALLED_RESTS: Final = {False: 5.0, True: 2.0}  # intervals of a daemon that polls
CHANGED_S: Final = 0.3  # after it what has happened shows
AGAIN_S: Final = (1.0, 2.0, 4.0)  # the batch system cleans up after a job; its node is idle then
RECHECK_S: Final = 5.0  # orders are given between looks, and put the next one off
CYCLES_ASKED: Final = 10.0  # times per cycle of the scheduler, while something waits for it


class Look(Protocol):
    """How the daemon looks."""

    def __call__(self, *, wants_cycle: bool) -> Awaitable[None]:
        """Look once and take the look over."""


def rules_of(policy: SitePolicy, *, has_hook: bool) -> PaceRules:
    """Return the pace of a daemon that is told of changes, or of one that is not."""
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


class Poller:
    """Runs until cancelled; one look at a time."""

    def __init__(
        self,
        system: BatchSystem,
        policy: SitePolicy,
        *,
        look: Look,
        hear: Callable[[tuple[Announcement, ...]], None],
        waits_for_cycle: Callable[[], bool],
    ) -> None:
        """Take what it looks at and who is told."""
        self._system = system
        self._policy = policy
        self._look = look
        self._hear = hear
        self._waits_for_cycle = waits_for_cycle
        self._called = asyncio.Event()
        self._counts: Counter[str] = Counter()
        self._cycle_asked_s = -math.inf
        self._completing: dict[str, int] = {}  # node -> looks in a row that showed it so
        self._announcer: Announcer | None = None
        self._can_be_told, self._why_not_told = True, ""
        self.pace = PollRateLimiter(rules_of(policy, has_hook=False))

    @property
    def has_hook(self) -> bool:
        """Whether the batch system tells of changes by itself."""
        return self._announcer is not None

    async def run(self) -> None:
        """Look at once, then whenever it is time."""
        try:
            while True:
                await self._listen()
                await self._look_once()
                await self._until_due()
        finally:
            self._listen_no_more()

    def call(self, after_s: float) -> None:
        """Ask for a look in so many seconds; several calls may get one together."""
        self.pace.calls.call(time.monotonic() + after_s)
        self._called.set()

    def changed(self) -> None:
        """Ask for a look at what is about to be different."""
        self.call(CHANGED_S)

    def saw(self, snapshot: Snapshot, *, is_unshown: bool) -> None:
        """Come back for nodes that were not idle yet when their job had ended.

        And for an announced job that it should have shown: the next look must, if there is one.
        """
        if not self.has_hook:
            return
        if is_unshown:
            self.call(UNSEEN_S)
        nodes = snapshot.nodes or ()
        completing = {n.name for n in nodes if n.state is NodeState.COMPLETING}
        self._completing = {n: self._completing.get(n, 0) + 1 for n in completing}
        times = min(self._completing.values(), default=math.inf)
        if times <= len(AGAIN_S):
            self.call(AGAIN_S[int(times) - 1])

    def figures(self) -> PollingView:
        """Return what looking costs the controller, and what it may cost."""
        rules, now_s = self.pace.rules, time.monotonic()
        return PollingView(
            mode="hook" if self.has_hook else "polling",
            interval_s=rules.interval_s,
            requests_per_minute=rules.requests_per_minute,
            total_per_minute=rules.total_per_minute,
            requests_last_minute=self.pace.requests_last_minute(now_s),
            looks=self.pace.looks,
            called_looks=self.pace.called_looks,
            last_look_s=self.pace.last_look_s,
            requests=tuple(
                RequestCount(kind=kind, total=total)
                for kind, total in sorted(self._system.request_counts().items())
            ),
        )

    async def _listen(self) -> None:
        """Be told of changes if that is possible; else poll, and try again before each look."""
        if self.has_hook or not self._can_be_told:
            return
        try:
            announcer = await asyncio.to_thread(self._system.open_announcer)
        except BatchSystemError as problem:
            self._polls_because(problem)
            return
        self._can_be_told = announcer is not None
        if announcer is not None:
            self._announcer, self._why_not_told = announcer, ""
            self.pace.rules = rules_of(self._policy, has_hook=True)
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
        if not announcements:
            return
        self._hear(announcements)
        for said in announcements:
            if said.job is not None:
                self.pace.soon.call(time.monotonic() + SHOWN_S)
                self._called.set()
            elif said.nodes:
                self.call(AGAIN_S[0])
            else:
                self.changed()

    async def _look_once(self) -> None:
        began_s = time.monotonic()
        self._note_orders(began_s)
        is_called = self.pace.is_called(began_s)
        wants_cycle = (
            self._waits_for_cycle()
            and began_s - self._cycle_asked_s >= self._system.cycle_s / CYCLES_ASKED
        )
        if wants_cycle:
            self._cycle_asked_s = began_s
        await self._look(wants_cycle=wants_cycle)
        ended_s = time.monotonic()
        asked = self._since()
        orders = sum(count for kind, count in asked.items() if kind in ORDER_KINDS)
        self.pace.ordered(ended_s, orders)
        self.pace.looked(began_s, ended_s, asked.total() - orders, is_called=is_called)

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
        """Take what was asked of the controller beside the looks for orders."""
        self.pace.ordered(now_s, self._since().total())

    def _since(self) -> Counter[str]:
        """Requests since the last call of this."""
        counts = Counter(self._system.request_counts())
        before, self._counts = self._counts, counts
        return counts - before
