"""What ``bench_site --validate`` reads of a real Slurm, and how it compares that with the simulated.

The log is of the lines that slurmctld 22.05 writes.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest
from _bench.site import real, real_runs, slurm_log, validate
from _bench.site.real import NotedJob, RealRun
from _bench.site.slurm_log import LoggedStart
from _bench.waiting import BenchError

from bftrainer.lab.site.machine import JobSpec
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
        at_s=pytest.approx(MINUTE_S + 6.503), nodes=("n3",), partition="batch", by_backfill=True
    )
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
    path.write_text("{}")
    with pytest.raises(BenchError, match="no stored run"):
        real.kept(path.parent)
    with pytest.raises(BenchError, match="no run is stored"):
        real.kept(tmp_path)


# ---- the comparison --------------------------------------------------------------------------


def spec(number: int, submit_s: float, run_s: float, share: Share | None, n: int = 1) -> JobSpec:
    """Return a job with a limit of two minutes."""
    return JobSpec(
        number=number, submit_s=submit_s, n_nodes=n, limit_s=120.0, run_s=run_s, share=share
    )


def run_of(*jobs: JobSpec, starts_s: dict[int, float], nodes: dict[int, int]) -> RealRun:
    """Return a run on two nodes, with a cycle at 100 and at 130 s and passes on the way."""
    return RealRun(
        name="some",
        kind="GPUs",
        n_nodes=2,
        capacities=(NODE,) * 2,
        jobs=jobs,
        starts_s=starts_s,
        nodes=nodes,
        cycles_s=(100.0, 130.0),
        passes_s=(99.0, 104.0),
        full_passes_s=(),
    )


ALL_GPUS = Share(cpus=4, gpus=2)


def test_jobs_that_start_in_the_same_cycle_are_the_same() -> None:
    """Two jobs fill the first node, and the third one the second. Backfill starts the fourth.

    The head needs both nodes. Behind it a small job fits until the first two are over.
    """
    run = run_of(
        spec(1, 10.0, 200.0, SHARE),
        spec(2, 10.0, 85.0, SHARE),
        spec(3, 50.0, 200.0, ALL_GPUS),
        spec(4, 60.0, 10.0, None, n=2),
        spec(5, 61.0, 10.0, SHARE),
        starts_s={1: 13.0, 2: 13.0, 3: 53.0, 4: 260.0, 5: 130.001},
        nodes={1: 0b01, 2: 0b01, 3: 0b10, 4: 0b11, 5: 0b01},
    )
    beside = validate.compare(run)
    assert beside.n_jobs == 5
    late = {apart.number: apart for apart in beside.apart}
    print(late)
