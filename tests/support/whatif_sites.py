"""Three sites as an administrator has them: a slurm.conf, and what sacct prints of drawn jobs.

The jobs are played through the simulated Slurm without bftrainer; the log has their starts and
ends.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bftrainer.lab.site.machine import (
    JobSpec,
    Machine,
    SchedulerSettings,
    SiteJob,
)
from bftrainer.lab.site.scheduler import Backfill, MainScheduler
from bftrainer.lab.site.sharing import NodeCapacity, Share, SitePartition
from bftrainer.lab.site.timeline import positions
from bftrainer.lab.site.workload import Demand, generate

EPOCH_S = 1_714_521_600.0  # 2024-05-01
DAY_S = 86_400.0
COLUMNS = (
    "JobID|Submit|Eligible|Start|End|ElapsedRaw|Suspended|NNodes|NodeList|State|Partition|Timelimit"
    "|User|Priority|AllocTRES|ReqTRES"
)
COMMON = """\
ClusterName=drawn
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=30,bf_max_job_test=500
Epilog=/etc/slurm/epilog
"""
LOAD = 0.85  # of what there is; more would let the queue grow for a week
GPU_LOAD = 0.65  # whole nodes are rarely free among small jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnSite:
    """A site and its log."""

    name: str
    slurm_conf: str
    sacct: str
    hours: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Alike nodes with a partition of their own."""

    partition: str
    prefix: str  # of their names
    count: int
    capacity: NodeCapacity
    tier: int = 1
    is_whole: bool = False

    @property
    def line(self) -> str:
        """Its lines of slurm.conf."""
        gres = "".join(f" Gres=gpu:{kind}:{number}" for kind, number in self.capacity.gpus)
        names = f"{self.prefix}[1-{self.count}]"
        sharing = " OverSubscribe=EXCLUSIVE" * self.is_whole
        return (
            f"NodeName={names} CPUs={self.capacity.cpus} RealMemory={self.capacity.memory_mb}{gres}"
            f"\nPartitionName={self.partition} Nodes={names} PriorityTier={self.tier}"
            f" MaxTime=1-00:00:00{sharing}\n"
        )

    @property
    def names(self) -> list[str]:
        """The names of its nodes."""
        return [f"{self.prefix}{number}" for number in range(1, self.count + 1)]


CPU_NODE = NodeCapacity(cpus=64, memory_mb=256_000)
GPU_NODE = NodeCapacity(cpus=64, memory_mb=512_000, gpus=(("a100", 8),))
SMALL_GPU_NODE = NodeCapacity(cpus=32, memory_mb=256_000, gpus=(("a100", 4),))
Draw = Callable[[Part, float, int], Iterator[JobSpec]]


def whole_nodes(n_nodes: int = 64, days: float = 7.0, seed: int = 1) -> DrawnSite:
    """Return a site that gives whole nodes only."""
    part = Part(partition="batch", prefix="n", count=n_nodes, capacity=CPU_NODE, is_whole=True)
    conf = f"{COMMON}SelectType=select/linear\n"
    return _site(f"whole-{n_nodes}", conf, (part,), (_wide,), days, seed)


def gpu_nodes(n_nodes: int = 100, days: float = 2.0, seed: int = 1) -> DrawnSite:
    """Return a site whose jobs take GPUs of nodes with eight."""
    part = Part(partition="gpu", prefix="g", count=n_nodes, capacity=GPU_NODE)
    return _site(f"gpus-{n_nodes}x8", _shared(), (part,), (_small,), days, seed)


