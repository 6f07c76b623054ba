"""Runs of ``bench_gpus`` → how much of the idle GPU time anybody could have lent. Pure.

A GPU is *stranded* while its node has no core, or no memory, left to go with it: no job can have
it, and no pilot. What is not stranded lies in spells between the end of an ordinary job and the
start of the next; a lender who knows nothing beforehand loses the time that a pilot takes to start
at the begin of each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from _bench.gpus.measures import ArmRun, OrdinaryJob

CORE, LEAST_MEMORY_MB = 1, 1  # that each GPU needs


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """Idle GPU time of a run, and what of it was within anybody's reach."""

    idle_gpu_s: float
    stranded_gpu_s: float
    spells_s: tuple[float, ...]  # of single GPUs that are idle and not stranded

    def reachable_gpu_s(self, start_s: float) -> float:
        """Return what pilots that take so long to start could have had of all spells."""
        return sum(max(0.0, spell_s - start_s) for spell_s in self.spells_s)


def reach_of(run: ArmRun) -> Reach | None:
    """Return the reach of a run; None: it was recorded without CPUs and memory."""
    if not run.cpus_per_node:
        return None
    idle_gpu_s = stranded_gpu_s = 0.0
    spells_s: list[float] = []
    for node in run.nodes:
        jobs = [job for job in run.jobs if node in job.nodes]
        usable: list[tuple[float, float, int]] = []
        for from_s, to_s in pairwise(_moments(run, jobs)):
            running = [job for job in jobs if job.started_s <= from_s < job.ended_s]
            n_idle = max(0, run.gpus_per_node - sum(job.gpus_per_node for job in running))
            n_usable = min(n_idle, _n_supplied(run, running))
            idle_gpu_s += n_idle * (to_s - from_s)
            stranded_gpu_s += (n_idle - n_usable) * (to_s - from_s)
            usable.append((from_s, to_s, n_usable))
        spells_s += _spells(usable, run.gpus_per_node)
    return Reach(idle_gpu_s=idle_gpu_s, stranded_gpu_s=stranded_gpu_s, spells_s=tuple(spells_s))


def _moments(run: ArmRun, jobs: Sequence[OrdinaryJob]) -> list[float]:
    """Return when the ordinary jobs of a node change, with both ends of the span."""
    moments = {0.0, run.span_s}
    for job in jobs:
        for at_s in (job.started_s, job.ended_s):
            moments.add(min(max(at_s, 0.0), run.span_s))
    return sorted(moments)


def _n_supplied(run: ArmRun, running: Sequence[OrdinaryJob]) -> int:
    """Return how many GPUs find a core and memory beside the jobs that are there."""
    cpus = run.cpus_per_node - sum(job.cpus for job in running)
    memory_mb = run.memory_mb - sum(job.memory_mb for job in running)
    return max(0, min(cpus // CORE, memory_mb // LEAST_MEMORY_MB))


def _spells(usable: Sequence[tuple[float, float, int]], most: int) -> list[float]:
    """Return how long GPUs of a node are usable at a stretch; which they are does not matter."""
    spells_s: list[float] = []
    for number in range(1, most + 1):
        length_s = 0.0
        for from_s, to_s, n_usable in usable:
            if n_usable >= number:
                length_s += to_s - from_s
            elif length_s:
                spells_s.append(length_s)
                length_s = 0.0
        if length_s:
            spells_s.append(length_s)
    return spells_s
