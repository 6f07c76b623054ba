"""The simulated Slurm with nodes that jobs share, against cases worked out by hand.

Four nodes of 4 GPUs, 16 CPUs and 1,000 MB, if a test does not say otherwise; the rules are those of
``bftrainer.lab.site.shared``, each of which was read in Slurm 22.05.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from bftrainer.lab.site.arms import SharedStage, alone, play
from bftrainer.lab.site.machine import (
    PREEMPT_S,
    JobSpec,
    Machine,
    Preemptable,
    SchedulerSettings,
    SiteJob,
)
from bftrainer.lab.site.scheduler import Backfill, MainScheduler
from bftrainer.lab.site.shared import Remainder, ResourceLayout
from bftrainer.lab.site.sharing import NodeCapacity, Share, SitePartition
from bftrainer.lab.site.sidecar import Core
from bftrainer.model.cluster import NodeLeft, NodeState

NODE = NodeCapacity(cpus=16, memory_mb=1000, gpus=(("a", 4),))
FIRST_CYCLE_S = 20.0
HOUR_S = 3600.0


def share(gpus: int = 0, cpus: int = 1, memory_mb: int = 1, gpu_type: str = "") -> Share:
    return Share(gpus=gpus, cpus=cpus, memory_mb=memory_mb, gpu_type=gpu_type)


@dataclass
class Site:
    """A machine of shared nodes with both schedulers."""

    nodes: tuple[NodeCapacity, ...] = (NODE,) * 4
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        values: dict[str, Any] = {
            "bf_duration_s": 0.5,
            "first_cycle_s": FIRST_CYCLE_S,
            "capacities": self.nodes,
        }
        values |= {"n_nodes": len(self.nodes)}
        self.machine = Machine(SchedulerSettings(**(values | self.settings)))
        MainScheduler(self.machine)
        self.backfill = Backfill(self.machine)
        self.specs: list[JobSpec] = []

    def job(self, part: Share | None, **values: Any) -> None:
        defaults = {"submit_s": 0.0, "n_nodes": 1, "limit_s": HOUR_S, "run_s": HOUR_S}
        number = len(self.specs) + 1
        self.specs.append(JobSpec(number=number, share=part, **(defaults | values)))

    def run(self, until_s: float) -> list[SiteJob]:
        self.machine.load(self.specs)
        self.machine.run(until_s)
        return self.machine.jobs

    def nodes_at(self, until_s: float = 10.0) -> list[int]:
        return [job.nodes for job in self.run(until_s)]


def test_jobs_share_a_node_as_far_as_its_gpus_go() -> None:
    site = Site(nodes=(NODE,))
    site.job(share(gpus=2), run_s=100.0)
    site.job(share(gpus=2))
    site.job(share(gpus=1), submit_s=10.0)
    first, second, third = site.run(90.0)
    assert first.nodes == second.nodes == 0b1
    assert third.start_s is None
    assert third.reason == "Resources"
    site.machine.run(200.0)
    assert third.start_s == first.end_s, "the main scheduler makes a pass when a job ends"


@pytest.mark.parametrize("blocking", [share(cpus=15), share(memory_mb=999)], ids=["CPUs", "memory"])
def test_a_free_gpu_is_of_no_use_without_cpus_and_memory(blocking: Share) -> None:
    site = Site(nodes=(NODE,))
    site.job(blocking)
    site.job(share(gpus=1, cpus=2, memory_mb=2), submit_s=5.0)
    assert site.nodes_at(15.0) == [0b1, 0]


def test_memory_that_the_site_does_not_count_is_no_limit() -> None:
    site = Site(nodes=(NodeCapacity(cpus=16),))
    site.job(share(memory_mb=10**9))
    site.job(share(memory_mb=10**9))
    assert site.nodes_at() == [0b1, 0b1]


def test_a_type_is_found_where_it_is_and_no_type_everywhere() -> None:
    other = NodeCapacity(cpus=16, memory_mb=1000, gpus=(("b", 2),))
    site = Site(nodes=(NODE, other))
    site.job(share(gpus=2, gpu_type="b"))
    site.job(share(gpus=1, gpu_type="b"))  # none is left
    assert site.nodes_at() == [0b10, 0]
    untyped = Site(nodes=(NODE, other))
    untyped.job(share(gpus=4))
    untyped.job(share(gpus=2), submit_s=1.0)
    assert untyped.nodes_at() == [0b01, 0b10]


def test_a_type_that_nobody_has_is_never_given() -> None:
    site = Site()
    site.job(share(gpus=1, gpu_type="h100"))
    assert site.nodes_at(10_000.0) == [0]


def test_a_job_without_a_type_leaves_what_it_took_of_each() -> None:
    mixed = NodeCapacity(cpus=16, memory_mb=1000, gpus=(("a", 1), ("b", 3)))
    site = Site(nodes=(mixed,))
    site.job(share(gpus=2), run_s=50.0)  # the a and one b
    site.job(share(gpus=3, gpu_type="b"), submit_s=5.0)
    _, typed = site.run(45.0)
    assert typed.start_s is None
    site.machine.run(60.0)
    assert typed.nodes == 0b1


def test_whole_nodes_are_shared_with_nobody() -> None:
    site = Site(nodes=(NODE,) * 2)
    site.job(share(gpus=1))
    site.job(None)
    site.job(share(gpus=1), submit_s=3.0)
    site.job(None, submit_s=6.0)
    assert site.nodes_at() == [0b01, 0b10, 0b01, 0]


def test_the_node_with_the_fewest_cpus_that_are_enough_is_taken() -> None:
    site = Site()
    site.job(share(cpus=8), submit_s=0.0)
    site.job(None, submit_s=0.0)  # cuts the row in two: node 0 alone, 2 and 3 together
    site.job(share(gpus=1, cpus=4), submit_s=5.0)
    assert site.nodes_at() == [0b0001, 0b0010, 0b0001]


def test_a_row_that_is_enough_is_taken_before_the_fullest_node() -> None:
    """Two nodes are wanted: the row of 2 and 3 is enough, node 0 alone is not."""
    site = Site()
    site.job(share(cpus=8))
    site.job(None)
    site.job(share(cpus=4), n_nodes=2, submit_s=5.0)
    assert site.nodes_at() == [0b0001, 0b0010, 0b1100]


def test_with_least_loaded_first_jobs_spread() -> None:
    site = Site(settings={"is_least_loaded_first": True})
    for number in range(5):
        site.job(share(gpus=1, cpus=2), submit_s=5.0 * number)
    assert site.nodes_at(30.0) == [0b0001, 0b0010, 0b0100, 0b1000, 0b0001]


def test_the_lightest_nodes_are_taken_first() -> None:
    heavy = NodeCapacity(cpus=16, memory_mb=1000, gpus=(("a", 4),), weight=5)
    site = Site(nodes=(heavy, NODE, heavy, NODE))
    for number in range(3):
        site.job(share(gpus=4), submit_s=5.0 * number)
    assert site.nodes_at(20.0) == [0b0010, 0b1000, 0b0001]


def test_what_backfill_plans_closes_whole_nodes() -> None:
    """The 4-GPU job is planned on the node that empties; its three idle GPUs are closed to a
    long job behind, though it would be over in time for nobody; a short one may go there.
    """
    site = Site(nodes=(NODE,), settings={"batch_sched_delay_s": 0.0})
    site.job(share(gpus=1), limit_s=600.0, run_s=600.0)
    site.job(share(gpus=4), submit_s=3.0, priority=9.0)
    site.job(share(gpus=1), submit_s=4.0, limit_s=HOUR_S)
    site.job(share(gpus=1), submit_s=4.0, limit_s=500.0)
    first, head, long, short = site.run(30.0)
    assert (head.start_s, head.planned_s) == (None, first.ends_by_s)
    assert long.start_s is None
    assert short.by_backfill


def test_main_cancels_as_many_preemptable_jobs_as_are_in_the_way_on_one_node() -> None:
    site = Site(nodes=(NODE,) * 2)
    for number in range(8):
        site.machine.submit_preemptable(
            Preemptable(name=f"p{number}", limit_s=HOUR_S, share=share(gpus=1, cpus=2))
        )
    site.job(share(gpus=2, cpus=2), submit_s=10.0)
    (job,) = site.run(19.0)
    assert job.start_s is not None
    assert site.machine.n_preempted == 2
    here = [mine for mine in site.machine.preemptable.values() if mine.at & job.nodes]
    assert len(here) == 2
    assert job.start_s == pytest.approx(10.0 + PREEMPT_S)


def test_backfill_cancels_in_one_cycle_and_starts_in_the_next() -> None:
    site = Site(nodes=(NODE,) * 2, settings={"sched_interval_s": 10_000.0})
    site.job(None, n_nodes=1)
    site.job(None, n_nodes=2, submit_s=4.0, priority=9.0)  # blocks the main scheduler

    def submit_four() -> None:
        for number in range(4):
            mine = Preemptable(name=f"p{number}", limit_s=3000.0, share=share(gpus=1, cpus=4))
            site.machine.submit_preemptable(mine)

    site.machine.at(8.0, submit_four)
    site.job(share(gpus=3, cpus=1), submit_s=30.0, limit_s=60.0 * 40)
    _, _, small = site.run(100.0)
    assert site.machine.n_preempted == 3
    cycle_s = FIRST_CYCLE_S + 30.5
    assert small.by_backfill
    assert small.start_s == pytest.approx(cycle_s + 30.5)


def test_backfill_takes_what_is_free_before_it_cancels_anything() -> None:
    """The fullest node would do if its preemptable job went; another has a free GPU.

    "Try to run with currently available nodes" comes first in _will_run_test of Slurm 22.05.
    """
    site = Site(nodes=(NODE,) * 3, settings={"sched_interval_s": 10_000.0})
    site.job(None, n_nodes=1)
    site.job(share(gpus=3, cpus=12), submit_s=1.0)
    site.job(None, n_nodes=3, submit_s=4.0, priority=9.0)  # blocks the main scheduler
    mine = Preemptable(name="p", limit_s=3000.0, node=0b010, share=share(gpus=1, cpus=4))
    site.machine.at(8.0, lambda: site.machine.submit_preemptable(mine))
    site.job(share(gpus=1, cpus=1), submit_s=30.0, limit_s=60.0 * 40)
    _, beside, _, small = site.run(100.0)
    assert (beside.nodes, mine.at) == (0b010, 0b010)
    assert site.machine.n_preempted == 0
    assert (small.nodes, small.by_backfill) == (0b100, True)
    assert small.start_s == pytest.approx(FIRST_CYCLE_S + 30.5)


def test_a_blocked_partition_blocks_its_nodes_and_no_others() -> None:
    left, right = 0b0011, 0b1100
    partitions = (
        SitePartition(name="left", nodes=left),
        SitePartition(name="right", nodes=right),
        SitePartition(name="all", nodes=left | right),
    )
    site = Site(settings={"partitions": partitions, "first_cycle_s": 10_000.0})
    site.job(None, n_nodes=1, partition="left")
    site.job(None, n_nodes=2, partition="left", submit_s=4.0, priority=9.0)
    site.job(share(), partition="left", submit_s=8.0)
    site.job(share(), partition="right", submit_s=8.0)
    site.job(share(), partition="all", submit_s=8.0)
    assert site.nodes_at(20.0) == [0b0001, 0, 0, 0b0100, 0b0100]


def test_a_higher_tier_is_tested_first() -> None:
    partitions = (
        SitePartition(name="low", nodes=0b1, tier=1),
        SitePartition(name="high", nodes=0b1, tier=2),
    )
    site = Site(nodes=(NODE,), settings={"partitions": partitions})
    site.job(None, partition="low", priority=99.0)
    site.job(None, partition="high", priority=1.0)
    assert site.nodes_at() == [0, 0b1]


def test_limits_of_a_partition() -> None:
    partitions = (
        SitePartition(name="few", nodes=0b11, max_cpus_per_node=6),
        SitePartition(name="whole", nodes=0b11, is_whole=True),
    )
    site = Site(nodes=(NODE,) * 2, settings={"partitions": partitions})
    site.job(share(cpus=4), partition="few")
    site.job(share(cpus=2), partition="few")
    site.job(share(cpus=1), partition="few")
    site.job(share(cpus=1), partition="whole")
    assert site.nodes_at() == [0b01, 0b01, 0b10, 0]


def test_a_twin_without_preemptable_jobs_has_their_parts_back() -> None:
    site = Site(nodes=(NODE,))
    site.machine.submit_preemptable(Preemptable(name="p", limit_s=HOUR_S, share=share(gpus=3)))
    site.machine.run(10.0)
    twin = alone(site.machine, site.backfill)
    assert (site.machine.held, twin.held) == (0b1, 0)
    wanted = SiteJob(spec=JobSpec(number=1, submit_s=0, n_nodes=1, limit_s=60, run_s=60))
    assert twin.room_for(wanted, 0b1) == (0b1, ())
    room = site.machine.room_for(wanted, 0b1)
    assert room is not None
    assert [mine.name for mine in room.victims] == ["p"]


def test_a_job_that_runs_already_is_taken_over() -> None:
    site = Site(nodes=(NODE,))
    site.machine.run(50.0)
    spec = JobSpec(number=9, submit_s=0, n_nodes=1, limit_s=100, run_s=70, share=share(gpus=4))
    site.machine.take_over(spec, 20.0, 0b1)
    site.job(share(gpus=1), submit_s=60.0)
    running, waiting = site.run(200.0)
    assert running.end_s == waiting.start_s == 90.0


def _fits_by_hand(node: dict[str, int], part: Share) -> bool:
    kinds = ("a", "b")
    has_gpus = sum(node[kind] for kind in kinds) >= part.gpus
    if part.gpu_type:
        has_gpus = node[part.gpu_type] >= part.gpus
    return has_gpus and node["cpus"] >= part.cpus and node["memory"] >= part.memory_mb


def test_what_is_left_is_what_counting_by_hand_leaves() -> None:
    """Jobs come and go at random; a dictionary per node and whole numbers keep the same books."""
    chance = random.Random(5)  # noqa: S311 - a workload, not a secret
    nodes = tuple(
        NodeCapacity(cpus=chance.choice((8, 16)), memory_mb=100, gpus=(("a", 2), ("b", k % 3)))
        for k in range(9)
    )
    layout = ResourceLayout(nodes, (), is_least_loaded_first=False)
    left = Remainder(layout.capacity.copy())
    books = [{"cpus": node.cpus, "memory": node.memory_mb} | dict(node.gpus) for node in nodes]
    running: list[tuple[Any, int, dict[str, int]]] = []
    for _ in range(300):
        if running and chance.random() < 0.4:
            taken, node, amounts = running.pop(chance.randrange(len(running)))
            left.give(taken)
            for name, amount in amounts.items():
                books[node][name] += amount
            continue
        part = share(
            gpus=chance.randrange(4),
            cpus=chance.randint(1, 6),
            memory_mb=chance.randint(1, 40),
            gpu_type=chance.choice(("", "a", "b")),
        )
        if not part.gpus:
            part = share(cpus=part.cpus, memory_mb=part.memory_mb)
        need = layout.need(part, "")
        fitting = left.fits(need)
        by_hand = [k for k, node in enumerate(books) if _fits_by_hand(node, part)]
        assert [k for k in range(len(nodes)) if fitting >> k & 1] == by_hand
        if not fitting:
            continue
        chosen = layout.choose(need, fitting, 1, left)
        assert chosen.bit_count() == 1
        assert chosen & fitting
        k = chosen.bit_length() - 1
        taken = layout.take(need, chosen, left)
        left.take(taken)
        amounts = {"cpus": part.cpus, "memory": part.memory_mb}
        if part.gpu_type:
            amounts[part.gpu_type] = part.gpus
        else:
            of_a = min(part.gpus, books[k]["a"])
            amounts |= {"a": of_a, "b": part.gpus - of_a}
        for name, amount in amounts.items():
            books[k][name] -= amount
        running.append((taken, k, amounts))
    for taken, _, _ in running:
        left.give(taken)
    assert np.array_equal(left.amounts, layout.capacity)


def test_bftrainer_is_shown_what_is_left_of_a_node_and_what_a_job_asks_of_it() -> None:
    partitions = (SitePartition(name="gpu", nodes=0b11), SitePartition(name="all", nodes=0b111))
    plain = NodeCapacity(cpus=8)
    site = Site(nodes=(NODE, NODE, plain), settings={"partitions": partitions})
    site.job(share(gpus=3, cpus=6, memory_mb=300), partition="gpu")
    site.job(None, submit_s=1.0, partition="gpu")
    site.job(share(gpus=2, cpus=2), submit_s=20.0, partition="gpu")
    site.run(30.0)
    snapshot = Core(site.machine).look()
    assert snapshot.nodes is not None
    assert snapshot.jobs is not None
    shown = [
        (node.state, node.left, node.node_type, node.gpus, node.partitions)
        for node in snapshot.nodes
    ]
    left = NodeLeft(cpus=10, memory_mb=700, gpus=1)
    assert shown == [
        (NodeState.ALLOCATED, left, "gpu:a:4", 4, ("all", "bf", "gpu")),
        (NodeState.ALLOCATED, None, "gpu:a:4", 4, ("all", "bf", "gpu")),
        (NodeState.IDLE, None, "cpu", 0, ("all", "bf")),
    ]
    asks = [(job.gpus_per_node, job.cpus_per_node, job.can_share) for job in snapshot.jobs]
    assert asks == [(2, 2, True), (3, 6, True), (0, 1, False)]
    assert [(p.name, p.tier) for p in snapshot.partitions] == [("gpu", 11), ("all", 11), ("bf", 0)]


def test_the_decision_lends_whole_nodes_beside_jobs_that_share_others() -> None:
    """One node has a job for the whole run; of the other three the default reserve keeps one."""
    site = Site()
    site.job(share(gpus=1), limit_s=10 * HOUR_S, run_s=10 * HOUR_S)
    stage = SharedStage(
        slurm=site.machine.settings, jobs=tuple(site.specs), warm_s=60.0, end_s=HOUR_S
    )
    outcome = play(stage, "bftrainer")
    assert outcome.harvest is not None
    assert outcome.harvest.idle_s == 3 * (HOUR_S - 60.0)
    assert 1.9 * (HOUR_S - 60.0) < outcome.harvest.held_s < 2.0 * (HOUR_S - 60.0)
    assert outcome.preempted == 0
