"""How often workers failed, and when to try again: pure bookkeeping of one trainer.

Failures of workers and signs of success come in; whether a worker may be started, here or
anywhere, goes out. Losses (the node was taken) never get here: they are nobody's failure and
cost no budget. An agent that dies beside a worker, on a node that is fine, may be the victim of
anybody: the first in a row is a loss, each further one a failure. Used by
``actuate.generation``.

Failures are in one row until there is net progress between them: the trainer gets further
than it has ever been, or starts from a later state than it did before in this row (after a
loss it may have far to go until it is where it was). Steps that are only done again prove
nothing: a script that raises at step 5 gets to step 5 each time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from bftrainer.model.trainer import FailureRow, Mark, TrainerRecord
from bftrainer.policy.model import SitePolicy

MAX_BACKOFF_S = 30.0  # of the trainer
MAX_COOL_DOWN_S = 1800.0  # of a node that fails again and again while others do well
# What the worker says of exceptions that no node can be the reason of.
_OF_THE_SCRIPT = re.compile(r"The script raised (SyntaxError|IndentationError|TabError):")


@dataclass(slots=True)
class FailureCounts:
    """Failures in a row, of the trainer and of each node."""

    row: FailureRow = field(default_factory=FailureRow)
    before: FailureRow = field(default_factory=FailureRow)  # ... the last one that counted
    _on_node: dict[str, int] = field(default_factory=dict)  # without net progress there
    _cool_until_s: dict[str, float] = field(default_factory=dict)
    _lost_after: int = -1  # workers were started when an agent died last, of those that count

    def note(self, node: str, cause: str, log_path: str, now_s: float) -> bool:
        """A worker on this node ended on its own account; returns whether that counts.

        All workers failing at once are one failure.
        """
        counts = self.may_start(now_s)
        if counts:
            number, self.before = self.row.count + 1, self.row
            self.row = replace(
                self.before,
                count=number,
                cause=cause,
                node=node,
                log_path=log_path,
                next_try_s=now_s + min(MAX_BACKOFF_S, _growing_s(number)),
            )
        # Others may make progress all the while: a bad node is tried ever more seldom.
        count = self._on_node[node] = self._on_node.get(node, 0) + 1
        self._cool_until_s[node] = now_s + min(MAX_COOL_DOWN_S, _growing_s(count))
        return counts

    def lost(self, number: int, started: int) -> bool:
        """An agent died with a worker, on a node that is fine; returns whether that is a failure.

        Those of workers that were there when the last one died are no others.

        Args:
            number: of the worker.
            started: workers so far, when it was lost.
        """
        if number <= self._lost_after:
            return False
        self._lost_after = started
        self.row = replace(self.row, losses=self.row.losses + 1)
        return self.row.losses > 1

    def started(self, at: Mark) -> None:
        """A generation began with a state that no member had: a checkpoint, a copy, none."""
        row = self.row
        is_open = bool(row.count or row.losses)
        if is_open and row.start is not None and at.is_beyond(row.start):
            row, is_open = FailureRow(best=row.best), False  # more is kept than at the last start
        start = at if row.start is None or not is_open else row.start
        self.row = replace(row, start=start, best=row.best.joined(at))

    def progressed(self, to: Mark, nodes: Iterable[str]) -> None:
        """The trainer committed steps on these nodes."""
        if not to.is_beyond(self.row.best):
            return
        self.row = FailureRow(best=self.row.best.joined(to))
        for node in nodes:
            self._on_node.pop(node, None)

    def may_start(self, now_s: float) -> bool:
        """Whether a worker may be started at all."""
        wait_s = self.row.next_try_s - now_s
        return wait_s <= 0.0 or wait_s > MAX_BACKOFF_S  # the clock was turned back

    def is_cooling(self, node: str, now_s: float) -> bool:
        """Whether this node is left alone for now."""
        return now_s < self._cool_until_s.get(node, 0.0)


def given_up(failures: FailureCounts, record: TrainerRecord, policy: SitePolicy) -> str | None:
    """Say why a trainer is given up after a failure; None: it is not.

    Args:
        failures: the last one included.
        record: of the trainer; its ``failures`` are those since it was submitted.
        policy: ``failure_budget``, and whether ``quarantine_s`` has it tried elsewhere.
    """
    row, before, most = failures.row, failures.before, record.spec.max_failures
    if most is not None and record.failures >= most:
        return f"That was failure {record.failures} of {most} at most (--max-failures)."
    if record.started_s is None and _OF_THE_SCRIPT.search(row.cause):
        return "That is the same on every node, so it is not tried again."
    is_repeated = row.count > 1 and row.cause == before.cause
    if record.started_s is None and is_repeated and is_the_scripts(row.cause):
        if row.node != before.node:
            return f"It was the same on {before.node} and on {row.node}, before any training."
        if policy.quarantine_s > 0.0:
            return "It was the same twice, before any training; no other node was to be had."
    if row.count < policy.failure_budget:
        return None
    reached = f"beyond step {row.best.step}" if row.best.step else "anywhere"
    return (
        f"That was failure {row.count} in a row without getting {reached} (failure_budget),"
        f" the last on {row.node}."
    )


def is_the_scripts(cause: str) -> bool:
    """Whether script, interpreter or program said or ended so: no signal, no silence."""
    return cause.startswith(("BFT-", "The worker ended with status"))


def _growing_s(failures: int) -> float:
    return 2.0 ** min(16, failures - 2)
