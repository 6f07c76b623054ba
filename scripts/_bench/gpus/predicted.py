"""What the simulated site predicts for an arm of ``bench_gpus``: the same jobs, simulated. Pure.

The simulated Slurm and the daemon's own decision play the jobs of a seed; nothing of a real run is
used, so that the two can be compared. Jobs arrive at the same phase of the backfill cycle.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from _bench.gpus.measures import ArmRun, OrdinaryJob, Pilot
from bftrainer.lab.site.machine import JobSpec, Machine, Preemptable, SchedulerSettings
from bftrainer.lab.site.scheduler import Backfill, MainScheduler
from bftrainer.lab.site.sharing import NodeCapacity, Share
from bftrainer.lab.site.sidecar import Core, Sidecar
from bftrainer.lab.site.timeline import positions
from slurm_plugins.testcluster.workload import WorkloadItem

WARM_S = 60.0  # the daemon takes all nodes before the first job
CYCLE_S = 0.01
LONGEST_S = 2 * 3600.0  # of a run: jobs that have not started by then never do
LAUNCH_S = 0.15  # from the start that Slurm notes to the job's own first line
HELLO_S = 1.0  # from a pilot's start to its agent's hello, six nodes on one host


class _Watched(Sidecar):
    """The daemon, and when each of its pilots ran."""

    def __init__(self, machine: Machine, core: Core) -> None:
        super().__init__(machine, hello_s=HELLO_S, core=core)
        self.spans: dict[str, tuple[int, float, float]] = {}  # node, start, end

    def started(self, mine: Preemptable) -> None:
        """Note its start."""
        self.spans[mine.name] = (mine.at, self._machine.now_s, math.inf)
        super().started(mine)

    def gone(self, mine: Preemptable) -> None:
        """Note its end."""
        if mine.start_s is not None:
            self.spans[mine.name] = (mine.at, mine.start_s, self._machine.now_s)
        super().gone(mine)


def settings_of(
    *,
    n_nodes: int,
    capacity: NodeCapacity,
    bf_interval_s: float,
    batch_delay_s: float,
    phase: float,
) -> SchedulerSettings:
    """Return the settings of the test clusters."""
    first_s = (WARM_S - phase * bf_interval_s) % bf_interval_s
    return SchedulerSettings(
        n_nodes=n_nodes,
        bf_interval_s=bf_interval_s - CYCLE_S,
        bf_duration_s=CYCLE_S,
        batch_sched_delay_s=batch_delay_s,
        sched_min_interval_s=0.0,
        first_cycle_s=first_s,
        capacities=(capacity,) * n_nodes,
    )


def specs_of(items: Sequence[WorkloadItem]) -> dict[tuple[int, int], JobSpec]:
    """Return the jobs of a workload by item and task."""
    numbers: dict[int, list[int]] = {}
    specs: dict[tuple[int, int], JobSpec] = {}
    for number, item in enumerate(items):
        first = len(specs) + 1
        numbers[number] = list(range(first, first + item.n_tasks))
        share = None
        if item.share is not None:
            share = Share(
                cpus=item.share.cpus,
                memory_mb=item.share.memory_mb,
                gpus=item.share.gpus,
                gpu_type=item.share.gpu_type,
            )
        for task in range(item.n_tasks):
            limit_s = item.limit_s or item.duration_s
            specs[number, task] = JobSpec(
                number=first + task,
                submit_s=WARM_S + item.at_s,
                n_nodes=item.n_nodes,
                limit_s=math.ceil(limit_s / 60.0) * 60.0,
                run_s=item.duration_s + LAUNCH_S,
                array=first if item.n_tasks > 1 else 0,
                share=share,
                after=() if item.after is None else tuple(numbers[item.after]),
            )
    return specs


def play(
    items: Sequence[WorkloadItem],
    settings: SchedulerSettings,
    *,
    arm: str,
    seed: int,
    span_s: float,
    gpus_per_node: int,
    policy_values: Mapping[str, Any] | None = None,
) -> ArmRun:
    """Play the jobs; with ``policy_values`` beside a daemon that lends whole nodes."""
    machine = Machine(settings)
    MainScheduler(machine)
    spans: Mapping[str, tuple[int, float, float]] = {}
    n_submitted = 0
    backfill: Backfill
    if policy_values is None:
        backfill = Backfill(machine)
    else:
        sidecar = _Watched(machine, Core(machine, policy_values=policy_values))
        backfill = Backfill(machine, sidecar.know)
        sidecar.last_cycle = lambda: backfill.last
        sidecar.begin()
        machine.at(WARM_S, sidecar.count_from_now)
        spans = sidecar.spans
    specs = specs_of(items)
    machine.load(specs.values())
    machine.run(WARM_S + span_s)
    if policy_values is not None:
        n_submitted = sidecar.n_submissions
    while any(job.end_s is None for job in machine.jobs) and machine.now_s < LONGEST_S:
        machine.run(machine.now_s + settings.bf_interval_s)
    names = tuple(f"n{k + 1}" for k in range(settings.n_nodes))
    keys = {spec.number: key for key, spec in specs.items()}
    return ArmRun(
        arm=arm,
        seed=seed,
        nodes=names,
        gpus_per_node=gpus_per_node,
        span_s=span_s,
        bf_interval_s=settings.bf_interval_s + CYCLE_S,
        jobs=tuple(
            OrdinaryJob(
                key=keys[job.spec.number],
                gpus_per_node=job.spec.share.gpus if job.spec.share else gpus_per_node,
                submitted_s=job.spec.submit_s - WARM_S,
                started_s=(math.inf if job.start_s is None else job.start_s + LAUNCH_S) - WARM_S,
                ended_s=(math.inf if job.end_s is None else job.end_s) - WARM_S,
                nodes=tuple(names[k] for k in positions(job.nodes)),
            )
            for job in machine.jobs
        ),
        pilots=tuple(
            Pilot(
                node=names[at.bit_length() - 1],
                gpus=gpus_per_node,
                started_s=start_s - WARM_S,
                ended_s=end_s - WARM_S,
                is_preempted=False,
            )
            for at, start_s, end_s in spans.values()
        ),
        n_submitted=n_submitted,
    )
