"""The daemon's journal → which nodes it held and trained on when. Pure.

Entries in order come in, a ``Sidecar`` goes out; called by ``arm`` once the daemon has
stopped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from _bench.zero_harm.runs import NodeSpan, PlanSeen, Sidecar
from bftrainer.journal.projection import JournalEntry, PilotRecord, PilotState
from bftrainer.model.queue import slot_begin_s


def read(
    entries: Iterable[JournalEntry],
    origin_s: float,
    end_s: float,
    begun_s: Mapping[str, float] = MappingProxyType({}),
) -> Sidecar:
    """Read a journal.

    Args:
        entries: in order.
        origin_s: the start of the run (epoch); spans are cut there.
        end_s: closes what is still open (epoch).
        begun_s: job id -> when Slurm started it: a pilot holds its node from then on. One
            that Slurm does not know does so from its agent's hello.
    """
    entries = list(entries)
    # The job that it was in the end: of two that were submitted for it, the one that started.
    job_ids = {pilot.pilot_id: pilot.job_id for entry in entries for pilot in entry.pilots}
    held = _Spans()
    training = _Spans()
    members: dict[str, frozenset[str]] = {}  # trainer -> nodes
    plans: list[PlanSeen] = []
    counts = dict.fromkeys(("pilots", "give_backs", "decisions", "rescales"), 0)
    released: set[str] = set()
    running: set[str] = set()
    preempted = 0
    for entry in entries:
        at_s = entry.at_s
        for pilot in entry.pilots:
            _pilot(held, pilot, at_s, begun_s.get(job_ids[pilot.pilot_id] or "", at_s))
            if pilot.state is PilotState.RUNNING and pilot.pilot_id not in running:
                running.add(pilot.pilot_id)
                counts["pilots"] += at_s >= origin_s
            released |= {pilot.pilot_id} if pilot.state is PilotState.CANCELLED else set()
            if pilot.state is PilotState.ENDED and at_s >= origin_s:
                preempted += pilot.pilot_id in running - released
        if entry.kind in ("rescaled", "parked"):
            body = entry.payload
            trainer = body["trainer_id"]
            nodes = frozenset(body["what"].get("nodes", ()))
            for node in members.get(trainer, frozenset()) - nodes:
                training.close(node, at_s)
            for node in nodes:
                training.open(node, at_s)
            members[trainer] = nodes
            counts["rescales"] += at_s >= origin_s
        elif entry.kind == "decision":
            body = entry.payload
            plans.append(plan_seen(body["input"], origin_s))
            if at_s >= origin_s:
                counts["decisions"] += 1
                counts["give_backs"] += sum(1 for r in body["plan"]["releases"] if r["for_job"])
    return Sidecar(
        held=held.spans(origin_s, end_s),
        training=training.spans(origin_s, end_s),
        plans=tuple(plans),
        preemptions=preempted,
        **counts,
    )


def plan_seen(given: Mapping[str, Any], origin_s: float) -> PlanSeen:
    """Return the planned start of every node that a waiting ordinary job will get.

    As backfill counts it: from the begin of the slot that it is in. Who would reach into the
    slot waits, the oracle too.
    """
    slot_s = given["snapshot"].get("plan_resolution_s") or 0.0
    starts: dict[str, float] = {}
    for job in given["snapshot"]["jobs"] or ():
        is_planned = job["pilot_id"] is None and job["state"] == "pending"
        if is_planned and job["start_s"] is not None:
            for node in job["planned_nodes"]:
                begin_s = slot_begin_s(job["start_s"], slot_s)
                starts[node] = min(starts.get(node, float("inf")), begin_s - origin_s)
    taken_at_s = given["snapshot"]["taken_at_s"]  # a decision between looks has the last one
    return PlanSeen(at_s=taken_at_s - origin_s, starts_s=tuple(sorted(starts.items())))


def _pilot(held: _Spans, pilot: PilotRecord, at_s: float, begun_s: float) -> None:
    if pilot.state is PilotState.RUNNING:
        held.open(pilot.node, min(at_s, begun_s))
    elif pilot.state in (PilotState.CANCELLED, PilotState.ENDED):
        # An end may be seen late: who calls us cuts off what an ordinary job had.
        held.close(pilot.node, at_s)


class _Spans:
    """Spans of nodes, opened and closed."""

    def __init__(self) -> None:
        self._open: dict[str, float] = {}
        self._done: list[tuple[str, float, float]] = []

    def open(self, node: str, at_s: float) -> None:
        """Begin a span, unless one is open."""
        self._open.setdefault(node, at_s)

    def close(self, node: str, at_s: float) -> None:
        """End a span, if one is open."""
        if node in self._open:
            self._done.append((node, self._open.pop(node), at_s))

    def spans(self, origin_s: float, end_s: float) -> tuple[NodeSpan, ...]:
        """Return all spans from the origin on."""
        done = [*self._done, *((node, at_s, end_s) for node, at_s in self._open.items())]
        return tuple(
            NodeSpan(node=node, start_s=max(0.0, from_s - origin_s), end_s=to_s - origin_s)
            for node, from_s, to_s in sorted(done)
            if to_s > max(from_s, origin_s)
        )
