"""Failures and stalls of one trainer's workers, and when to try again.

Failures and signs of success come in; whether a worker may be started, here or anywhere, goes
out. Losses (the node was taken) are not failures, cost no budget and do not get here. An agent
that dies with a worker on a healthy node may have been killed for any reason: the first in a row
is a loss, each further one a failure.

Failures form one row until there is net progress: the trainer gets further than ever before, or
starts from a later state than before in this row (after a loss it may have to redo much). Redone
steps prove nothing: a script that raises at step 5 reaches step 5 each time.

A process that answers may still hang in its own code or in a collective. Signs of progress and
sent commits come in; whether the generation has stalled, and which workers did not act on a
commit, goes out. Processes that do not even answer are handled by their agent
(``worker_lease_s``). Used by ``generation``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from bftrainer.ground import protocol
from bftrainer.model.trainer import FailureRow, Mark, TrainerRecord, happens_anywhere
from bftrainer.site.policy.model import SitePolicy

MAX_BACKOFF_S = 30.0  # of the trainer
COMMAND = "command"  # the runtime whose programs need not say how far they are
MAX_COOL_DOWN_S = 1800.0  # of a node that keeps failing while others succeed
# Of members that differ: who is named and in which order depends on who is there.
_OF_MEMBERS = ("BFT-1408:", "BFT-1421:", "BFT-1433:")
_OF_THE_NODE = "BFT-1445:"  # it is avoided; the trainer is not to blame
_PATH = re.compile(r"[\w.~+=-]*(?:/[\w.~+=-]+)+/?")
# A number, an address, an id, a node's name; not an exit status.
_NUMBERED = re.compile(r"(?<![\w.+-])(?<!status )[\w.+-]*\d[\w.+-]*")
# Reported exceptions that no node can cause.
_OF_THE_SCRIPT = re.compile(r"The script raised (SyntaxError|IndentationError|TabError):")


@dataclass(slots=True)
class FailureCounts:
    """Consecutive failures, of the trainer and of each node."""

    row: FailureRow = field(default_factory=FailureRow)
    before: FailureRow = field(default_factory=FailureRow)  # ``row`` before the last one
    on_node: dict[str, int] = field(default_factory=dict)  # since the last net progress there
    cool_until_s: dict[str, float] = field(default_factory=dict)
    lost_after: int = -1  # workers started when an agent's death last counted

    def note(self, node: str, cause: str, log_path: str, now_s: float, *, place: str = "") -> bool:
        """Record that a worker on this node failed; return whether that counts.

        Workers that fail at the same time count as one failure; what is the node's fault as none.
        """
        counts = self.may_start(now_s) and not cause.startswith(_OF_THE_NODE)
        if counts:
            number, self.before = self.row.count + 1, self.row
            self.row = replace(
                self.before,
                count=number,
                cause=cause,
                place=place,
                node=node,
                log_path=log_path,
                next_try_s=now_s + min(MAX_BACKOFF_S, _growing_s(number)),
            )
        # Other nodes may progress meanwhile; a bad node is tried less and less often.
        count = self.on_node[node] = self.on_node.get(node, 0) + 1
        self.cool_until_s[node] = now_s + min(MAX_COOL_DOWN_S, _growing_s(count))
        return counts

    def lost(self, number: int, started: int) -> bool:
        """Record that an agent died on a healthy node; return whether that is a failure.

        ``number`` is the worker's, of so many ``started`` by then. Further agents whose workers
        were already running at the last such death count with it.
        """
        if number <= self.lost_after:
            return False
        self.lost_after = started
        self.row = replace(self.row, losses=self.row.losses + 1)
        return self.row.losses > 1

    def started(self, at: Mark) -> None:
        """Record a generation without survivors: it began with a checkpoint, a copy or nothing."""
        row = self.row
        is_open = bool(row.count or row.losses)
        if is_open and row.start is not None and at.is_beyond(row.start):
            row, is_open = FailureRow(best=row.best), False  # it starts from more than last time
        start = at if row.start is None or not is_open else row.start
        self.row = replace(row, start=start, best=row.best.joined(at))

    def progressed(self, to: Mark, nodes: Iterable[str]) -> None:
        """Record that the trainer committed steps on these nodes."""
        if not to.is_beyond(self.row.best):
            return
        self.row = FailureRow(best=self.row.best.joined(to))
        for node in nodes:
            self.on_node.pop(node, None)

    def may_start(self, now_s: float) -> bool:
        """Return whether a worker may be started at all."""
        wait_s = self.row.next_try_s - now_s
        return wait_s <= 0.0 or wait_s > MAX_BACKOFF_S  # more: the clock was set back

    def is_cooling(self, node: str, now_s: float) -> bool:
        """Return whether no worker may be started on this node for now."""
        return now_s < self.cool_until_s.get(node, 0.0)


def given_up(failures: FailureCounts, record: TrainerRecord, policy: SitePolicy) -> str | None:
    """Say why a trainer is given up after a failure, which both count already; None: it is not."""
    row, before, most = failures.row, failures.before, record.spec.max_failures
    if most is not None and record.failures >= most:
        return f"That was failure {record.failures} of at most {most} (--max-failures)."
    if happens_anywhere(row.cause) or (
        record.started_s is None and _OF_THE_SCRIPT.search(row.cause)
    ):
        return "This fails on every node, so it is not tried again."
    is_new = record.started_s is None or (row.best == Mark() and record.spec.runtime != COMMAND)
    is_repeated = row.count > 1 and likeness(row.cause) == likeness(before.cause)
    if is_new and is_repeated and is_the_scripts(row.cause):
        if row.node != before.node:
            return f"It failed the same way on {before.node} and {row.node}, before any training."
        if policy.quarantine_s > 0.0:
            return "It failed the same way twice, before any training; no other node was available."
    if row.count < policy.failure_budget:
        return None
    reached = f"beyond step {row.best.step}" if row.best.step else "anywhere"
    return (
        f"That was failure {row.count} in a row without getting {reached} (failure_budget),"
        f" the last on {row.node}."
    )


def likeness(cause: str) -> str:
    """Return the words of a failure without what differs between two tries of the same mistake."""
    if cause.startswith(_OF_MEMBERS):
        return cause.partition(":")[0]
    code, colon, words = cause.partition(":") if cause.startswith("BFT-") else ("", "", cause)
    return code + colon + _NUMBERED.sub("#", _PATH.sub("/", words))


def is_the_scripts(cause: str) -> bool:
    """Return whether the script, interpreter or program caused it, not a signal or silence."""
    return cause.startswith(("BFT-", "The worker ended with status"))


def _growing_s(failures: int) -> float:
    return 2.0 ** min(16, failures - 2)


@dataclass(slots=True)
class Stall:
    """The no-progress lease; ``lease_s`` 0: none."""

    lease_s: float = 0.0
    since_s: float | None = None  # of the last sign; None: the next check starts the clock
    told_s: dict[str, float] = field(default_factory=dict)  # worker -> commit not acted on

    @property
    def cause(self) -> str:
        """The reason given for killing a worker."""
        return f"It made no progress for {self.lease_s:g} s (no_progress_s)."

    def heard(self, worker_id: str, body: protocol.Message, step: int, now_s: float) -> None:
        """A worker sent a message; ``step``: the greatest known before."""
        if isinstance(body, protocol.Entered | protocol.Interrupted | protocol.Left):
            self.acted(worker_id)
        if isinstance(body, protocol.Progress) and body.step > step:
            self.progressed(now_s)

    def progressed(self, now_s: float) -> None:
        """A step was committed, or a generation is complete."""
        self.since_s = now_s

    def told(self, worker_ids: Iterable[str], now_s: float) -> None:
        """A commit was sent; these workers must act on it whatever the others do.

        Workers that go on to a step boundary cannot be listed: one that hangs stops all of them.
        """
        self.since_s = now_s
        for worker_id in worker_ids:
            self.told_s.setdefault(worker_id, now_s)

    def acted(self, worker_id: str) -> None:
        """A worker's training loop reported about a generation, or it is gone."""
        self.told_s.pop(worker_id, None)

    def has_stalled(self, now_s: float) -> bool:
        """Return whether a complete generation has made no progress for the lease."""
        if self.since_s is None:
            self.since_s = now_s
        is_over = self.lease_s > 0 and now_s - self.since_s > self.lease_s
        if is_over:
            self.since_s = now_s  # the next generation has a lease of its own
        return is_over

    def hung(self, now_s: float) -> list[str]:
        """Return the workers that did not act on a commit within the lease."""
        if self.lease_s <= 0:
            return []
        return sorted(w for w, s in self.told_s.items() if now_s - s > self.lease_s)
