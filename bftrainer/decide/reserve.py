"""Looks at the queue → how many nodes of each type stay unborrowed, and which.

``look`` is a fold, called once per new snapshot where the reserve is to be learnt; what it
keeps (``SmallJobs``) is part of ``Memory``. ``wanted`` returns the size of the reserve, and
``choose`` the nodes; both are called by ``pool``.

What is counted are arrivals of small jobs: ordinary ones of at most ``SMALL_NODES`` nodes
(and of no more than the reserve may ever hold), seen running for the first time, that
started at once (within ``AT_ONCE_S`` of their submission) or had to wait although there was
room for them on free nodes and ours. Without the second kind a reserve that is too small
would never be found out. An immediate job (``srun -I``) that was refused is in no queue and
not counted.

What an arrival needed is the nodes it asked for and those that other small jobs took within
the restore time before it: after one scheduler cycle what they took has been replaced. With
K nodes in reserve the arrivals whose need is above K would have found fewer than they ask
for. So K is the smallest number that at most ``SHORT_SHARE`` of the arrivals exceed, counted
as seen: an empirical quantile. A Poisson model of the same would need an arrival rate, a
distribution of sizes and their independence, and small jobs come in bursts (a loop of
sbatch, an array), which is when the reserve matters.

``PRIOR`` arrivals that needed one node count as seen from the beginning, so that K rises
above 1 only after two that needed more; what was seen fades by half in ``HALF_LIFE_S``.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bftrainer.poll.snapshot import Job, JobState, Snapshot

if TYPE_CHECKING:  # ``types`` has our SmallJobs in it
    from bftrainer.decide.types import PoolNode

SMALL_NODES = 8
AT_ONCE_S = 5.0  # sbatch jobs start at a tick of the scheduler, up to 3 s after submission
SHORT_SHARE = 0.05  # of the arrivals may find fewer nodes than they ask for
MAX_SHARE = 0.1  # of a type's nodes may be in reserve; one always may
PRIOR = 20.0
HALF_LIFE_S = 86_400.0
MOST_NEED = 64  # a need beyond that is counted as that
MOST_RECENT = 64
ENOUGH_GAP_S = 3600.0  # an interactive job of an hour fits


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What small jobs needed of one type of node."""

    needs: tuple[float, ...] = ()  # arrivals, faded, that needed 1, 2, 3 … nodes
    recent: tuple[tuple[float, int], ...] = ()  # (when, nodes taken) within the restore time


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallJobs:
    """What the looks have shown."""

    at_s: float | None = None  # when arrivals were counted last; None: never looked
    running: frozenset[str] = frozenset()  # ordinary jobs that ran at the last look
    by_type: Mapping[str, Demand] = field(default_factory=dict)


def look(
    before: SmallJobs, snapshot: Snapshot, had_room: Collection[str], restore_s: float, now_s: float
) -> SmallJobs:
    """Count in one look. What the first look shows has not arrived.

    Args:
        before: what was known.
        snapshot: new and complete.
        had_room: waiting jobs for which there was room on free nodes and ours.
        restore_s: how long it takes until nodes taken from the reserve are replaced.
        now_s: batch system's clock.
    """
    jobs = {j.job_id: j for j in snapshot.jobs or () if j.is_ordinary and _runs(j)}
    if before.at_s is None:
        return SmallJobs(at_s=now_s, running=frozenset(jobs))
    if jobs.keys() == before.running:
        return before
    found = [jobs[job_id] for job_id in sorted(jobs.keys() - before.running)]
    arrived = [j for j in found if _counts(j, had_room)]
    if not arrived:
        return SmallJobs(at_s=before.at_s, running=frozenset(jobs), by_type=before.by_type)
    type_of = {n.name: n.node_type for n in snapshot.nodes or ()}
    counts = Counter(type_of.values())
    fade = _fade(before.at_s, now_s)
    demands = {
        node_type: Demand(needs=tuple(fade * n for n in demand.needs), recent=demand.recent)
        for node_type, demand in before.by_type.items()
    }
    for job in sorted(arrived, key=lambda j: (_taken_s(j, now_s), j.job_id)):
        node_type = next((type_of[n] for n in job.nodes if n in type_of), None)
        if node_type is None or job.n_nodes > min(SMALL_NODES, most(counts[node_type])):
            continue
        demand = demands.get(node_type, Demand())
        demands[node_type] = _with_arrival(demand, job.n_nodes, _taken_s(job, now_s), restore_s)
    return SmallJobs(at_s=now_s, running=frozenset(jobs), by_type=demands)


def most(n_nodes: int) -> int:
    """How many of a type's nodes may be in reserve."""
    return max(1, int(MAX_SHARE * n_nodes))


def wanted(seen: SmallJobs, node_type: str, n_nodes: int, now_s: float) -> int:
    """Return the learnt size of the reserve: see the module's text.

    Args:
        seen: what the looks have shown.
        node_type: whose reserve.
        n_nodes: of that type, in whatever state.
        now_s: batch system's clock.
    """
    demand = seen.by_type.get(node_type)
    if demand is None or seen.at_s is None:
        return 1
    fade = _fade(seen.at_s, now_s)
    short = fade * math.fsum(demand.needs)  # arrivals that need more than the K tried
    allowed = SHORT_SHARE * (PRIOR + short)
    size = 0
    for count in demand.needs:
        if size and short <= allowed:
            break
        short -= fade * count
        size += 1
    return min(max(1, size), most(n_nodes))


def choose(free: Sequence[PoolNode], count: int, now_s: float) -> list[PoolNode]:
    """Return the nodes of one type that stay in reserve.

    ``free`` are nodes nobody holds. Those whose gap has an end are worth less to trainers and
    come first, the shortest gap before the others, as long as an interactive job still fits;
    then those without an end; last those too short for such a job, longest first. Between
    equals the last by name. Ends are points in time, so the choice stays while plans stay.
    """

    def liked(node: PoolNode) -> tuple[int, float, str]:
        until_s = node.usable_until_s
        if until_s is None:
            return 1, 0.0, node.name
        is_enough = until_s - now_s >= ENOUGH_GAP_S
        return (2, -until_s, node.name) if is_enough else (0, until_s, node.name)

    return heapq.nlargest(count, free, key=liked)


def _runs(job: Job) -> bool:
    return job.state is JobState.RUNNING and bool(job.nodes)


def _counts(job: Job, had_room: Collection[str]) -> bool:
    if job.job_id in had_room:
        return True
    if job.submit_s is None or job.start_s is None:
        return False
    return job.start_s - job.submit_s <= AT_ONCE_S


def _taken_s(job: Job, now_s: float) -> float:
    return now_s if job.start_s is None else job.start_s


def _fade(since_s: float, now_s: float) -> float:
    return float(0.5 ** (max(0.0, now_s - since_s) / HALF_LIFE_S))


def _with_arrival(demand: Demand, n_nodes: int, at_s: float, restore_s: float) -> Demand:
    recent = [(when_s, n) for when_s, n in demand.recent if when_s > at_s - restore_s]
    need = min(MOST_NEED, n_nodes + sum(n for _, n in recent))
    needs = [*demand.needs, *[0.0] * (need - len(demand.needs))]
    needs[need - 1] += 1.0
    return Demand(needs=tuple(needs), recent=(*recent, (at_s, n_nodes))[-MOST_RECENT:])
