"""Workloads, oracle and verdicts of ``bench_site.py``."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import replace

import pytest
from _bench.site import measures, report, scenarios

from bftrainer.decide.limits import _reason
from bftrainer.decide.pool import KEPT_FREE
from bftrainer.lab.site import workload
from bftrainer.lab.site.arms import (
    TICK_S,
    ArmOutcome,
    Harvest,
    Oracle,
    SharedStage,
    alone,
    idle_spans,
    play,
    waiting_s,
)
from bftrainer.lab.site.losses import (
    BACKED_OFF,
    HELD,
    HELD_OFF,
    LATE,
    PLANNED,
    QUEUED,
    RESERVE,
    UNASKED,
    UNSEEN,
    Causes,
    cause_of,
)
from bftrainer.lab.site.machine import (
    JobSpec,
    Machine,
    Maintenance,
    Neighbour,
    PreemptableUsers,
    SchedulerSettings,
    SiteJob,
)
from bftrainer.lab.site.scheduler import Backfill, BlockedSince, MainScheduler, Opening
from bftrainer.lab.site.workload import Demand, generate
from bftrainer.model.decision import Settings

# ---- jobs ------------------------------------------------------------------------------------


def test_the_same_demand_gives_the_same_jobs() -> None:
    demand = Demand(n_nodes=64, span_s=36_000.0, load=0.9, seed=3)
    jobs = generate(demand)
    assert jobs == generate(demand) != generate(replace(demand, seed=4))
    assert [job.submit_s for job in jobs] == sorted(job.submit_s for job in jobs)
    assert all(0 < job.run_s <= job.limit_s and 1 <= job.n_nodes <= 32 for job in jobs)
    assert len({job.number for job in jobs}) == len(jobs)


def test_the_load_is_what_was_asked_for() -> None:
    jobs = generate(Demand(n_nodes=64, span_s=86_400.0, load=0.9, seed=1))
    late = [job for job in jobs if job.submit_s > 0.0]
    assert sum(j.n_nodes * j.run_s for j in late) / (64 * 86_400.0) == pytest.approx(0.9, rel=0.1)


LOG = """\
; MaxProcs: 8
1 100 5 600 8 -1 -1 8 1200 -1 1 7 1 1 1 1 -1 -1
2 200 0 300 2 -1 -1 2 -1 -1 1 8 1 1 1 1 -1 -1
3 300 0 -1 2 -1 -1 2 60 -1 0 8 1 1 1 1 -1 -1
"""


def test_a_log_is_squeezed_until_its_load_is_right() -> None:
    first, second = workload.read(LOG, n_nodes=16, load=1.0, span_s=1e9)
    assert (first.n_nodes, first.limit_s, first.run_s, first.user) == (8, 1200.0, 600.0, "u7")
    assert (second.n_nodes, second.limit_s, second.run_s) == (2, 300.0, 300.0)
    work = 8 * 600.0 + 2 * 300.0
    assert second.submit_s == pytest.approx(work / 16)
    assert workload.read(LOG, n_nodes=16, load=1.0, span_s=1.0) == (first,)


@pytest.mark.parametrize("text", ["", "; no job\n", "1 2 3\n", "[]"])
def test_what_is_no_log_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        workload.read(text, n_nodes=16, load=1.0, span_s=1.0)


# ---- oracle ----------------------------------------------------------------------------------


def ran(nodes: int, start_s: float, end_s: float | None) -> SiteJob:
    spec = JobSpec(number=1, submit_s=0.0, n_nodes=nodes.bit_count(), limit_s=1e6, run_s=1e6)
    return SiteJob(spec=spec, nodes=nodes, start_s=start_s, end_s=end_s)


def test_a_node_is_idle_between_jobs() -> None:
    jobs = [ran(0b01, 0.0, 100.0), ran(0b11, 300.0, None)]
    assert idle_spans(jobs, 2, (50.0, 500.0)) == [[(100.0, 300.0)], [(50.0, 300.0)]]
    assert idle_spans(jobs[:1], 1, (50.0, 500.0)) == [[(100.0, 500.0)]]


def test_a_node_that_is_closed_for_maintenance_is_nobodys() -> None:
    closed = Maintenance(start_s=200.0, end_s=300.0, nodes=0b1)
    spans = idle_spans([], 2, (50.0, 500.0), [closed])
    assert spans == [[(50.0, 200.0), (300.0, 500.0)], [(50.0, 500.0)]]


def opening(began_s: float, *planned: tuple[float, int]) -> Opening:
    return Opening(began_s=began_s, at_s=began_s + 5.0, planned=planned)


def test_while_somebody_waits_the_oracle_waits_for_the_end_of_a_cycle() -> None:
    oracle = Oracle(
        [opening(90.0), opening(110.0), opening(140.0)], [BlockedSince(at_s=0.0, is_blocked=True)]
    )
    assert oracle.node_s([[(100.0, 300.0)]], 0) == 300.0 - 115.0


def test_it_waits_for_a_plan_that_leaves_a_minute() -> None:
    planned = [opening(110.0, (170.0, 1)), opening(140.0, (210.0, 1)), opening(220.0)]
    oracle = Oracle(planned, [BlockedSince(at_s=0.0, is_blocked=True)])
    # From 145 to the plan at 210; the next job comes at 300, so again from the cycle of 220 s.
    assert oracle.node_s([[(100.0, 300.0)]], 0) == (210.0 - 145.0) + (300.0 - 225.0)


def test_while_nobody_waits_the_main_scheduler_is_enough() -> None:
    oracle = Oracle(
        [opening(200.0)],
        [BlockedSince(at_s=0.0, is_blocked=True), BlockedSince(at_s=120.0, is_blocked=False)],
    )
    assert oracle.node_s([[(100.0, 300.0)]], 0) == 300.0 - (120.0 + TICK_S)


def test_the_reserve_is_left_alone() -> None:
    oracle = Oracle([], [BlockedSince(at_s=0.0, is_blocked=False)])
    spans = [[(100.0, 300.0)], [(200.0, 300.0)]]
    assert oracle.node_s(spans, 0) == 198.0 + 98.0
    assert oracle.node_s(spans, 1) == 100.0  # one of two, while there are two


def test_what_is_not_held_has_a_cause() -> None:
    """A cycle from 90 to 100 s could have started a pilot on each node."""
    causes = Causes()
    causes.note(50.0, 0, HELD_OFF)
    for node, asked_s in ((0, 95.0), (1, 80.0)):
        causes.note(asked_s, node, QUEUED)
        causes.note(130.0, node, HELD)
    found = causes.add_up({0: [(100.0, 150.0), (180.0, 190.0)], 1: [(100.0, 150.0)]}, {100.0: 90.0})
    assert found == {f"{LATE}: {HELD_OFF}": 30.0, QUEUED: 30.0, HELD: 50.0}
    reasons = (
        KEPT_FREE,
        "It is allocated.",
        "It is left to the queue until then.",
        "",
        "Job 7 ...",
    )
    assert [cause_of(why) for why in reasons] == [RESERVE, UNSEEN, HELD_OFF, UNASKED, PLANNED]


def test_a_node_that_the_back_off_leaves_free_has_a_cause_of_its_own() -> None:
    """It counted as one whose planned use is near."""
    assert cause_of(_reason(replace(Settings(), max_held_nodes=3), 3)) == BACKED_OFF


# ---- measures --------------------------------------------------------------------------------


def outcome(wait_s: float, *, starts: int = 1000, avoidable: int = 0) -> ArmOutcome:
    harvest = Harvest(
        held_s=80.0, oracle_s=100.0, idle_s=110.0, submissions=6000, releases=0, pilots=6,
        pilots_trained=4, decisions=10, decide_s=0.05, causes_s={HELD: 80.0, UNASKED: 20.0},
    )  # fmt: skip
    return ArmOutcome(
        wait_s=wait_s,
        blocks=((1000.0, 10.0 * wait_s), (3000.0, 3000.0)),
        refused=0,
        backfill_starts=starts,
        cycles=9,
        lost=avoidable + 2,
        lost_to_neighbour=avoidable,
        avoidable=avoidable,
        preempted=0,
        cpu_s=1.0,
        harvest=harvest,
    )


def test_added_wait_is_a_share_of_what_was_waited() -> None:
    found = measures.added_wait([(100.0, 102.0), (300.0, 298.0), (100.0, 105.0)])
    assert found.mean == pytest.approx(0.01)
    # What the blocks differ from that: 1, -5 and 4.
    assert found.high - found.mean == pytest.approx(1.96 * math.sqrt(42.0 * 1.5) / 500.0)
    assert found.mean - found.low == pytest.approx(found.high - found.mean)
    assert measures.added_wait([(100.0, 102.0)]).high == math.inf


def test_a_cell_is_judged_by_all_its_seeds() -> None:
    cell = workload.Cell(bf_interval_s=30.0, bf_duration_s=30.0, n_nodes=100, hours=2.0)
    runs = [
        {"without": outcome(100.0), "bftrainer": outcome(101.0, avoidable=3)},
        {"without": outcome(100.0), "bftrainer": outcome(99.5, avoidable=8)},
    ]
    found = measures.judge(cell, runs)  # type: ignore[arg-type]
    assert (found.starts, found.avoidable, found.of_oracle) == (2000, 11, 0.8)
    assert found.blocks[::2] == ((1000.0, 1010.0), (1000.0, 995.0))
    assert found.submissions_per_node_h == 30.0
    assert found.pilots_per_first_step == 1.5
    assert found.lost_per_1000["bftrainer"] == 7.5
    targets = {t.name: t for t in measures.targets([found])}
    lost, held, starts, added = targets.values()
    assert (lost.measured, lost.is_met) == (5.5, False)
    assert (held.limit, held.is_met) == (75.0, True)  # the cycle is as long as the interval
    assert starts.is_met
    assert added.is_met
    assert added.measured == pytest.approx(0.38, abs=0.01)
    stored = json.loads(json.dumps(report.as_values(found)))
    assert stored["harvest"]["causes_s"] == {HELD: 160.0, UNASKED: 40.0}


def test_short_cycles_are_to_reach_more() -> None:
    assert measures.least_harvest(workload.Cell(bf_interval_s=30.0, bf_duration_s=15.0)) == 0.9
    assert measures.least_harvest(workload.Cell(bf_interval_s=30.0, bf_duration_s=16.0)) == 0.75


def test_the_grid_is_the_one_asked_for() -> None:
    durations = [(c.bf_interval_s, c.bf_duration_s) for c in workload.grid()]
    assert durations == [(30.0, 0.5), (30.0, 7.5), (30.0, 15.0), (30.0, 30.0),
                         (120.0, 0.5), (120.0, 30.0), (120.0, 60.0), (120.0, 120.0)]  # fmt: skip
    assert {c.n_nodes for c in workload.grid()} == {500}
    assert (workload.large().n_nodes, workload.large().hours) == (5000, 24.0)


# ---- runs ------------------------------------------------------------------------------------


def small_stage() -> SharedStage:
    """Sixteen nodes of which about twelve are in use."""
    jobs = tuple(
        JobSpec(
            number=k,
            submit_s=45.0 * k,
            n_nodes=1 + 5 * k % 6,
            limit_s=1800.0,
            run_s=60.0 + 37 * k % 180,
        )
        for k in range(1, 70)
    )
    return SharedStage(slurm=SchedulerSettings(n_nodes=16), jobs=jobs, warm_s=900.0, end_s=1800.0)


def test_nobody_beside_the_machine_loses_nobody_a_cycle() -> None:
    found = play(small_stage(), "without")
    assert found.harvest is None
    assert (found.lost_to_neighbour, found.preempted) == (0, 0)
    assert found.wait_s > 0.0


def test_preemptable_jobs_are_preempted() -> None:
    assert play(small_stage(), "preemptable").preempted > 0


def test_a_run_is_the_same_every_time() -> None:
    first, second = (play(small_stage(), "bftrainer") for _ in range(2))
    assert first.harvest is not None
    assert second.harvest is not None
    assert 0.3 * first.harvest.oracle_s < first.harvest.held_s <= first.harvest.idle_s
    assert first.harvest.submissions > 0
    assert (first.wait_s, first.blocks) == (second.wait_s, second.blocks)
    assert first.harvest.held_s == second.harvest.held_s


def test_a_quiet_machine_is_held_and_left_alone() -> None:
    quiet = next(s for s in scenarios.all_scenarios() if s.name == "quiet")
    stage = replace(quiet.stage(), end_s=60.0 + 1800.0)
    target = scenarios.target(quiet, play(stage, "bftrainer"))
    assert target.is_met


def test_where_starting_takes_time_each_pilot_of_a_quiet_machine_trains() -> None:
    quiet = next(s for s in scenarios.all_scenarios() if s.name == "quiet")
    stage = replace(quiet.stage(), end_s=60.0 + 1800.0, settle_s=0.0, poll_s=15.0)
    slow, never = (play(replace(stage, start_s=s), "bftrainer").harvest for s in (60.0, 1e6))
    assert slow is not None
    assert never is not None
    assert slow.pilots_trained == slow.pilots > 0
    assert (never.pilots, never.pilots_trained, never.trained_s) == (slow.pilots, 0, 0.0)


def test_a_copy_without_goes_its_own_way() -> None:
    """The pilot is in the way of the second job, which only backfill can start."""
    machine = Machine(SchedulerSettings(n_nodes=2, first_cycle_s=20.0))
    MainScheduler(machine)
    backfill = Backfill(machine)
    first = JobSpec(number=1, submit_s=0.0, n_nodes=1, limit_s=3600.0, run_s=3600.0)
    head = replace(first, number=2, submit_s=10.0, n_nodes=2, priority=1.0)
    machine.load((first, head, replace(first, number=3, submit_s=12.0, limit_s=600.0)))
    users = PreemptableUsers(machine, 1)
    machine.at(1.0, users.begin)
    machine.run(15.0)
    assert machine.held
    twin = alone(machine, backfill)
    assert (twin.held, twin.preemptable) == (0, {})
    for one in (machine, twin):
        one.run(100.0)
    assert [job.start_s for job in twin.jobs] == [0.0, None, 20.0]
    assert [job.start_s for job in machine.jobs] == [0.0, None, 50.5]
    assert waiting_s(machine, 15.0, 100.0) - waiting_s(twin, 15.0, 100.0) == 30.5
    # 85 s for the second and 35.5 s for the third; the second's count for each of two nodes.
    assert waiting_s(machine, 15.0, 100.0) == 85.0 + 35.5
    assert waiting_s(machine, 15.0, 100.0, times_nodes=True) == 2 * 85.0 + 35.5
    assert machine.neighbour is users


class Restless(Neighbour):
    """Somebody beside a machine who only has events of his own."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        machine.neighbour = self
        self._wake()

    def _wake(self) -> None:
        for n in range(1, 20):
            self._machine.at(self._machine.now_s + 7.0 * n, self._sleep)
        self._machine.at(self._machine.now_s + 11.0, self._wake)

    def _sleep(self) -> None: ...


def test_a_copy_does_what_the_machine_does_where_nobody_disturbs_it() -> None:
    stage = small_stage()
    machine = Machine(stage.slurm)
    MainScheduler(machine)
    backfill = Backfill(machine)
    machine.load(stage.jobs)
    Restless(machine)
    machine.run(1000.0)
    twin = alone(machine, backfill)
    for one in (machine, twin):
        one.run(2500.0)
    assert [job.start_s for job in twin.jobs] == [job.start_s for job in machine.jobs]


def test_a_machine_is_copied_without_iterators() -> None:
    """Those of itertools cannot be copied by Python 3.14; a neighbour is copied with its events."""
    machine = Machine(SchedulerSettings(n_nodes=2))
    machine.at(1.0, PreemptableUsers(machine, 1).begin)
    copies: dict[int, object] = {}
    copy.deepcopy(machine, copies)
    modules = {type(value).__module__ for value in copies.values()}
    assert "bftrainer.lab.site.machine" in modules
    assert "itertools" not in modules
