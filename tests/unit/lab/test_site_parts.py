"""The simulated daemon on nodes that jobs share: GPUs lent one by one, and given back.

Nodes of 4 GPUs, 16 CPUs and 1,000 MB, so that a GPU is lent with 4 CPUs and 250 MB.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from bftrainer.lab.site.arms import SharedStage, play
from bftrainer.lab.site.looks import lent_gpus
from bftrainer.lab.site.losses import HELD, QUEUED, RESERVE, Causes
from bftrainer.lab.site.machine import JobSpec, Machine, Preemptable, SchedulerSettings, SiteJob
from bftrainer.lab.site.scheduler import Backfill, MainScheduler
from bftrainer.lab.site.sharing import NodeCapacity, Share, SitePartition
from bftrainer.lab.site.sidecar import Core, Sidecar
from bftrainer.model.cluster import LentGpus, Node
from bftrainer.model.parts import NOT_SHARED, Lend

NODE = NodeCapacity(cpus=16, memory_mb=1000, gpus=(("a", 4),))
PART = Share(cpus=4, memory_mb=250, gpus=1, gpu_type="a")
HOUR_S = 3600.0
LENT_S = 100.0  # by then the daemon holds what it can
NO_RESERVE = {"reserve_nodes_per_type": 0}


def share(gpus: int, cpus: int = 1) -> Share:
    return Share(gpus=gpus, cpus=cpus, memory_mb=1)


@dataclass
class PartedSite:
    """A machine of shared nodes, and a daemon beside it from the begin."""

    n_nodes: int = 1
    lend: Lend = Lend.AUTO
    policy_values: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        values: dict[str, Any] = {"capacities": (NODE,) * self.n_nodes, "n_nodes": self.n_nodes}
        self.machine = Machine(SchedulerSettings(**(values | self.settings)))
        MainScheduler(self.machine)
        core = Core(self.machine, lend=self.lend, policy_values=self.policy_values)
        self.sidecar = Sidecar(self.machine, core=core)
        backfill = Backfill(self.machine, self.sidecar.know)
        self.sidecar.last_cycle = lambda: backfill.last
        self.machine.at(20.0, self.sidecar.begin)
        self.specs: list[JobSpec] = []

    def job(self, part: Share | None, submit_s: float = 0.0, **values: Any) -> None:
        """A job of ten hours, if nothing else is told."""
        defaults = {"n_nodes": 1, "limit_s": 10 * HOUR_S, "run_s": 10 * HOUR_S}
        number = len(self.specs) + 1
        spec = JobSpec(number=number, share=part, submit_s=submit_s, **(defaults | values))
        self.specs.append(spec)

    def run(self, until_s: float) -> list[SiteJob]:
        self.machine.load(self.specs)
        self.machine.run(until_s)
        return self.machine.jobs

    @property
    def lent(self) -> list[Preemptable]:
        """The pilots that run."""
        return [mine for mine in self.machine.preemptable.values() if mine.start_s is not None]

    def nodes(self) -> tuple[Node, ...]:
        """The nodes as the daemon sees them now."""
        nodes = self.sidecar.core.look().nodes
        assert nodes is not None
        return nodes


def test_gpus_that_a_job_leaves_are_lent_beside_it() -> None:
    site = PartedSite(policy_values=NO_RESERVE)
    site.job(share(gpus=3))
    (job,) = site.run(LENT_S)
    (pilot,) = site.lent
    assert pilot.share == PART
    assert pilot.at == job.nodes
    assert site.machine.n_preempted == 0


def test_an_idle_node_is_lent_gpu_by_gpu_but_for_the_reserve() -> None:
    site = PartedSite()
    site.run(LENT_S)
    assert [mine.share for mine in site.lent] == [PART] * 3


def test_a_job_is_given_exactly_the_gpus_that_it_lacks() -> None:
    site = PartedSite(n_nodes=2, policy_values=NO_RESERVE)
    site.job(share(gpus=1))  # seven are left and lent
    submit_s = LENT_S + 0.3  # between two passes of the main scheduler
    site.job(share(gpus=3), submit_s=submit_s)
    _, second = site.run(LENT_S + 1.0)
    assert second.start_s == pytest.approx(submit_s, abs=0.5)
    assert (site.sidecar.n_releases, site.machine.n_preempted) == (3, 0)
    assert len(site.lent) == 4


def test_a_job_of_a_free_gpu_gets_nothing() -> None:
    """The reserve is one GPU."""
    site = PartedSite()
    site.job(share(gpus=1), submit_s=LENT_S, limit_s=60.0, run_s=30.0)
    (job,) = site.run(LENT_S + 1.0)
    assert job.start_s is not None
    assert site.sidecar.core.given_back == set()


def test_an_exclusive_job_that_cannot_start_is_given_nothing() -> None:
    site = PartedSite(policy_values=NO_RESERVE)
    site.job(share(gpus=1))
    site.job(None, submit_s=LENT_S)
    _, exclusive = site.run(LENT_S + 600.0)
    assert exclusive.start_s is None
    assert (site.sidecar.n_releases, site.machine.n_preempted) == (0, 0)
    assert len(site.lent) == 3


def test_jobs_with_more_than_their_cpus_leave_fewer_to_each_gpu() -> None:
    site = PartedSite(policy_values=NO_RESERVE)
    site.job(share(gpus=1, cpus=10))  # 6 of 16 CPUs are left for 3 GPUs
    site.run(LENT_S)
    assert [mine.share for mine in site.lent] == [replace(PART, cpus=2)] * 3


def test_a_gpu_without_a_quarter_of_its_cpus_is_not_lent() -> None:
    site = PartedSite(policy_values=NO_RESERVE)
    site.job(share(gpus=1, cpus=14))
    site.run(LENT_S)
    (node,) = site.nodes()
    assert node.lends == (LentGpus(gpu_type="a", n_gpus=4, n_free=0, cpus=4, memory_mb=250),)
    assert [mine.share for mine in site.lent] == [replace(PART, cpus=1)] * 2


def test_a_look_shows_the_free_gpus_of_each_type() -> None:
    mixed = NodeCapacity(cpus=8, gpus=(("a", 2), ("b", 2)))
    site = PartedSite(settings={"capacities": (mixed,)})
    assert [lent.n_free for lent in site.nodes()[0].lends] == [2, 2]
    site.job(Share(gpus=1, cpus=3, gpu_type="b"))
    site.run(10.0)
    (node,) = site.nodes()
    # 5 CPUs are left for 3 GPUs.
    assert [(lent.n_free, lent.cpus) for lent in node.lends] == [(2, 1), (1, 1)]
    assert site.nodes()[0] is node


def test_a_node_with_fewer_cpus_than_gpus_lends_none() -> None:
    assert lent_gpus(NodeCapacity(cpus=3, gpus=(("a", 4),))) == ()
    assert lent_gpus(NodeCapacity(cpus=3)) == ()


def test_nodes_that_jobs_have_alone_are_lent_as_a_whole() -> None:
    partition = SitePartition(name="own", nodes=0b1, is_whole=True)
    site = PartedSite(settings={"partitions": (partition,)}, policy_values=NO_RESERVE)
    site.run(LENT_S)
    assert not site.lent  # its trainer asks for GPUs, and the node is lent as a whole
    (node,) = site.nodes()
    assert (node.lends, node.why_whole) == ((), NOT_SHARED)


def test_a_daemon_that_lends_whole_nodes_is_not_shown_their_parts() -> None:
    site = PartedSite(n_nodes=2, lend=Lend.NODES, policy_values=NO_RESERVE)
    site.job(share(gpus=3))
    site.run(LENT_S)
    assert [(mine.share, mine.at) for mine in site.lent] == [(None, 0b10)]
    shown = [(node.lends, node.is_shared, node.why_whole) for node in site.nodes()]
    assert shown == [((), False, "")] * 2


@pytest.mark.parametrize("lend", [Lend.NODES, Lend.AUTO])
def test_held_time_counts_gpus(lend: Lend) -> None:
    """A quarter of a node for an hour is a quarter of a node-hour, and a GPU-hour."""
    jobs = (JobSpec(number=1, submit_s=0.0, n_nodes=1, limit_s=2 * HOUR_S, run_s=2 * HOUR_S,
                    share=share(gpus=2)),)  # fmt: skip
    slurm = SchedulerSettings(n_nodes=2, capacities=(NODE,) * 2)
    stage = SharedStage(
        slurm=slurm,
        jobs=jobs,
        warm_s=60.0,
        settle_s=60.0,
        end_s=HOUR_S / 2,
        policy_values=NO_RESERVE,
        lend=lend,
    )
    harvest = play(stage, "bftrainer").harvest
    assert harvest is not None
    counted_s = HOUR_S / 2 - 120.0
    gpus = 4 if lend is Lend.NODES else 6
    assert harvest.held_gpu_s == pytest.approx(gpus * counted_s)
    assert harvest.held_s == pytest.approx(gpus / 4 * counted_s)
    assert harvest.causes_s[HELD] == pytest.approx(counted_s, rel=0.01), "of the idle node"


def test_the_cause_on_each_gpu_counts_for_its_share_of_the_node() -> None:
    causes = Causes({0: 4})
    causes.note(0.0, 0, HELD)
    causes.note_part(50.0, 0, 3, RESERVE)
    causes.note(0.0, 1, QUEUED)
    spans = {0: [(0.0, 100.0)], 1: [(0.0, 10.0)]}
    assert causes.add_up(spans, {}) == {HELD: 87.5, RESERVE: 12.5, QUEUED: 10.0}
