"""Stories of hand-overs: real decisions, look after look, and what the ledger makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from bftrainer.daemon.harm.ledger import (
    Farewell,
    HandOver,
    HarmRecords,
    Ledger,
    Taken,
    Vain,
    farewell,
    fold,
)
from bftrainer.decide.decision import decide
from bftrainer.model.cluster import Job, JobState, Node, NodeState
from bftrainer.model.decision import DecisionInput, Memory, PilotView, Plan, Settings
from tests.support.snapshots import (
    T0,
    ExactPolicy,
    held,
    idle_nodes,
    pilot,
    record,
    snapshot,
    with_state,
)

CYCLE_S = 30.0
TWO = with_state(idle_nodes(2), NodeState.ALLOCATED, "n1", "n2")


def pilot_job(node: str, *, state: JobState = JobState.RUNNING) -> Job:
    """The queue's view of the pilot on a node."""
    return Job(
        job_id=f"9{node[1:]}",
        user="bft",
        partitions=("bf",),
        state=state,
        n_nodes=1,
        time_limit_s=3600.0,
        nodes=(node,),
        pilot_id=f"p-{node}",
    )


@dataclass(slots=True, kw_only=True)
class Story:
    """Decides for real, look after look, and keeps the ledger."""

    ledger: Ledger = field(default_factory=Ledger)
    memory: Memory = field(default_factory=Memory)
    records: list[HarmRecords] = field(default_factory=list)
    settings: Settings = field(
        default_factory=lambda: Settings(reserve_nodes_per_type=0, cycle_s=CYCLE_S)
    )

    def look(
        self,
        at_s: float,
        nodes: Sequence[Node],
        jobs: Sequence[Job],
        pilots: Sequence[PilotView],
        *,
        took_s: float = 0.002,
        cycle_ended_s: float | None = None,
        is_new: bool = True,
    ) -> Plan:
        given = DecisionInput(
            now_s=T0 + at_s + 0.05,  # a look takes a moment
            snapshot=snapshot(nodes, jobs, at_s=T0 + at_s, cycle_ended_s=cycle_ended_s),
            is_new_snapshot=is_new,
            pilots=tuple(pilots),
            trainers=(record(n_min=1),),
            settings=self.settings,
            memory=self.memory,
        )
        plan = decide(given, ExactPolicy())
        self.memory = plan.memory
        self.ledger, settled = fold(self.ledger, given, plan, took_s)
        if not settled.is_empty:
            self.records.append(settled)
        return plan

    def says(self, node: str, reason: str, told_s: float, left_s: float) -> None:
        self.ledger = farewell(
            self.ledger,
            Farewell(
                pilot_id=f"p-{node}",
                node=node,
                reason=reason,
                told_s=T0 + told_s,
                left_s=T0 + left_s,
            ),
        )

    @property
    def hand_over(self) -> HandOver:
        (settled,) = self.records
        (done,) = settled.hand_overs
        assert not settled.vain
        assert not settled.taken
        return done

    @property
    def vain(self) -> Vain:
        (settled,) = self.records
        (vain,) = settled.vain
        assert not settled.hand_overs
        return vain

    @property
    def taken(self) -> Taken:
        (settled,) = self.records
        (taken,) = settled.taken
        return taken

    def gives_back_for(self, job: Job) -> None:
        """Two held nodes, one job for one of them: n1 or n2 goes at 10.05 s."""
        self.look(0.0, TWO, [pilot_job("n1"), pilot_job("n2")], held("n1", "n2"))
        plan = self.look(10.0, TWO, [pilot_job("n1"), pilot_job("n2"), job], held("n1", "n2"))
        assert [r.for_job for r in plan.releases] == [job.job_id]
        assert plan.releases[0].node == "n1"


def leaving(node: str) -> PilotView:
    return pilot(node, is_leaving=True)
