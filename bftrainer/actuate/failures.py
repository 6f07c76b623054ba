"""How often workers failed, and when to try again: pure bookkeeping of one trainer.

Failures of workers and signs of success come in; whether a worker may be started, here or
anywhere, goes out. Losses (the node was taken, the agent died) never get here: they are
nobody's failure and cost no budget. Used by ``actuate.generation``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

MAX_BACKOFF_S = 30.0  # of the trainer
MAX_COOL_DOWN_S = 1800.0  # of a node that fails again and again while others do well


@dataclass(slots=True)
class Failures:
    """Failures in a row, of the trainer and of each node."""

    in_row: int = 0  # counts against the failure budget; a step clears it
    _not_before_s: float = 0.0
    _on_node: dict[str, int] = field(default_factory=dict)  # in a row
    _cool_until_s: dict[str, float] = field(default_factory=dict)

    def note(self, node: str, now_s: float) -> bool:
        """A worker on this node ended on its own account; returns whether that counts.

        All workers failing at once are one failure.
        """
        counts = now_s >= self._not_before_s
        if counts:
            self.in_row += 1
            self._not_before_s = now_s + min(MAX_BACKOFF_S, _growing_s(self.in_row))
        # Others may make progress all the while: a bad node is tried ever more seldom.
        count = self._on_node[node] = self._on_node.get(node, 0) + 1
        self._cool_until_s[node] = now_s + min(MAX_COOL_DOWN_S, _growing_s(count))
        return counts

    def progressed(self) -> None:
        """The trainer committed a step."""
        self.in_row = 0

    def entered(self, node: str) -> None:
        """A worker on this node entered a generation: the node is good."""
        self._on_node.pop(node, None)

    def may_start(self, now_s: float) -> bool:
        """Whether a worker may be started at all."""
        return now_s >= self._not_before_s

    def is_cooling(self, node: str, now_s: float) -> bool:
        """Whether this node is left alone for now."""
        return now_s < self._cool_until_s.get(node, 0.0)


def given_up(in_row: int, budget: int, in_all: int, most: int | None) -> str | None:
    """Say why a trainer is given up, "" where its last failure says it; None: it is not.

    Args:
        in_row: failures without a step between.
        budget: the policy's ``failure_budget``.
        in_all: failures since it was submitted.
        most: of these, its own ``max_failures``; None: any number.
    """
    if most is not None and in_all >= most:
        return f"That was failure {in_all} of {most} at most (--max-failures). "
    return "" if in_row >= budget else None


def _growing_s(failures: int) -> float:
    return 2.0 ** min(16, failures - 2)
