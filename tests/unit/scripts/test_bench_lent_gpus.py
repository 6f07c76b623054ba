"""What ``bench_lent_gpus`` counts, on cases worked out by hand, and a run that it makes."""

from __future__ import annotations

import random
from pathlib import Path

import bench_lent_gpus
import pytest
from _bench.benchmark import Measured
from _bench.gpus.measures import HandOvers
from _bench.lent_gpus import philly, runs
from _bench.lent_gpus.counts import (
    BlockWait,
    EndedPilot,
    EndOfPilot,
    StartedJob,
    added_percent,
    added_s,
    hand_overs,
)
from _bench.lent_gpus.philly import WeekDemand
from _bench.lent_gpus.runs import Arm, LentOutcome, LentRun
from _bench.lent_gpus.split import IdleSplit

from bftrainer.lab.site.machine import JobSpec, Machine, SchedulerSettings


def ended(at_s: float, gpus: int = 1, end: EndOfPilot = EndOfPilot.RELEASED) -> EndedPilot:
    return EndedPilot(node=0, gpus=gpus, ended_s=at_s, end=end)


def test_gpus_that_leave_are_matched_with_those_that_jobs_need() -> None:
    job = StartedJob(node=0, gpus=2, started_s=100.0)
    assert hand_overs([ended(95.0)] * 3, [job], 10.0) == HandOvers(
        given_back=2, preempted=0, in_vain=1
    ), "a job of two GPUs needs two"
    assert hand_overs([ended(95.0, gpus=8)], [job], 10.0).in_vain == 0, "a node is one pilot"
    assert hand_overs([ended(89.0), ended(101.0)], [job], 10.0).in_vain == 2, "before, after"
    elsewhere = StartedJob(node=1, gpus=2, started_s=100.0)
    assert hand_overs([ended(95.0)], [elsewhere], 10.0).in_vain == 1
    others = [ended(95.0, end=end) for end in EndOfPilot if end is not EndOfPilot.RELEASED]
    assert hand_overs(others, [job], 10.0) == HandOvers(given_back=0, preempted=1, in_vain=0)


def test_added_waits_are_those_of_all_blocks_together() -> None:
    blocks = [
        BlockWait(jobs=10, without_s=100.0, beside_s=103.0, again_s=99.0),
        BlockWait(jobs=30, without_s=300.0, beside_s=301.0, again_s=301.0),
    ]
    assert added_s(blocks) == pytest.approx(0.1)
    added = added_percent(blocks)
    assert added.mean == pytest.approx(1.0)
    assert (added.low, added.high) == pytest.approx((1 / 3, 3.0)), "one of the blocks, twice"
    assert added_percent(blocks, is_null=True).mean == pytest.approx(0.0)


def test_submissions_that_have_not_come_are_moved_a_little() -> None:
    machine = Machine(SchedulerSettings(n_nodes=1))
    specs = [JobSpec(number=k, submit_s=100.0 * k, n_nodes=1, limit_s=60.0, run_s=60.0)
             for k in (1, 2, 3)]  # fmt: skip
    machine.load(specs)
    machine.at(250.0, lambda: None)
    machine.run(150.0)
    runs.move_submissions(machine, random.Random(1))  # noqa: S311 - no secret
    times_s = sorted(at_s for at_s, _, _ in machine.events)
    assert times_s == pytest.approx([200.0, 250.0, 300.0], abs=runs.MOVED_S)
    first_s, other_s, last_s = times_s
    assert other_s == 250.0
    assert (first_s, last_s) != (200.0, 300.0)


HEADER = "timestamp,duration,num_gpus,gpu_time,cluster\n"
DEMAND = WeekDemand(
    n_nodes=2, gpus_per_node=8, warm_s=600.4, counted_s=2 * runs.BLOCK_S, load=0.4, seed=1
)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A job of 3 GPUs for the whole time, and short ones of 1 to 4 for twice the time."""
    jobs = ["2017-09-01 00:00:00,1.0,1,1,a", "2017-09-27 23:00:00,20000.0,3,1,a"]
    for k in range(12):
        minutes = 10 * k
        at = f"2017-09-28 {minutes // 60:02d}:{minutes % 60:02d}:00"
        jobs.append(f"{at},400.0,{1 + k % 4},1,a")
    path = tmp_path / "log.csv"
    path.write_text(HEADER + "\n".join(jobs) + "\n")
    return path


def test_an_hour_of_a_log_is_played_with_and_without_the_daemon(log: Path) -> None:
    without, parts = (runs.play(LentRun(demand=DEMAND, arm=arm), log)
                      for arm in (Arm.WITHOUT, Arm.PARTS))  # fmt: skip
    assert without.n_starts == parts.n_starts > 3
    assert (without.held_gpu_s, without.blocks) == (0.0, ())
    # All but the reserve of one GPU.
    assert parts.split.idle_gpu_s - parts.held_gpu_s < 2 * runs.BLOCK_S
    assert len(parts.blocks) == 1
    assert parts.left.given_back > 0
    assert parts.left.preempted == parts.left.in_vain == parts.n_lost == 0


SPLIT = IdleSplit(used_gpu_s=700.0, whole_gpu_s=40.0, leftover_gpu_s=60.0)


def outcome(held_gpu_s: float, n_lost: int = 0) -> LentOutcome:
    block = BlockWait(jobs=1, without_s=1000.0, beside_s=1004.0, again_s=1001.0)
    return LentOutcome(
        mean_wait_s=1.0,
        n_jobs=500,
        n_starts=500,
        n_lost=n_lost,
        split=SPLIT,
        held_gpu_s=held_gpu_s,
        blocks=(block,),
    )


def test_parts_are_held_against_the_promises_and_against_whole_nodes() -> None:
    measured = Measured()
    played = {(0.9, Arm.NODES): [outcome(30.0)], (0.9, Arm.PARTS): [outcome(80.0, n_lost=1)]}
    bench_lent_gpus.judge(played, measured)
    values = [(target.measured, target.limit) for target in measured.targets]
    added = (0.4, 0.5)  # by parts, and at the end by whole nodes; each with its interval
    assert values == [pytest.approx(pair) for pair in (added, (2.0, 1.0), (80.0, 30.0), added)]
    assert [target.low is None for target in measured.targets] == [False, True, True, False]


def test_without_the_log_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(bench_lent_gpus.DATA_VARIABLE, raising=False)
    measured = Measured()
    bench_lent_gpus.measure(bench_lent_gpus.BENCHMARK.parse(["--quick"]), measured)
    assert not measured.targets
    assert "BFTRAINER_DATA is not set" in measured.results["skipped"]


def test_a_log_that_is_there_is_played_and_tabulated(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / philly.PATH
    path.parent.mkdir(parents=True)
    path.touch()
    monkeypatch.setenv(bench_lent_gpus.DATA_VARIABLE, str(tmp_path))
    monkeypatch.setattr(runs, "run", lambda tasks, *_: [(task, outcome(9.0)) for task in tasks])
    measured = Measured()
    bench_lent_gpus.measure(bench_lent_gpus.BENCHMARK.parse(["--quick"]), measured)
    assert [run["arm"] for run in measured.results["runs"]] == [Arm.PARTS, Arm.NODES, Arm.WITHOUT]
    assert len(measured.tables) == 2
    assert not measured.targets, "an hour is no measurement"