def mixed(n_nodes: int = 64, days: float = 7.0, seed: int = 1) -> DrawnSite:
    """Return a site of whole nodes and, in a second partition, of nodes with four GPUs."""
    n_gpu = max(2, n_nodes // 4)
    parts = (
        Part(
            partition="batch", prefix="n", count=n_nodes - n_gpu, capacity=CPU_NODE, is_whole=True
        ),
        Part(partition="gpu", prefix="g", count=n_gpu, capacity=SMALL_GPU_NODE, tier=2),
    )
    return _site(f"mixed-{n_nodes}", _shared(), parts, (_wide, _small), days, seed)


SITES: dict[str, Callable[[int, float], DrawnSite]] = {
    "whole": whole_nodes,
    "gpus": gpu_nodes,
    "mixed": mixed,
}


def _shared() -> str:
    return f"{COMMON}SelectType=select/cons_tres\nSelectTypeParameters=CR_Core_Memory\n"


def _site(
    name: str, conf: str, parts: Sequence[Part], draws: Sequence[Draw], days: float, seed: int
) -> DrawnSite:
    span_s = days * DAY_S
    specs = list[JobSpec]()
    for part, draw in zip(parts, draws, strict=True):
        shift = len(specs)
        for spec in draw(part, span_s, seed):
            array = spec.array + shift if spec.array else 0
            specs.append(
                replace(spec, number=spec.number + shift, array=array, partition=part.partition)
            )
    jobs = _played(parts, specs, span_s, is_shared="cons_tres" in conf)
    names = [node for part in parts for node in part.names]
    return DrawnSite(
        name=name,
        slurm_conf=conf + "".join(part.line for part in parts),
        sacct="\n".join((COLUMNS, *_rows(jobs, names, span_s))) + "\n",
        hours=span_s / 3600.0,
    )


def _wide(part: Part, span_s: float, seed: int) -> Iterator[JobSpec]:
    """Yield jobs of whole nodes."""
    demand = Demand(n_nodes=part.count, span_s=span_s, load=LOAD, seed=seed)
    return (replace(spec, kind="sbatch") for spec in generate(demand))


def _small(part: Part, span_s: float, seed: int) -> Iterator[JobSpec]:
    """Yield jobs of some GPUs of a node, or of whole nodes."""
    chance = random.Random(f"gpus {seed}")  # noqa: S311 - a workload, not a secret
    n_gpus = part.capacity.n_gpus
    wanted_s = GPU_LOAD * part.count * n_gpus * span_s
    number = 0
    while wanted_s > 0.0:
        number += 1
        n_nodes = chance.choice((1, 1, 1, 1, 1, 2))
        gpus = min(n_gpus, chance.choice((1, 1, 1, 2, 2, 4, 8)))
        if n_nodes > 1:
            gpus = n_gpus
        run_s = min(chance.lognormvariate(8.3, 1.0), DAY_S / 4)
        wanted_s -= n_nodes * gpus * run_s
        yield JobSpec(
            number=number,
            submit_s=chance.uniform(0.0, span_s),
            n_nodes=n_nodes,
            limit_s=min(DAY_S, -(-run_s * chance.uniform(1.2, 4.0) // 600.0) * 600.0),
            run_s=run_s,
            priority=float(chance.randrange(1000)),
            user=f"u{chance.randrange(40)}",
            share=Share(
                cpus=part.capacity.cpus * gpus // n_gpus,
                memory_mb=part.capacity.memory_mb * gpus // n_gpus,
                gpus=gpus,
                gpu_type="a100",
            ),
        )


def _played(
    parts: Sequence[Part], specs: Sequence[JobSpec], span_s: float, *, is_shared: bool
) -> list[SiteJob]:
    """Return the jobs as they ran without bftrainer."""
    capacities, partitions, first = list[NodeCapacity](), list[SitePartition](), 0
    for part in parts:
        capacities += [part.capacity] * part.count
        nodes = ((1 << part.count) - 1) << first
        first += part.count
        partitions.append(
            SitePartition(name=part.partition, nodes=nodes, tier=part.tier, is_whole=part.is_whole)
        )
    settings = SchedulerSettings(
        n_nodes=first,
        capacities=tuple(capacities) * is_shared,
        partitions=tuple(partitions),
    )
    machine = Machine(settings)
    MainScheduler(machine)
    Backfill(machine)
    machine.load(tuple(sorted(specs, key=lambda spec: spec.submit_s)))
    machine.run(span_s)
    return machine.jobs


def _rows(jobs: Sequence[SiteJob], names: Sequence[str], span_s: float) -> Iterator[str]:
    """Yield lines as ``sacct --truncate`` prints them, in seconds of the epoch."""
    for job in jobs:
        if job.start_s is None or job.start_s >= span_s:
            continue
        spec, end_s, state = job.spec, span_s, "RUNNING"
        if job.end_s is not None:
            end_s, state = job.end_s, "COMPLETED"
        submit, start, end = (
            f"{EPOCH_S + at_s:.0f}" for at_s in (spec.submit_s, job.start_s, end_s)
        )
        job_id = str(spec.number)
        if spec.array:
            job_id = f"{spec.array}_{spec.number - spec.array}"
        nodes = ",".join(names[node] for node in positions(job.nodes))
        yield "|".join(
            (
                *(job_id, submit, submit, start, end, str(int(end) - int(start)), "00:00:00"),
                *(str(spec.n_nodes), nodes, state, spec.partition, _limit(spec.limit_s)),
                *(spec.user, f"{spec.priority:.0f}", _tres(spec), ""),
            )
        )


def _limit(limit_s: float) -> str:
    minutes = int(limit_s // 60)
    return f"{minutes // 1440}-{minutes // 60 % 24:02}:{minutes % 60:02}:00"


def _tres(spec: JobSpec) -> str:
    if spec.share is None:
        return f"cpu={64 * spec.n_nodes},mem={256_000 * spec.n_nodes}M,node={spec.n_nodes}"
    share, count = spec.share, spec.n_nodes
    gpus = f"gres/gpu={share.gpus * count},gres/gpu:{share.gpu_type}={share.gpus * count}"
    return f"cpu={share.cpus * count},{gpus},mem={share.memory_mb * count}M,node={count}"


def write(site: DrawnSite, directory: Path) -> tuple[Path, Path]:
    """Write slurm.conf and the log; return their paths."""
    directory.mkdir(parents=True, exist_ok=True)
    conf, log = directory / f"{site.name}.conf", directory / f"{site.name}.sacct"
    conf.write_text(site.slurm_conf, encoding="utf-8")
    log.write_text(site.sacct, encoding="utf-8")
    return conf, log
