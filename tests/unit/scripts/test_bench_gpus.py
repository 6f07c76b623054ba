"""What ``bench_gpus`` counts, on runs that are counted by hand, and what it reads of slurmctld."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import bench_gpus
import pytest
from _bench import choosing
from _bench.gpus import arms, measures, predicted, reach
from _bench.gpus.measures import ArmRun, HandOvers, Idle, OrdinaryJob, Pilot
from _bench.real_slurm import slurm_log
from _bench.waiting import BenchError

from bftrainer.lab.site.sharing import NodeCapacity
from slurm_plugins.testcluster.workload import WorkloadItem

LOG = """\
[2026-11-29T07:26:47.035] _slurm_rpc_submit_batch_job: JobId=1 InitPrio=1 usec=428
[2026-11-29T07:26:49.008] debug:  sched/backfill: _attempt_backfill: backfill: beginning
[2026-11-29T07:26:49.010] sched/backfill: _start_job: Started JobId=1 in bf on n1
[2026-11-29T07:26:49.546] _slurm_rpc_submit_batch_job: JobId=2 InitPrio=1 usec=394
[2026-11-29T07:26:50.016] sched: Allocate JobId=2 NodeList=n2 #CPUs=2 Partition=bf
[2026-11-29T07:26:52.056] _slurm_rpc_submit_batch_job: JobId=3 InitPrio=9 usec=342
[2026-11-29T07:26:53.011] sched: Allocate JobId=3 NodeList=n1 #CPUs=2 Partition=batch
[2026-11-29T07:26:53.200] _slurm_rpc_submit_batch_job: JobId=4 InitPrio=1 usec=342
[2026-11-29T07:26:55.012] preempted JobId=1 has been killed to reclaim resources for JobId=3
[2026-11-29T07:26:55.212] _job_complete: JobId=1 WEXITSTATUS 0
[2026-11-29T07:26:55.213] _job_complete: JobId=1 done
[2026-11-29T07:26:58.500] _job_complete: JobId=2 done
"""
START_S = datetime.fromisoformat("2026-11-29T07:26:48").timestamp()


def job(number: int, gpus: int, *spans: float, nodes: tuple[str, ...] = ("n1",)) -> OrdinaryJob:
    submitted_s, started_s, ended_s = spans
    return OrdinaryJob(
        key=(number, 0),
        gpus_per_node=gpus,
        submitted_s=submitted_s,
        started_s=started_s,
        ended_s=ended_s,
        nodes=nodes,
    )


def pilot(node: str, gpus: int, from_s: float, to_s: float, *, preempted: bool = False) -> Pilot:
    return Pilot(node=node, gpus=gpus, started_s=from_s, ended_s=to_s, is_preempted=preempted)


def run_of(*jobs: OrdinaryJob, pilots: tuple[Pilot, ...] = (), seed: int = 1) -> ArmRun:
    return ArmRun(
        arm="some",
        seed=seed,
        nodes=("n1", "n2"),
        gpus_per_node=4,
        span_s=100.0,
        bf_interval_s=5.0,
        jobs=jobs,
        pilots=pilots,
    )


def test_pilots_are_those_of_the_log_and_of_their_partition() -> None:
    log = slurm_log.read(LOG)
    first, second = arms.pilots_of(log, 1, START_S)
    assert (first.node, first.is_preempted) == ("n1", True)
    assert first.ended_s - first.started_s == pytest.approx(6.002)  # preempted, not when it left
    assert (second.node, second.is_preempted) == ("n2", False)
    assert second.ended_s - second.started_s == pytest.approx(8.484)
    assert arms.submitted_since(log, START_S, {"3"}) == 2  # 2 and 4; 1 came before the start


def test_idle_gpus_are_of_free_nodes_or_of_used_ones() -> None:
    # n1: 3 of 4 GPUs used from 20 to 60. n2: free all the time.
    run = run_of(
        job(1, 3, 10.0, 20.0, 60.0),
        pilots=(pilot("n1", 1, 0.0, 50.0), pilot("n2", 4, 90.0, 500.0)),
    )
    assert measures.idle_of(run) == Idle(
        whole_gpu_s=4 * 60.0 + 4 * 100.0,
        leftover_gpu_s=40.0,
        lent_whole_gpu_s=20.0 + 4 * 10.0,
        lent_leftover_gpu_s=30.0,
    )
    assert measures.idle_of(run).lent_share == pytest.approx(90.0 / 680.0)
    full = run_of(job(1, 4, 0.0, 0.0, 100.0, nodes=("n1", "n2")))
    assert math.isnan(measures.idle_of(full).lent_share)


def test_stranded_gpus_are_in_nobodys_reach() -> None:
    # n1: 2 GPUs beside all its CPUs from 20 to 60, then a job with little. n2: one GPU's memory.
    greedy = dataclasses.replace(job(1, 2, 10.0, 20.0, 60.0), cpus=16, memory_mb=8000)
    modest = dataclasses.replace(job(2, 1, 60.0, 70.0, 100.0), cpus=2, memory_mb=1000)
    other = dataclasses.replace(job(3, 1, 0.0, 0.0, 100.0, nodes=("n2",)), cpus=1, memory_mb=15_999)
    run = dataclasses.replace(run_of(greedy, modest, other), cpus_per_node=16, memory_mb=16_000)
    seen = reach.reach_of(run)
    assert seen is not None
    assert seen.idle_gpu_s == 4 * 20.0 + 2 * 40.0 + 4 * 10.0 + 3 * 30.0 + 3 * 100.0
    assert seen.stranded_gpu_s == 2 * 40.0 + 2 * 100.0
    assert sorted(seen.spells_s) == [10.0] + 4 * [20.0] + 3 * [40.0] + [100.0]
    assert seen.reachable_gpu_s(15.0) == 4 * 5.0 + 3 * 25.0 + 85.0
    assert reach.reach_of(run_of(greedy)) is None


def test_pilots_that_left_are_told_apart_by_what_followed() -> None:
    run = run_of(
        job(1, 1, 10.0, 20.0, 30.0),
        pilots=(
            pilot("n1", 1, 0.0, 18.0),  # and a job came 2 s later
            pilot("n1", 1, 0.0, 5.0),  # 15 s later: not for it
            pilot("n2", 1, 0.0, 18.0),  # nobody came
            pilot("n1", 1, 0.0, 19.0, preempted=True),
            pilot("n1", 1, 0.0, 120.0),  # after what is counted
            pilot("n1", 1, 0.0, math.inf),
        ),
    )
    assert measures.hand_overs_of(run) == HandOvers(given_back=1, preempted=1, in_vain=2, gpus=4)


def test_added_waits_are_paired_by_job_and_seeds_count_alike() -> None:
    before = run_of(job(1, 1, 0.0, 1.0, 2.0), job(2, 1, 0.0, 9.0, 10.0))
    after = run_of(job(1, 1, 0.5, 2.5, 3.0), job(2, 1, 0.0, 12.0, 13.0))
    added = measures.added_wait([(before, after)])
    assert added.mean == pytest.approx(2.0)  # 1 and 3
    assert (added.low, added.high) == (1.0, 3.0)
    assert measures.added_wait([(before, after), (before, before)]).mean == pytest.approx(1.0)


def test_a_job_that_starts_most_of_a_cycle_later_lost_it() -> None:
    control = run_of(job(1, 1, 0.0, 3.0, 4.0))
    assert measures.lost_cycles(run_of(job(1, 1, 0.0, 7.1, 8.0)), control) == 1
    assert measures.lost_cycles(run_of(job(1, 1, 0.0, 6.9, 8.0)), control) == 0


def test_the_order_of_starts_is_compared_pair_by_pair() -> None:
    before = run_of(*(job(n, 1, 0.0, 10.0 * n, 99.0) for n in (1, 2, 3)))
    after = run_of(job(1, 1, 0.0, 25.0, 99.0), *before.jobs[1:])
    assert measures.reordered_share(after, before) == pytest.approx(1 / 3)
    assert measures.reordered_share(before, before) == 0.0


def test_a_word_that_chooses_nothing_is_refused() -> None:
    names = ("grid", "blocked head, 30/30 s")
    choosing.refuse_unmatched(["blocked", "grid"], names)
    choosing.refuse_unknown(choosing.names_in("grid, "), names)
    with pytest.raises(BenchError, match="nothing is named 'nonsense'; there are: grid"):
        choosing.refuse_unmatched(["grid", "nonsense"], names)
    with pytest.raises(BenchError, match="'blocked'"):
        choosing.refuse_unknown(["blocked"], names)


def test_a_workload_is_predicted_with_its_arrays_its_dependencies_and_its_phase() -> None:
    """Two GPUs; the array's tasks run side by side, the next waits for both, the last for it."""
    items = (
        WorkloadItem(at_s=0.0, n_nodes=1, duration_s=30.0, gpus=1, cpus=1, n_tasks=2),
        WorkloadItem(at_s=1.0, n_nodes=1, duration_s=10.0, gpus=1, cpus=1, after=0),
        WorkloadItem(at_s=2.0, n_nodes=1, duration_s=10.0),
    )
    capacity = NodeCapacity(cpus=4, memory_mb=100, gpus=(("", 2),))
    slurm = predicted.settings_of(
        n_nodes=1, capacity=capacity, bf_interval_s=5.0, batch_delay_s=0.0, phase=0.4
    )
    assert slurm.first_cycle_s % 5.0 == 3.0, "2 s before the first job"
    run = predicted.play(items, slurm, arm="predicted", seed=1, span_s=60.0, gpus_per_node=2)
    starts_s = {job.key: job.started_s for job in run.jobs}
    launch_s = predicted.LAUNCH_S
    assert starts_s[0, 0] == starts_s[0, 1] == pytest.approx(launch_s)
    ended_s = {job.key: job.ended_s for job in run.jobs}
    assert starts_s[1, 0] == pytest.approx(ended_s[0, 1] + launch_s), "it was submitted first"
    assert starts_s[2, 0] == pytest.approx(ended_s[1, 0] + launch_s)
    assert measures.idle_of(run).gpu_s == pytest.approx(2 * (60.0 - 30.0 - 10.0) - 10.0, abs=2.0)
    beside = predicted.play(
        items,
        slurm,
        arm="predicted",
        seed=1,
        span_s=60.0,
        gpus_per_node=2,
        policy_values={"reserve_nodes_per_type": 0, "min_gap_s": 1, "gap_margin_s": 1},
    )
    first, *_ = beside.pilots
    assert first.started_s < 0.0
    assert first.ended_s == pytest.approx(0.0, abs=0.2), "it is gone when the first job comes"


def test_kept_runs_are_judged_again(tmp_path: Path) -> None:
    kept = tmp_path / "runs.json"
    run = run_of(job(1, 1, 0.0, 3.0, 4.0))
    runs = [dataclasses.asdict(dataclasses.replace(run, arm=arm)) for arm in ("without", "again")]
    kept.write_text(json.dumps({"runs": runs}))
    bench = [sys.executable, "scripts/bench_gpus.py", "--judge", str(kept)]
    done = subprocess.run(bench, capture_output=True, text=True, check=False)
    assert "two runs without bftrainer, mean wait apart" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0
    kept.write_text("{}")
    with pytest.raises(BenchError, match="has no runs of this benchmark"):
        bench_gpus._kept(kept)


def test_the_help_of_a_benchmark_may_speak_of_per_cent(capsys: pytest.CaptureFixture[str]) -> None:
    speaks = dataclasses.replace(bench_gpus.BENCHMARK, quick="one run at 90%")
    with pytest.raises(SystemExit):
        speaks.parse(["--help"])
    assert "one run at 90%" in capsys.readouterr().out
