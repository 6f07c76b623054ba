"""The simulated Slurm: main scheduler, backfill and preemption, against cases worked out by hand.

Where a figure was measured on a real Slurm 22.05 the test says so.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from bftrainer.lab.site.machine import (
    PREEMPT_S,
    JobSpec,
    Kind,
    Machine,
    Maintenance,
    Preemptable,
    SchedulerSettings,
    SiteJob,
)
from bftrainer.lab.site.scheduler import Backfill, MainScheduler


@dataclass
class Site:
    """A machine with both schedulers."""

    n_nodes: int = 8
    settings: dict[str, Any] = field(default_factory=dict)
    maintenance: tuple[Maintenance, ...] = ()
    knows_all: bool = False

    def __post_init__(self) -> None:
        values = {"n_nodes": self.n_nodes, "bf_duration_s": 0.5, "first_cycle_s": 20.0}
        self.machine = Machine(SchedulerSettings(**(values | self.settings)), self.maintenance)
        self.main = MainScheduler(self.machine)
        self.backfill = Backfill(
            self.machine, lambda: lambda: self.machine.jobs if self.knows_all else ()
        )
        self.specs: list[JobSpec] = []

    def job(
        self,
        n_nodes: int,
        at_s: float = 0.0,
        limit_s: float = 600.0,
        run_s: float = 600.0,
        priority: float = 0.0,
        kind: Kind = "sbatch",
        array: int = 0,
        held_by: str = "",
    ) -> None:
        self.specs.append(
            JobSpec(
                number=len(self.specs) + 1,
                submit_s=at_s,
                n_nodes=n_nodes,
                limit_s=limit_s,
                run_s=run_s,
                priority=priority,
                kind=kind,
                array=array,
                held_by=held_by,
            )
        )

    def pilots(self, *nodes: int, at_s: float = 5.0, limit_s: float = 3600.0) -> None:
        for node in nodes:
            mine = Preemptable(name=f"p{node}-{at_s}", limit_s=limit_s, node=1 << node)
            self.machine.at(at_s, partial(self.machine.submit_preemptable, mine))

    def run(self, until_s: float) -> list[SiteJob]:
        self.machine.load(tuple(self.specs))
        self.machine.run(until_s)
        return self.machine.jobs


def starts(jobs: list[SiteJob]) -> list[float | None]:
    return [job.start_s for job in jobs]


# ---- main scheduler ------------------------------------------------------------------------


def test_what_is_submitted_starts_at_the_next_tick() -> None:
    site = Site()
    site.job(1, at_s=10.3)
    assert starts(site.run(60.0)) == [11.0]


def test_passes_for_submissions_are_three_seconds_apart() -> None:
    site = Site()
    site.job(1, at_s=10.3)
    site.job(1, at_s=11.2)
    assert starts(site.run(60.0)) == [11.0, 14.0]


def test_srun_starts_while_it_is_submitted() -> None:
    site = Site()
    site.job(1, at_s=10.3, kind="srun")
    assert starts(site.run(60.0)) == [10.3]


def test_srun_goes_past_jobs_of_its_own_priority() -> None:
    """Measured: of equal priorities nobody is above it."""
    site = Site()
    site.job(4, at_s=0.0)
    site.job(8, at_s=1.0)
    site.job(2, at_s=10.3, kind="srun")
    site.job(2, at_s=10.4, kind="srun", priority=-1.0)
    assert starts(site.run(15.0)) == [0.0, None, 10.3, None]


def test_an_end_right_after_a_pass_waits_for_the_agent() -> None:
    """It looks 1 s and 2 s later; only then the pass was two seconds ago."""
    site = Site()
    site.job(8, at_s=0.0, run_s=10.95)
    site.job(8, at_s=9.5)
    assert starts(site.run(20.0)) == [0.0, 12.95]


def test_an_end_starts_the_head_at_once() -> None:
    site = Site()
    site.job(8, at_s=1.0, run_s=99.5)
    site.job(8, at_s=50.0)
    assert starts(site.run(200.0)) == [1.0, 100.5]


def test_a_blocked_head_closes_the_partition() -> None:
    """The second fits on free nodes, and waits for backfill: it would be over in time."""
    site = Site()
    site.job(4, at_s=1.0, limit_s=6000.0, run_s=6000.0)
    site.job(8, at_s=6.0, priority=9.0)
    site.job(4, at_s=9.0)
    assert starts(site.run(100.0)) == [1.0, None, 20.0]
    assert [job.by_backfill for job in site.machine.jobs] == [False, False, True]


def test_priority_comes_before_age() -> None:
    site = Site()
    site.job(8, at_s=1.0, run_s=100.0)
    site.job(8, at_s=2.0, priority=1.0, run_s=50.0)
    site.job(8, at_s=3.0, priority=5.0, run_s=50.0)
    assert starts(site.run(200.0)) == [1.0, 151.0, 101.0]


def test_a_limit_of_its_account_holds_nobody_else_up() -> None:
    site = Site()
    site.job(8, at_s=1.0, priority=9.0, held_by="MaxNodePerAccount")
    site.job(8, at_s=2.0)
    assert starts(site.run(60.0)) == [None, 4.0]  # a pass for the first was at 1 s


def test_a_pass_looks_at_so_many_jobs() -> None:
    site = Site(settings={"default_queue_depth": 2, "sched_interval_s": 1e6, "first_cycle_s": 1e6})
    for _ in range(4):
        site.job(1, at_s=1.0)
    assert starts(site.run(60.0)) == [1.0, 1.0, None, None]


# ---- backfill --------------------------------------------------------------------------------


def blocked_head(**settings: Any) -> Site:
    """Four of eight nodes are in use, the head wants all."""
    site = Site(settings=settings)
    site.job(4, at_s=0.0, limit_s=1800.0, run_s=1800.0)
    site.job(8, at_s=1.0, priority=9.0)
    return site


def test_the_next_cycle_begins_an_interval_after_the_end_of_this_one() -> None:
    site = blocked_head(bf_interval_s=30.0, bf_duration_s=10.0, first_cycle_s=20.0)
    site.run(150.0)
    assert [round(opening.began_s, 3) for opening in site.backfill.openings] == [20.0, 60.0, 100.0]


def test_who_would_delay_the_head_does_not_start() -> None:
    """The head is planned for 1800 s: who ends in that slot is too late."""
    site = blocked_head()
    site.job(2, at_s=5.0, limit_s=1800.0)
    site.job(2, at_s=5.0, limit_s=1740.0)
    assert starts(site.run(100.0)) == [0.0, None, None, 20.0]
    assert site.machine.jobs[1].planned_s == 1800.0


def test_the_head_starts_when_those_before_it_end_early() -> None:
    site = blocked_head()
    site.specs[0] = JobSpec(number=1, submit_s=0.0, n_nodes=4, limit_s=1800.0, run_s=70.0)
    assert starts(site.run(100.0)) == [0.0, 70.0]


def test_a_cycle_comes_to_the_end_of_its_queue_at_its_end() -> None:
    """Four slices of 2.5 s; who was submitted after the begin waits for the next cycle."""
    site = blocked_head(bf_duration_s=10.0)
    for _ in range(3):
        site.job(1, at_s=2.0, limit_s=600.0)
    site.job(1, at_s=21.0, limit_s=600.0)
    assert starts(site.run(100.0))[2:] == [22.5, 25.0, 27.5, pytest.approx(60.0, abs=10.0)]
    assert (site.machine.jobs[-1].start_s or 0.0) >= 60.0


def test_only_so_many_jobs_are_tested() -> None:
    site = blocked_head(bf_max_job_test=2)
    site.job(1, at_s=2.0)
    site.job(1, at_s=2.0)
    assert starts(site.run(40.0))[2:] == [20.0, None]


def test_only_the_next_tasks_of_an_array_are_planned() -> None:
    site = blocked_head(bf_max_job_array_resv=2)
    for _ in range(4):
        site.job(1, at_s=2.0, array=3, limit_s=1200.0)
    assert starts(site.run(49.0))[2:] == [20.0, 20.0, None, None]


# ---- preemption ------------------------------------------------------------------------------


def test_the_main_scheduler_preempts_and_starts() -> None:
    """+0.05 to 0.15 s measured."""
    site = Site()
    site.pilots(*range(8), at_s=1.0)
    site.job(2, at_s=10.0)
    assert starts(site.run(60.0)) == [10.0 + PREEMPT_S]
    assert site.machine.n_preempted == 2


def test_idle_nodes_come_first() -> None:
    site = Site()
    site.pilots(0, 1, 2, 3, at_s=1.0)
    site.job(3, at_s=10.0)
    site.job(3, at_s=20.0)
    site.run(60.0)
    assert [job.nodes & 0b1111 for job in site.machine.jobs] == [0, 0b0011]


def backfill_beside_pilots(*, gone_at_s: float | None = None, knows_all: bool = False) -> Site:
    """Four idle nodes with pilots behind a blocked head, and a job that only backfill starts."""
    site = Site(knows_all=knows_all)
    site.job(4, at_s=0.0, limit_s=3600.0, run_s=3600.0)
    site.pilots(4, 5, 6, 7, at_s=1.0)
    site.job(8, at_s=8.0, priority=9.0)
    site.job(4, at_s=12.0, limit_s=300.0)
    if gone_at_s is not None:
        site.machine.at(
            gone_at_s, lambda: site.machine.preempt(site.machine.preemptable_on(0b1111_0000))
        )
    return site


def test_who_backfill_preempts_for_starts_a_cycle_later() -> None:
    """+30.0 s in 5 of 5 runs with bf_interval=30."""
    site = backfill_beside_pilots()
    assert starts(site.run(100.0))[2] == 50.5  # the cycle of 20 s, its half second, and 30 s
    assert [(lost.cycle_s, lost.was_preempting, lost.was_known) for lost in site.backfill.lost] == [
        (20.0, True, False)
    ]


def test_a_lost_cycle_was_avoidable_if_it_was_known() -> None:
    site = backfill_beside_pilots(knows_all=True)
    site.run(100.0)
    assert [lost.was_known for lost in site.backfill.lost] == [True]


def test_who_finds_the_nodes_free_loses_nothing() -> None:
    """0 in 6 of 6 runs."""
    site = backfill_beside_pilots(gone_at_s=12.1)
    assert starts(site.run(100.0))[2] == 20.0
    assert site.backfill.lost == []


def test_nodes_that_go_while_a_long_cycle_runs_are_in_time() -> None:
    site = backfill_beside_pilots(gone_at_s=21.0)
    site.machine.settings = SchedulerSettings(n_nodes=8, bf_duration_s=10.0)
    assert starts(site.run(100.0))[2] == 22.5  # the second slice
    assert site.backfill.lost == []


def test_a_pilot_starts_where_it_fits_the_plan_and_after_everybody() -> None:
    site = blocked_head()
    site.pilots(4, limit_s=1800.0)
    site.pilots(5, limit_s=1740.0)
    site.run(60.0)
    pilots = list(site.machine.preemptable.values())
    assert [(p.start_s, p.limit_s) for p in pilots] == [(None, 1800.0), (20.5, 1740.0)]


def test_an_immediate_job_is_refused_where_a_pilot_is_in_its_way() -> None:
    """And the pilot is cancelled for nothing (measured)."""
    site = Site(n_nodes=1)
    site.pilots(0, at_s=1.0)
    site.job(1, at_s=10.0, kind="immediate")
    site.job(1, at_s=30.0, kind="immediate")
    site.run(60.0)
    assert [(job.start_s, job.is_refused) for job in site.machine.jobs] == [
        (None, True),
        (30.0, False),
    ]


# ---- maintenance -------------------------------------------------------------------------------


def test_nobody_runs_into_a_maintenance() -> None:
    closed = Maintenance(start_s=1000.0, end_s=2000.0, nodes=0b1111_0000)
    site = Site(maintenance=(closed,))
    site.job(8, at_s=1.0, limit_s=900.0, run_s=100.0)  # over before it
    site.job(8, at_s=200.0, limit_s=900.0, run_s=100.0)  # would not be
    site.job(4, at_s=210.0, limit_s=900.0, run_s=50.0)  # on the other nodes
    site.run(3000.0)
    assert starts(site.machine.jobs) == [1.0, 2000.0, 233.5]
    assert site.machine.jobs[2].nodes == 0b1111


@pytest.mark.parametrize(("end_cost_s", "start_s"), [(0.0, 12.0), (15.0, 25.0)])
def test_the_node_of_a_pilot_that_has_left_is_usable_when_its_epilog_has_ended(
    end_cost_s: float, start_s: float
) -> None:
    """It leaves at 10 s; the tick for a job of 11.5 s comes at 12 s."""
    machine = Machine(SchedulerSettings(n_nodes=1, first_cycle_s=100.0, end_cost_s=end_cost_s))
    MainScheduler(machine)
    mine = Preemptable(name="p", limit_s=600.0)
    machine.submit_preemptable(mine)
    machine.load((JobSpec(number=1, submit_s=11.5, n_nodes=1, limit_s=600.0, run_s=60.0),))
    machine.run(10.0)
    assert mine.start_s is not None
    machine.cancel_preemptable(mine)
    machine.run(24.9)
    assert machine.held == 0
    assert machine.completing == (1 if end_cost_s else 0)
    machine.run(90.0)
    (job,) = machine.jobs
    assert job.start_s == start_s


def test_who_preempts_starts_when_the_epilog_has_ended() -> None:
    def start_s(end_cost_s: float) -> float:
        machine = Machine(SchedulerSettings(n_nodes=1, first_cycle_s=100.0, end_cost_s=end_cost_s))
        MainScheduler(machine)
        machine.submit_preemptable(Preemptable(name="p", limit_s=600.0))
        machine.load((JobSpec(number=1, submit_s=11.5, n_nodes=1, limit_s=600.0, run_s=60.0),))
        machine.run(90.0)
        assert machine.n_preempted == 1
        (job,) = machine.jobs
        assert job.start_s is not None
        return job.start_s

    assert start_s(15.0) - start_s(0.0) == pytest.approx(15.0)


def test_a_job_that_depends_on_others_is_queued_when_the_last_has_ended() -> None:
    site = Site()
    site.job(1, run_s=50.0)
    site.job(1, run_s=80.0)
    site.job(1, at_s=5.0)
    first, second, third = site.specs
    site.specs = [first, second, dataclasses.replace(third, after=(1, 2))]
    jobs = site.run(79.0)
    assert site.machine.pending == []
    site.machine.run(200.0)
    assert jobs[2].start_s == 80.0
