"""When a node was free: measured from a pilot's end and the job that got its node. Pure.

The batch system's times are whole seconds and polls are seconds apart; the agent knows its own
exit exactly. So the time lies between two bounds:

* lower: the agent's exit, or the last poll that still showed the pilot's job;
* upper: the first poll that did not, or the second after the job's start.

With an exit reported by the agent the lower bound is used (what follows is the batch system's
epilog, and polls show a slow one), otherwise the upper, because an agent that did not report was
probably slow. ``precision_s`` is the distance between the bounds.
"""

from __future__ import annotations

from dataclasses import dataclass

from bftrainer.daemon.harm.records import HandOver, How
from bftrainer.model.cluster import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """A pilot on its way out, as far as known."""

    pilot_id: str
    node: str
    asked_s: float | None = None  # our release
    decision_s: float = 0.0
    job: Job | None = None  # the ordinary job it was released for
    told_s: float | None = None  # the agent was told
    left_s: float | None = None  # the agent reported its exit
    is_preempted: bool = False  # the batch system ended it first
    seen_s: float | None = None  # begin of the last poll that showed its job
    gone_s: float | None = None  # end of the first poll that did not

    @property
    def began_s(self) -> float | None:
        """When the node was first requested."""
        return self.told_s if self.is_preempted else self.asked_s


def hand_over(end: End, taker: Job, now_s: float) -> HandOver:
    """Measure a hand-over to the job that is now on the node."""
    asked_s = end.began_s
    freed_s, precision_s = _freed(end, taker, now_s)
    cancel_s = agent_s = epilog_s = None
    decision_s = 0.0 if end.is_preempted else end.decision_s
    if asked_s is not None and end.told_s is not None and end.left_s is not None:
        cancel_s = max(0.0, end.told_s - asked_s - decision_s)
        agent_s = max(0.0, end.left_s - max(end.told_s, asked_s))
        epilog_s = max(0.0, freed_s - end.left_s)
    return HandOver(
        job_id=taker.job_id,
        n_nodes=taker.n_nodes,
        node=end.node,
        pilot_id=end.pilot_id,
        how=How.PREEMPTED if end.is_preempted else How.GIVEN_BACK,
        asked_s=asked_s,
        freed_s=freed_s,
        precision_s=precision_s,
        start_s=taker.start_s,
        asked_for=end.job.job_id if end.job else "",
        decision_s=decision_s,
        cancel_s=cancel_s,
        agent_s=agent_s,
        epilog_s=epilog_s,
    )


def _freed(end: End, taker: Job, now_s: float) -> tuple[float, float]:
    lower = [s for s in (end.began_s, end.left_s, end.seen_s) if s is not None]
    upper = [now_s if end.gone_s is None else end.gone_s]
    if taker.start_s is not None:
        upper.append(taker.start_s + 1.0)
    to_s = min(upper)
    from_s = max(lower, default=to_s)
    precision_s = max(0.0, to_s - from_s)
    return (from_s if end.left_s is not None else from_s + precision_s), precision_s
