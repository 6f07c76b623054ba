"""Maps Slurm's names of node and job states to ours.

Total functions: an unknown name becomes ``UNKNOWN`` or ``OTHER``, never an error; called by
``slurm_plugins.parse`` and ``slurm_plugins.launcher``.

Slurm calls a node completing until its job's processes are gone and its epilog has ended. That is
short, so such a node counts as coming back; one that hangs is neither free nor ours. The usual
time is learnt from all nodes. ``slurm_plugins.snapshot`` passes in the completing nodes of every
poll; all times are of one clock. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from statistics import median

from bftrainer.batch.batch_system import PilotObservation
from bftrainer.model.cluster import EndedBy, JobState, NodeState, Presence

# One-character suffixes of a node's state (sinfo(1), "NODE STATE CODES").
_SUFFIX_STATES = {
    "*": NodeState.DOWN,  # does not respond
    "~": NodeState.POWER_SAVING,  # powered off
    "#": NodeState.POWER_SAVING,  # powering up
    "!": NodeState.POWER_SAVING,  # will be powered off
    "%": NodeState.POWER_SAVING,  # powering off
    "^": NodeState.DOWN,  # reboots
    "$": NodeState.RESERVED,  # maintenance
    "@": NodeState.DRAINED,  # reboots when it is empty: leave
    "-": NodeState.PLANNED,  # planned for a job (meaningful for idle nodes only)
    "+": None,
}

# Of several marks the first counts.
_FIRST = (
    NodeState.DOWN,
    NodeState.POWER_SAVING,
    NodeState.DRAINED,
    NodeState.RESERVED,
    NodeState.PLANNED,
)
_NODE_STATES = {
    "idle": NodeState.IDLE,
    "planned": NodeState.PLANNED,
    "completing": NodeState.COMPLETING,
    **dict.fromkeys(("allocated", "mixed"), NodeState.ALLOCATED),
    **dict.fromkeys(("reserved", "maint", "blocked"), NodeState.RESERVED),
    **dict.fromkeys(("drained", "draining", "failing", "reboot_requested"), NodeState.DRAINED),
    **dict.fromkeys(("down", "error", "fail", "future", "inval", "no_respond"), NodeState.DOWN),
    **dict.fromkeys(("perfctrs", "reboot", "reboot_issued"), NodeState.DOWN),
    "external": NodeState.DOWN,  # has no slurmd (25.05)
    **dict.fromkeys(("power_down", "power_up", "powered_down"), NodeState.POWER_SAVING),
    **dict.fromkeys(("powering_down", "powering_up"), NodeState.POWER_SAVING),
}

# Waits after --requeue=expedite, before all other jobs (25.11; sort_job_queue2, job_scheduler.c).
EXPEDITING = "EXPEDITING"
_PENDING = frozenset(
    {"PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", EXPEDITING}
)
_RUNNING = frozenset({"RUNNING", "CONFIGURING", "RESIZING", "SIGNALING", "SUSPENDED", "STOPPED"})
_ENDING = frozenset({"COMPLETING", "STAGE_OUT"})
_ENDED = {
    **dict.fromkeys(("BOOT_FAIL", "NODE_FAIL"), EndedBy.NODE),
    **dict.fromkeys(("CANCELLED", "REVOKED"), EndedBy.CANCELLED),
    **dict.fromkeys(("COMPLETED", "FAILED", "OUT_OF_MEMORY", "SPECIAL_EXIT"), EndedBy.ITSELF),
    **dict.fromkeys(("DEADLINE", "TIMEOUT"), EndedBy.TIME_LIMIT),
    "PREEMPTED": EndedBy.PREEMPTED,
}
# Ended by the process's own status or signal, or out of memory (job_mgr.c).
_FAILED = frozenset({"FAILED", "OUT_OF_MEMORY"})
LEAST_S = 5.0  # never hanging before that
FACTOR = 3.0  # times the usual duration
REMEMBERED = 15


def is_to_reboot(word: str) -> bool:
    """Return whether ``scontrol reboot`` was called for the node and it is not back yet."""
    bare, suffixes = _parts(word)
    return bare.startswith("reboot") or not suffixes.isdisjoint("@^")


def node_state(word: str) -> NodeState:
    """Map what ``sinfo %T`` prints, e.g. ``idle``, ``mixed-`` or ``down*``."""
    bare, suffixes = _parts(word)
    base = _NODE_STATES.get(bare, NodeState.UNKNOWN)
    if base in (NodeState.DOWN, NodeState.UNKNOWN):
        return base
    marks = {_SUFFIX_STATES[suffix] for suffix in suffixes}
    if base is NodeState.DRAINED:
        marks.add(base)  # also inside a maintenance window: leave first
    if base is not NodeState.IDLE:
        marks.discard(NodeState.PLANNED)
    return next((state for state in _FIRST if state in marks), base)


def _parts(word: str) -> tuple[str, set[str]]:
    word = word.strip().lower()
    bare = word.rstrip("".join(_SUFFIX_STATES))
    return bare, set(word[len(bare) :])


def job_state(word: str) -> JobState:
    """Map what ``squeue %T`` prints for a job in the queue."""
    state = word.strip().upper()
    if state in _PENDING:
        return JobState.PENDING
    if state in ("RUNNING", "CONFIGURING", "RESIZING", "SIGNALING"):
        return JobState.RUNNING
    if state in _ENDING:
        return JobState.COMPLETING
    return JobState.OTHER


def observation(
    word: str,
    *,
    node: str | None,
    start_s: float | None,
    reason: str,
    end_s: float | None = None,
) -> PilotObservation:
    """Interpret a pilot's state; ended pilots are absent, with how they ended."""
    state = word.strip().upper()
    if state in _ENDED:
        return PilotObservation(
            presence=Presence.ABSENT,
            node=node,
            start_s=start_s,
            reason=state,
            has_failed=state in _FAILED,
            ended_by=_ENDED[state],
            end_s=end_s,
        )
    for phase, states in (("pending", _PENDING), ("running", _RUNNING), ("ending", _ENDING)):
        if state in states:
            return PilotObservation(
                presence=Presence.PRESENT,
                phase=phase,
                node=node,
                start_s=None if phase == "pending" else start_s,
                reason=reason,
            )
    return PilotObservation(presence=Presence.UNKNOWN, reason=f"unknown state {state[:40]!r}")


@dataclass(slots=True)
class Completing:
    """Since when nodes are completing, and the latest durations."""

    since_s: dict[str, float] = field(default_factory=dict)
    took_s: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    def hanging(self, completing: AbstractSet[str], now_s: float) -> set[str]:
        """Process a poll; return the nodes that take longer than expected."""
        for node in self.since_s.keys() - completing:
            self.took_s.append(now_s - self.since_s.pop(node))
        for node in completing:
            self.since_s.setdefault(node, now_s)
        expected_s = max(LEAST_S, FACTOR * median(self.took_s or (0.0,)))
        return {node for node, since_s in self.since_s.items() if now_s - since_s > expected_s}
