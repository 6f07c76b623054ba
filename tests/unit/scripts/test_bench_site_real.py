"""What ``bench_site --validate`` reads of a real Slurm, and how it compares the simulated one.

The log is of the lines that slurmctld 22.05 writes.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from _bench.real_slurm import slurm_log
from _bench.real_slurm.slurm_log import LoggedStart
from _bench.site import real, real_runs, validate
from _bench.site.real import NotedJob, PreemptableRun, RealRun
from _bench.waiting import BenchError

from bftrainer.lab.site.machine import JobSpec
from bftrainer.lab.site.scheduler import MainScheduler
from bftrainer.lab.site.sharing import NodeCapacity, Share

LOG = """\
[2026-11-29T10:09:01.000] _slurm_rpc_submit_batch_job: JobId=1 InitPrio=1 usec=701
[2026-11-29T10:09:02.000] debug:  sched: Running job scheduler for default depth.
[2026-11-29T10:09:02.001] sched: Allocate JobId=1 NodeList=n[1-2] #CPUs=32 Partition=batch
[2026-11-29T10:09:03.000] _slurm_rpc_submit_batch_job: JobId=2 InitPrio=1 usec=701
[2026-11-29T10:09:04.000] _slurm_rpc_submit_batch_job: JobId=3 InitPrio=1 usec=701
[2026-11-29T10:09:05.000] debug:  sched: Running job scheduler for full queue.
[2026-11-29T10:09:06.500] debug:  sched/backfill: _attempt_backfill: beginning
[2026-11-29T10:09:06.502] sched/backfill: _start_job: Started JobId=2_0(4) in batch on n3
[2026-11-29T10:09:06.503] sched/backfill: _start_job: Started JobId=2_1(2) in batch on n3
[2026-11-29T10:09:07.000] _job_complete: JobId=1 WEXITSTATUS 0
[2026-11-29T10:09:07.001] _job_complete: JobId=1 done
[2026-11-29T10:09:08.000] _job_complete: JobId=2_0(4) done
[2026-11-29T10:09:09.000] preempted JobId=2_1(2) has been killed to reclaim resources for JobId=9
[2026-11-29T10:09:09.250] _job_complete: JobId=2_1(2) done
[2026-11-29T10:09:10.000] sched: Allocate JobId=3 NodeList=n1 #CPUs=4 Partition=batch
[2026-11-29T10:09:14.000] _job_complete: JobId=3 done
"""
MINUTE_S = datetime.fromisoformat("2026-11-29T10:09:00").timestamp()
BEGAN_S = MINUTE_S - 60.0  # where a run that begins in this minute has its zero


def test_tasks_of_arrays_are_read_of_the_log_like_jobs() -> None:
    log = slurm_log.read(LOG)
    assert [at_s - MINUTE_S for at_s in log.cycles_s] == [6.5]
    assert [at_s - MINUTE_S for at_s in log.passes_s] == [2.0, 5.0]
    assert [at_s - MINUTE_S for at_s in log.full_passes_s] == [5.0]
    assert {job: at_s - MINUTE_S for job, at_s in log.accepted_s.items()} == {
        "1": 1.0,
        "2": 3.0,
        "3": 4.0,
    }
    assert log.starts["1"].nodes == ("n1", "n2")
    assert log.starts["2_1"] == LoggedStart(
        at_s=log.starts["2_1"].at_s, nodes=("n3",), partition="batch", by_backfill=True
    )
    assert log.starts["2_1"].at_s == pytest.approx(MINUTE_S + 6.503)
    ends_s = {job: round(at_s - MINUTE_S, 3) for job, at_s in log.ends_s.items()}
    assert ends_s == {"1": 7.001, "2_0": 8.0, "2_1": 9.0, "3": 14.0}  # 2_1: when it was cancelled


def noted(job_id: str, share: Share | None, after: str = "") -> NotedJob:
    """Return a job as it noted itself: a tenth of a second later than slurmctld."""
    log = slurm_log.read(LOG)
    return NotedJob(
        job_id=job_id,
        spec=JobSpec(number=0, submit_s=0.0, n_nodes=1, limit_s=60.0, run_s=0.0, share=share),
        submitted_s=log.accepted_s[job_id[0]] - 0.1,
        started_s=log.starts[job_id].at_s + 0.1,
        ended_s=log.ends_s[job_id] + 0.1,
        nodes=log.starts[job_id].nodes,
        after=after,
    )


SHARE = Share(cpus=2, gpus=1)
NODE = NodeCapacity(cpus=4, gpus=(("", 2),))


def logged_run() -> RealRun:
    """Return the run of the log; its last job waits for the array."""
    return RealRun.of(
        [noted("3", SHARE, "2"), noted("1", None), noted("2_0", SHARE), noted("2_1", SHARE)],
        slurm_log.read(LOG),
        MINUTE_S + 0.5,
        name="GPUs, seed 1",
        kind="GPUs",
        n_nodes=3,
        capacities=(NODE,) * 3,
    )


def test_a_run_has_slurmctlds_times_from_the_minute_before_its_begin() -> None:
    run = logged_run()
    assert [round(spec.submit_s, 3) for spec in run.jobs] == [61.0, 63.0, 63.0, 64.0]
    assert [round(spec.run_s, 3) for spec in run.jobs] == [5.0, 1.498, 2.497, 4.0]
    assert [spec.array for spec in run.jobs] == [0, 2, 2, 0]
    assert {n: round(at_s, 3) for n, at_s in run.starts_s.items()} == {
        1: 62.001,
        2: 66.502,
        3: 66.503,
        4: 70.0,
    }
    assert run.nodes == {1: 0b011, 2: 0b100, 3: 0b100, 4: 0b001}
    assert run.by_backfill == {2, 3}
    # The last job could start when the last task of the array had ended.
    assert run.eligible_s == {4: pytest.approx(69.0)}
    assert [round(run.ready_s(spec), 3) for spec in run.jobs] == [61.0, 63.0, 63.0, 69.0]


def test_what_is_not_in_the_log_is_as_the_job_noted_it() -> None:
    empty = slurm_log.read("")
    run = RealRun.of([noted("1", None)], empty, MINUTE_S, name="", kind="whole nodes", n_nodes=3)
    assert (run.jobs[0].submit_s, run.starts_s[1]) == pytest.approx((60.9, 62.101))
    assert run.jobs[0].run_s == pytest.approx(5.0)
    assert run.nodes == {1: 0b011}


def test_a_run_is_kept_and_read_again(tmp_path: Path) -> None:
    run = logged_run()
    path = real.keep(run, tmp_path / "new")
    assert path.name == "GPUs-seed-1.json"
    assert real.kept(path.parent) == [run]
    mine = PreemptableRun(name="8", share=None, node=1, start_s=1.0, end_s=None, limit_s=2.0)
    real.keep(replace(run, preemptable=(mine,)), path.parent)
    assert real.kept(path.parent) == [replace(run, preemptable=(mine,))]
    path.write_text("{}")
    with pytest.raises(BenchError, match="no stored run"):
        real.kept(path.parent)
    with pytest.raises(BenchError, match="no run is stored"):
        real.kept(tmp_path)


# ---- the comparison --------------------------------------------------------------------------


ALL_GPUS = Share(cpus=4, gpus=2)
NOBODY_HAS_IT = Share(gpus=1, gpu_type="a100")


def spec(number: int, submit_s: float, run_s: float, limit_s: float, share: Share) -> JobSpec:
    """Return a job of one node."""
    return JobSpec(
        number=number, submit_s=submit_s, n_nodes=1, limit_s=limit_s, run_s=run_s, share=share
    )


# Two nodes of 4 CPUs and 2 GPUs; cycles of backfill at 100 and at 130 s, the last pass before at
# 99 s. Job 2 has the second node all the time; the times behind the jobs are real starts.
COMPARED = RealRun(
    name="some",
    kind="GPUs",
    n_nodes=2,
    capacities=(NODE,) * 2,
    jobs=(
        spec(1, 10.0, 97.0, 1000.0, SHARE),  # 13 s, on half of the first node
        spec(2, 50.0, 500.0, 1000.0, ALL_GPUS),  # 53 s
        spec(3, 60.0, 15.0, 120.0, ALL_GPUS),  # 110.5 s, when job 1 has ended
        spec(4, 60.5, 20.0, 120.0, SHARE),  # 126.5 s: it waits for job 1, and then for job 3
        spec(5, 61.0, 5.0, 120.0, SHARE),  # 130.001 s, but there was room beside job 1
        spec(6, 62.0, 20.0, 120.0, NOBODY_HAS_IT),  # 126.6 s, as if somebody had
    ),
    eligible_s={4: 110.0},
    starts_s={1: 13.0, 2: 53.0, 3: 110.5, 4: 126.5, 5: 130.001, 6: 126.6},
    nodes={1: 0b01, 2: 0b10, 3: 0b01, 4: 0b01, 5: 0b01, 6: 0b10},
    by_backfill=frozenset({5}),
    cycles_s=(100.0, 130.0),
    passes_s=(99.0,),
    full_passes_s=(),
)


def test_a_job_is_the_same_if_it_starts_between_the_same_two_cycles() -> None:
    beside = validate.compare(COMPARED)
    assert (beside.n_jobs, beside.n_same, beside.n_same_nodes, beside.by_backfill) == (6, 4, 4, 1)
    early, late = beside.apart
    assert (early.number, early.share, early.real_s, early.by_backfill) == (5, SHARE, 130.001, True)
    assert (early.simulated_s, early.simulated_nodes) == (100.0, (0,))
    assert (early.cycle_s, early.real_nodes, early.ready_s) == (130.0, (0,), 61.0)
    assert (late.number, late.cycle_s, late.simulated_s, late.planned_s) == (6, 100.0, None, None)
    (target,) = validate.targets([beside])
    assert target.measured == pytest.approx(100 * 4 / 6)
    assert not target.is_met


def test_a_job_that_waits_for_another_is_not_in_the_queue_before_that_has_ended() -> None:
    """Without its dependency job 4 would start at 100 s beside job 1, as job 5 does."""
    machine = validate.machine_at(COMPARED, 100.0)
    machine.run(130.0)
    starts_s = {job.spec.number: job.start_s for job in machine.jobs}
    assert starts_s[5] == 100.0
    assert starts_s[3] == pytest.approx(110.0, abs=1.1)  # at the tick after the end of job 1
    assert starts_s[4] == pytest.approx(125.0, abs=1.1)
    machine = validate.machine_at(replace(COMPARED, eligible_s={}), 100.0)
    machine.run(130.0)
    assert {job.spec.number: job.start_s for job in machine.jobs}[4] == 100.0


def test_a_pass_that_an_end_called_is_no_tick() -> None:
    """Ticks are at 99, 102.006 and 105.012 s; job 1 ends at 110 s, and a pass follows at once."""
    passes_s = (99.0, 102.006, 105.012, 110.045, 111.024)
    run = replace(COMPARED, jobs=COMPARED.jobs[:3], passes_s=passes_s, eligible_s={})
    assert validate.ticks_of(run) == [99.0, 102.006, 105.012, 111.024]
    machine = validate.machine_at(run, 106.0)
    # 2 ms a second: the tick of 105.012 s is at 106.024 in the middle of the cycle.
    assert machine.settings.tick_phase_s == pytest.approx(0.012 + 0.002 * 6.0, abs=1e-4)
    machine.run(110.1)
    assert [job.start_s for job in machine.jobs] == [13.0, 53.0, 110.0]
    later = replace(run, passes_s=(99.0, 102.006, 105.012, 111.024))
    machine = validate.machine_at(later, 106.0)
    machine.run(112.0)
    assert [job.start_s for job in machine.jobs] == pytest.approx([13.0, 53.0, 110.024], abs=1e-4)


def test_a_pass_that_the_end_of_a_preemptable_job_called_is_no_tick() -> None:
    """Ticks as above. One preempted job ends at 102.04 s, and slurmctld makes three passes then."""
    preempted = PreemptableRun(
        name="8", share=SHARE, node=0b01, start_s=20.0, end_s=102.04, limit_s=3600.0
    )
    passes_s = (99.0, 102.006, 102.041, 102.043, 102.043, 105.012)
    run = replace(COMPARED, passes_s=passes_s, preemptable=(preempted,))
    assert validate.ticks_of(run) == [99.0, 102.006, 105.012]


def test_two_passes_at_one_instant_do_not_end_the_comparison() -> None:
    """slurmctld writes milliseconds, and a job may ask for a pass right after another one."""
    run = replace(COMPARED, passes_s=(96.0, 96.0, 98.004, 98.004))
    assert validate.machine_at(run, 100.0).settings.tick_phase_s == pytest.approx(
        0.004 + 0.002 * 7.0, abs=1e-4
    )


def test_passes_over_the_whole_queue_are_where_they_were() -> None:
    run = replace(COMPARED, full_passes_s=(99.0, 117.5), passes_s=(99.0, 117.5))
    assert validate.machine_at(run, 100.0).settings.sched_interval_s == 117.5
    assert validate.machine_at(run, 120.0).settings.sched_interval_s == float("inf")


def test_preemptable_jobs_run_where_they_really_did_until_an_ordinary_one_comes() -> None:
    """One has half of the first node from the begin on, the other one comes at 105 s."""
    mine = PreemptableRun(
        name="8", share=SHARE, node=0b01, start_s=20.0, end_s=200.0, limit_s=3600.0
    )
    late = replace(mine, name="9", start_s=105.0)
    gone = replace(mine, name="7", end_s=100.0)
    too_much = replace(late, name="10")  # by then there is no room for a third one
    run = replace(
        COMPARED,
        jobs=(COMPARED.jobs[1], replace(COMPARED.jobs[2], submit_s=110.5)),
        preemptable=(mine, late, gone, too_much),
        eligible_s={},
    )
    machine = validate.machine_at(run, 100.0)
    machine.run(105.5)
    assert set(machine.preemptable) == {"8", "9"}
    machine.run(130.0)
    (_, head) = machine.jobs
    assert not machine.preemptable
    assert head.start_s == pytest.approx(111.1, abs=1.1)  # a tick, and 0.1 s to end them
    assert validate.compare(run).n_same == 2


def test_preemptable_jobs_are_those_of_their_partition() -> None:
    line = "[2026-11-29T10:09:02.001] sched: Allocate JobId=8 NodeList=n2 #CPUs=4 Partition=bf\n"
    log = slurm_log.read(LOG + line)
    (mine,) = real.preemptable_of(log, MINUTE_S + 0.5, SHARE, 3600.0)
    assert (mine.name, mine.node, mine.end_s) == ("8", 0b010, None)
    assert mine.start_s == pytest.approx(62.001)


def test_a_job_that_is_submitted_later_waits_for_another_all_the_same() -> None:
    jobs = (COMPARED.jobs[0], COMPARED.jobs[1], replace(COMPARED.jobs[3], submit_s=103.0))
    machine = validate.machine_at(replace(COMPARED, jobs=jobs), 100.0)
    machine.run(130.0)
    starts_s = [job.start_s for job in machine.jobs]
    assert starts_s == pytest.approx([13.0, 53.0, 111.0], abs=1.1)  # there was room at 103 s


def test_an_end_since_the_last_pass_calls_the_next() -> None:
    """Job 1 ends between the last pass at 99 s and the cycle at 100 s; nobody is submitted."""
    ended = replace(COMPARED.jobs[0], run_s=86.5)
    run = replace(COMPARED, jobs=(ended, *COMPARED.jobs[1:3]), eligible_s={})
    machine = validate.machine_at(run, 100.0)
    machine.run(103.0)
    assert isinstance(machine.scheduler, MainScheduler)
    assert [wait.at_s for wait in machine.scheduler.waits] == pytest.approx([102.0], abs=0.1)


def test_each_kind_of_run_has_a_target() -> None:
    beside = validate.compare(COMPARED)
    whole = replace(beside, kind="whole nodes", n_same=6, apart=())
    first, second = validate.targets([whole, beside, whole])
    assert (first.measured, first.is_met, first.name[-11:]) == (100.0, True, "whole nodes")
    assert first.note.startswith("12 jobs")
    assert second.name.endswith("GPUs")


# ---- the jobs that are played ----------------------------------------------------------------


def test_some_jobs_that_share_nodes_have_no_gpu_and_some_ask_for_a_type() -> None:
    plain = real_runs.shared_items(2, 240.0, has_types=False)
    typed = real_runs.shared_items(2, 240.0, has_types=True)
    assert plain == real_runs.shared_items(2, 240.0, has_types=False)
    assert len(plain) == len(typed) > 60
    assert not any(item.gpu_type for item in plain)
    assert {item.gpu_type for item in typed} == {"", *real_runs.TYPES}
    for items in (plain, typed):
        shares = [item for item in items if item.share]
        without = [item for item in shares if not item.gpus]
        assert 0 < len(without) < 0.25 * len(shares)
        assert all(item.cpus and item.memory_mb and not item.gpu_type for item in without)
