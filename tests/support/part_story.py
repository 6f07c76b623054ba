"""Stories of hand-overs of parts: looks at hosts of four GPUs, and what the ledger makes of them.

Decisions are written down, not taken: which pilots are released for which jobs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bftrainer.daemon.harm.backoff import BackOff
from bftrainer.daemon.harm.ledger import (
    Farewell,
    HandOver,
    HarmRecords,
    Ledger,
    Rule,
    Taken,
    Vain,
    explained,
    farewell,
    fold,
)
from bftrainer.daemon.harm.report import make_report
from bftrainer.model.cluster import (
    EndedBy,
    Job,
    JobState,
    LentGpus,
    Node,
    NodeLeft,
    NodeState,
)
from bftrainer.model.decision import DecisionInput, Memory, PilotView, Plan, Release, Settings
from bftrainer.model.parts import NodePart
from bftrainer.model.reports import HarmReport
from tests.support.snapshots import T0, snapshot

CYCLE_S = 30.0
CPUS, MEMORY_MB = 16, 4000  # of a GPU
N_GPUS = 4


def a_part(name: str, gpus: int = 1, gpu_type: str = "gpu:a100") -> NodePart:
    host = name.partition("/")[0]
    return NodePart(
        name=name,
        node=host,
        gpu_type=gpu_type,
        gpus=gpus,
        cores=CPUS * gpus,
        memory_mb=MEMORY_MB * gpus,
    )


def of_part(part: NodePart, *, is_held: bool = True, is_leaving: bool = False) -> PilotView:
    return PilotView(
        pilot_id=f"p-{part.name}",
        node=part.name,
        requested_s=T0 - 60.0,
        is_held=is_held,
        is_leaving=is_leaving,
        part=part,
    )


def pilot_job(part: NodePart, state: JobState = JobState.RUNNING) -> Job:
    """The queue's view of a pilot: it names the host."""
    return Job(
        job_id=f"9{part.name[1:]}",
        user="bft",
        partitions=("bf",),
        state=state,
        n_nodes=1,
        time_limit_s=3600.0,
        start_s=T0 - 50.0,
        nodes=() if state is JobState.PENDING else (part.node,),
        pilot_id=f"p-{part.name}",
    )


def host(
    name: str = "n1",
    free: int = 0,
    *,
    cpus: int | None = None,
    others: Mapping[str, int] | None = None,
    state: NodeState = NodeState.ALLOCATED,
) -> Node:
    """A host with so many free GPUs of its four; ``others``: further types, all free."""
    left_cpus = CPUS * free if cpus is None else cpus
    free_of = {"a100": free, **(others or {})}
    return Node(
        name=name,
        state=state,
        gpus=N_GPUS + sum((others or {}).values()),
        cpus=CPUS * N_GPUS,
        memory_mb=MEMORY_MB * N_GPUS,
        left=NodeLeft(
            cpus=left_cpus, memory_mb=MEMORY_MB * free, gpus=sum(free_of.values())
        ) if left_cpus else None,
        lends=tuple(
            LentGpus(
                gpu_type=gpu_type,
                n_gpus=N_GPUS,
                n_free=n_free,
                cpus=CPUS,
                memory_mb=MEMORY_MB,
            )
            for gpu_type, n_free in free_of.items()
        ),
        is_shared=True,
    )  # fmt: skip


def asking(job_id: str, gpus: int, *, cpus: int | None = None, n_nodes: int = 1) -> Job:
    """A pending job, with its whole request on each node."""
    return Job(
        job_id=job_id,
        user="alice",
        partitions=("batch",),
        state=JobState.PENDING,
        n_nodes=n_nodes,
        time_limit_s=600.0,
        reason="Resources",
        submit_s=T0,
        gpus_per_node=gpus,
        cpus_per_node=CPUS * gpus if cpus is None else cpus,
        can_share=True,
    )


def runs(job: Job, *nodes: str, start_s: float) -> Job:
    """The job as the batch system shows it when it runs: with GPUs per node alone."""
    return Job(
        job_id=job.job_id,
        user=job.user,
        partitions=job.partitions,
        state=JobState.RUNNING,
        n_nodes=job.n_nodes,
        time_limit_s=job.time_limit_s,
        submit_s=job.submit_s,
        start_s=T0 + start_s,
        nodes=nodes or ("n1",),
        gpus_per_node=job.gpus_per_node,
        gpu_type=job.gpu_type,
    )


@dataclass(slots=True, kw_only=True)
class PartStory:
    """Looks, one after the other."""

    ledger: Ledger = field(default_factory=Ledger)
    records: list[HarmRecords] = field(default_factory=list)

    def look(
        self,
        at_s: float,
        nodes: Sequence[Node],
        jobs: Sequence[Job],
        pilots: Sequence[PilotView],
        *,
        releases: Mapping[str, str] | None = None,
        held_off: Sequence[str] = (),
    ) -> None:
        """``releases``: part -> the job that it is released for; ``held_off``: parts."""
        given = DecisionInput(
            now_s=T0 + at_s + 0.05,
            snapshot=snapshot(nodes, jobs, at_s=T0 + at_s),
            is_new_snapshot=True,
            pilots=tuple(pilots),
            trainers=(),
            settings=Settings(cycle_s=CYCLE_S),
            memory=Memory(),
        )
        orders = tuple(
            Release(pilot_id=f"p-{name}", node=name, reason="", for_job=job_id)
            for name, job_id in (releases or {}).items()
        )
        names = [*(releases or ()), *held_off]
        plan = Plan(
            assignment={},
            claims=(),
            releases=orders,
            pool=(),
            not_used={},
            reserve=(),
            allocation=None,
            memory=Memory(held_off=dict.fromkeys(names, given.now_s)),
        )
        self.ledger, settled = fold(self.ledger, given, plan, 0.002)
        if not settled.is_empty:
            self.records.append(settled)

    def says(self, name: str, reason: str, told_s: float, left_s: float) -> None:
        said = Farewell(
            pilot_id=f"p-{name}", node=name, reason=reason, told_s=T0 + told_s, left_s=T0 + left_s
        )
        self.ledger = farewell(self.ledger, said)

    def was(self, name: str, by: EndedBy) -> None:
        self.ledger = explained(self.ledger, f"p-{name}", by)

    @property
    def hand_overs(self) -> list[HandOver]:
        return [one for settled in self.records for one in settled.hand_overs]

    @property
    def got(self) -> dict[str, str]:
        """Part -> the job that got it."""
        return {one.node: one.job_id for one in self.hand_overs}

    @property
    def vain(self) -> list[Vain]:
        return [one for settled in self.records for one in settled.vain]

    @property
    def taken(self) -> list[Taken]:
        return [one for settled in self.records for one in settled.taken]

    @property
    def report(self) -> HarmReport:
        rule = Rule(limit_s=1.0, share=0.95, quiet_s=600.0)
        return make_report(self.records, BackOff(), rule, since_s=T0, until_s=T0 + 3600.0)
