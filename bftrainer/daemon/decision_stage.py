"""Says which decision is due, and takes it in a thread of its own.

Requests of one turn of the event loop are merged. If decisions take longer than ``HASTE_S``, one
that only gives nodes back comes first for an announced job; the full decision follows. Owned by
``bftrainer.daemon.incarnation``.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from bftrainer.daemon.decider import Decider, DecisionFailures, TakenDecision
from bftrainer.daemon.state import InForce
from bftrainer.fleet.background import ready_threads
from bftrainer.model.decision import DecisionInput

HASTE_S: Final = 0.025


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionKind:
    """The kind of a decision."""

    is_new_snapshot: bool  # the first since a poll that was answered whole
    gives_back_only: bool


class DecisionsDue:
    """The requests for decisions that no decision has answered yet; used in one event loop."""

    def __init__(self) -> None:
        self._is_any = asyncio.Event()
        self._is_new_snapshot = False
        self._is_hasty = False
        self._full_took_s = 0.0  # duration of the last full decision

    def soon(self, *, is_new_snapshot: bool = False) -> None:
        """Request a decision; ``is_new_snapshot``: a poll has shown all nodes and jobs."""
        self._is_new_snapshot = self._is_new_snapshot or is_new_snapshot
        self._is_any.set()

    def for_announced(self) -> None:
        """Request a decision for an announced job, which does not wait for a long one."""
        self._is_hasty = self._full_took_s > HASTE_S
        self.soon()

    async def wait(self) -> None:
        """Wait for a request, and consider all requests until now as answered."""
        await self._is_any.wait()
        self._is_any.clear()

    def next_kind(self) -> DecisionKind:
        """Return what the decision is to do that is taken now.

        A hasty decision leaves a new snapshot to the full one, which measures by it.
        """
        if self._is_hasty:
            self._is_hasty = False
            return DecisionKind(is_new_snapshot=False, gives_back_only=True)
        kind = DecisionKind(is_new_snapshot=self._is_new_snapshot, gives_back_only=False)
        self._is_new_snapshot = False
        return kind

    def put_off(self, kind: DecisionKind) -> None:
        """Request a decision of this kind again: the one that was taken is not used."""
        self._is_hasty = self._is_hasty or kind.gives_back_only
        self.soon(is_new_snapshot=kind.is_new_snapshot)

    def taken(self, kind: DecisionKind, took_s: float) -> None:
        """Note that a decision was taken in so many seconds, and is used."""
        if kind.gives_back_only:
            self.soon()  # the full decision follows
        else:
            self._full_took_s = took_s


class DecisionStage:
    """Takes the decisions of one daemon, one at a time."""

    def __init__(self, in_force: InForce) -> None:
        self.due = DecisionsDue()
        self.failures = DecisionFailures()
        self.decider = Decider(in_force.allocate, in_force.policy_hash, self.failures)
        self._thread = ready_threads(1, "decide")

    def adopt_policy(self, in_force: InForce) -> None:
        """Decide by another policy from now on; not while a decision is being taken."""
        self.decider.adopt_policy(in_force.allocate, in_force.policy_hash)

    async def take(self, situation: DecisionInput) -> TakenDecision:
        """Decide, beside the event loop."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self.decider.take, situation)

    def close(self) -> None:
        """Wait for a decision that is being taken."""
        self._thread.shutdown(wait=True, cancel_futures=True)
