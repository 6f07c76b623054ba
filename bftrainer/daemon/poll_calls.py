"""The polls that notices call for, and those that a poll itself calls for. No clock.

``PollRateLimiter`` says when a poll that was called for may begin. The daemon's ``poller`` gives
the times of a monotonic clock, ``bftrainer.lab.site`` those of a simulated machine.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from bftrainer.batch.announcer import SHOWN_S, UNSEEN_S, Announcement
from bftrainer.batch.rate_limit import PaceRules, PollRateLimiter
from bftrainer.model.cluster import NodeState, Snapshot

CHANGED_S: Final = 0.3  # until a change shows in a poll
AGAIN_S: Final = (1.0, 2.0, 4.0)  # until a completing node is idle, or a job has its node
AGAIN_AFTER_S: Final = AGAIN_S[0]  # an announced end
CYCLES_ASKED: Final = 10.0  # reads per scheduler cycle, while something waits for it


class PollCalls:
    """The calls of one daemon; all times are of one monotonic clock."""

    def __init__(self, rules: PaceRules) -> None:
        self.pace = PollRateLimiter(rules)
        self._cycle_asked_s = -math.inf
        self._completing: dict[str, int] = {}  # node -> consecutive snapshots
        self._owing = 0  # consecutive snapshots in which a job lacked a node that we released
        self._ending = 0  # consecutive snapshots after which a cancelled pilot was still there

    def changed(self, now_s: float) -> None:
        """Call for a poll that shows a change of this moment."""
        self.pace.calls.call(now_s + CHANGED_S)

    def heard(self, announcements: Iterable[Announcement], now_s: float) -> None:
        """Call for the polls that show what was announced."""
        for announcement in announcements:
            if announcement.job is not None:
                self.pace.soon.call(now_s + SHOWN_S)
            elif announcement.nodes:
                self.pace.calls.call(now_s + AGAIN_AFTER_S)
            else:
                self.changed(now_s)

    def saw(
        self,
        snapshot: Snapshot,
        now_s: float,
        *,
        is_unshown: bool,
        owes_node: bool = False,
        awaits_end: bool = False,
    ) -> None:
        """Call for further polls where a snapshot soon shows more.

        Args:
            snapshot: of the poll.
            now_s: its end.
            is_unshown: an announced job is not in it yet.
            owes_node: a node was released for a job that is not on it yet: a short one would
                come and go between two regular polls, and nobody would know how long it waited.
            awaits_end: a pilot that had not started was cancelled and is still in the queue, or
                may appear there: the cancel may have failed, and is repeated after a look.
        """
        if is_unshown:
            self.pace.calls.call(now_s + UNSEEN_S)
        nodes = snapshot.nodes or ()
        looks_before, self._completing = self._completing, {}
        for node in nodes:
            if node.state is NodeState.COMPLETING:
                self._completing[node.name] = looks_before.get(node.name, 0) + 1
        self._owing += 1
        if not owes_node:
            self._owing = 0
        self._ending += 1
        if not awaits_end:
            self._ending = 0
        for times in (min(self._completing.values(), default=0), self._owing, self._ending):
            if 0 < times <= len(AGAIN_S):
                self.pace.calls.call(now_s + AGAIN_S[times - 1])

    def may_ask_for_cycle(self, now_s: float, cycle_s: float) -> bool:
        """Return whether the poll of this moment may read the scheduler's cycle, and note it.

        Args:
            now_s: the poll's begin.
            cycle_s: of the scheduler.
        """
        if now_s - self._cycle_asked_s < cycle_s / CYCLES_ASKED:
            return False
        self._cycle_asked_s = now_s
        return True
