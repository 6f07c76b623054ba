"""What really ran on a test cluster, as the comparison with the simulated site takes it.

``real_runs`` plays the jobs; ``RealRun.of`` puts together what the jobs noted themselves and what
slurmctld logged, whose times come first. A run can be stored as JSON, and compared again later
without a cluster.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Literal, Self

from pydantic import TypeAdapter

from _bench.real_slurm.slurm_log import SlurmLog
from _bench.waiting import BenchError
from bftrainer.lab.site.machine import JobSpec
from bftrainer.lab.site.sharing import NodeCapacity, NodeSet, Share

MINUTE_S = 60.0  # slots of a plan begin with whole ones
RunKind = Literal["whole nodes", "GPUs", "GPUs, preempting"]
PREEMPTABLE = "bf"  # the partition below the ordinary one


@dataclass(frozen=True, slots=True, kw_only=True)
class NotedJob:
    """A job as its user and itself know it; times are seconds since the epoch."""

    job_id: str  # of a task: the array's, _ and the task
    spec: JobSpec  # number, submission, run time and array are not known yet
    submitted_s: float
    started_s: float
    ended_s: float
    nodes: tuple[str, ...]
    after: str = ""  # the job or array for whose end it waits

    @property
    def base_id(self) -> str:
        """The id that its submission was answered with."""
        return self.job_id.partition("_")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptableRun:
    """A job of the lowest partition that ran on a node, until it was preempted or to the end."""

    name: str
    share: Share | None  # None: all of its node
    node: NodeSet
    start_s: float
    end_s: float | None  # None: it was there to the end
    limit_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RealRun:
    """A run on the test cluster; all times from a whole minute before its begin.

    The mappings are by the number of a job. Numbers ascend in the order of submission.
    """

    name: str
    kind: RunKind
    n_nodes: int
    capacities: tuple[NodeCapacity, ...] = ()
    jobs: tuple[JobSpec, ...]
    # Jobs that waited for another one: when that had ended. Their submissions are in ``jobs``.
    eligible_s: Mapping[int, float] = field(default_factory=dict)
    starts_s: Mapping[int, float]
    nodes: Mapping[int, NodeSet]
    by_backfill: frozenset[int] = frozenset()
    cycles_s: tuple[float, ...]
    passes_s: tuple[float, ...]  # of the main scheduler
    full_passes_s: tuple[float, ...]  # of these, over the whole queue
    preemptable: tuple[PreemptableRun, ...] = ()

    @classmethod
    def of(
        cls,
        noted: Iterable[NotedJob],
        log: SlurmLog,
        origin_s: float,
        *,
        name: str,
        kind: RunKind,
        n_nodes: int,
        capacities: tuple[NodeCapacity, ...] = (),
    ) -> Self:
        """Put a run together.

        Args:
            noted: the jobs that ran, the tasks of an array in their order.
            log: slurmctld's.
            origin_s: when the first job could have been submitted (epoch).
            name: of the run, in reports.
            kind: what its jobs ask for.
            n_nodes: of the cluster, named n1, n2 and so on.
            capacities: of these, if jobs share them.
        """
        began_s = _began_s(origin_s)
        jobs = sorted(noted, key=lambda job: log.accepted_s.get(job.base_id, job.submitted_s))
        ends_s = {job.job_id: log.ends_s.get(job.job_id, job.ended_s) - began_s for job in jobs}
        starts_s = {number: _started_s(job, log) - began_s for number, job in enumerate(jobs, 1)}
        numbers = enumerate(jobs, 1)
        return cls(
            name=name,
            kind=kind,
            n_nodes=n_nodes,
            capacities=capacities,
            jobs=tuple(
                replace(
                    job.spec,
                    number=number,
                    submit_s=log.accepted_s.get(job.base_id, job.submitted_s) - began_s,
                    run_s=ends_s[job.job_id] - starts_s[number],
                    array=array,
                )
                for (number, job), array in zip(numbers, _arrays(jobs), strict=True)
            ),
            eligible_s={
                number: _ended_s(job.after, ends_s)
                for number, job in enumerate(jobs, 1)
                if job.after
            },
            starts_s=starts_s,
            nodes={number: _nodes_of(job, log) for number, job in enumerate(jobs, 1)},
            by_backfill=frozenset(
                number
                for number, job in enumerate(jobs, 1)
                if job.job_id in log.starts and log.starts[job.job_id].by_backfill
            ),
            cycles_s=tuple(at_s - began_s for at_s in log.cycles_s if at_s >= began_s),
            passes_s=tuple(at_s - began_s for at_s in log.passes_s),
            full_passes_s=tuple(at_s - began_s for at_s in log.full_passes_s),
        )

    def ready_s(self, spec: JobSpec) -> float:
        """Return when a job could have started: it was submitted, and waited for no other."""
        return max(spec.submit_s, self.eligible_s.get(spec.number, -math.inf))


def preemptable_of(
    log: SlurmLog, origin_s: float, share: Share | None, limit_s: float
) -> tuple[PreemptableRun, ...]:
    """Return the jobs of the lowest partition, which are all alike."""
    began_s = _began_s(origin_s)
    return tuple(
        PreemptableRun(
            name=job_id,
            share=share,
            node=_node_set(start.nodes),
            start_s=start.at_s - began_s,
            end_s=log.ends_s[job_id] - began_s if job_id in log.ends_s else None,
            limit_s=limit_s,
        )
        for job_id, start in log.starts.items()
        if start.partition == PREEMPTABLE
    )


def _began_s(origin_s: float) -> float:
    """Return the whole minute before the one in which a run began (epoch)."""
    return origin_s // MINUTE_S * MINUTE_S - MINUTE_S


def _started_s(job: NotedJob, log: SlurmLog) -> float:
    start = log.starts.get(job.job_id)
    return job.started_s if start is None else start.at_s


def _nodes_of(job: NotedJob, log: SlurmLog) -> NodeSet:
    start = log.starts.get(job.job_id)
    return _node_set(job.nodes if start is None else start.nodes)


def _node_set(names: Iterable[str]) -> NodeSet:
    return sum(1 << int(name[1:]) - 1 for name in names)


def _arrays(jobs: Sequence[NotedJob]) -> list[int]:
    """Return for each job the number of its array's first task; 0: it is in none."""
    arrays: list[int] = []
    for _, tasks in groupby(jobs, key=lambda job: job.base_id):
        size = len(list(tasks))
        arrays += [len(arrays) + 1 if size > 1 else 0] * size
    return arrays


def _ended_s(base_id: str, ends_s: Mapping[str, float]) -> float:
    return max(end_s for job_id, end_s in ends_s.items() if job_id.partition("_")[0] == base_id)


def keep(run: RealRun, directory: Path) -> Path:
    """Store a run in a directory under its name; return the file."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{run.name.replace(' ', '-').replace(',', '')}.json"
    path.write_bytes(TypeAdapter(RealRun).dump_json(run, indent=1) + b"\n")
    return path


def kept(directory: Path) -> list[RealRun]:
    """Return the stored runs of a directory, by file name.

    Raises:
        BenchError: there is none, or a file is none.
    """
    paths = sorted(directory.glob("*.json"))
    if not paths:
        raise BenchError(f"no run is stored in {directory}")
    document = TypeAdapter(RealRun)
    try:
        return [document.validate_json(path.read_bytes()) for path in paths]
    except ValueError as problem:
        first, *_ = str(problem).splitlines()
        raise BenchError(f"a file of {directory} is no stored run: {first}") from problem
