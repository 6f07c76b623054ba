"""AdaptDL's cluster: what it published of Tiresias and Optimus, and the job model by hand."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from bftrainer.decide.policies.base import Context, load_policy
from bftrainer.lab.adaptdl import (
    AdaptdlJob,
    Application,
    Setup,
    estimated_curve,
    packed,
    place,
    play,
    read_applications,
    read_jobs,
)
from bftrainer.model.errors import UsageError
from milp.problem import Problem
from milp.solve import solve
from tests.support.policies import Scripted

DATA = Path(os.environ.get("BFTRAINER_DATA", "")) / "adaptdl-osdi21"
needs_data = pytest.mark.skipif(
    not (os.environ.get("BFTRAINER_DATA") and DATA.is_dir()),
    reason="BFTRAINER_DATA is not set or has no adaptdl-osdi21: no published figures",
)
applications = cache(read_applications)
FULL_LOAD = pytest.mark.long


@cache
def published(policy: str, load: str) -> Any:
    return json.loads((DATA / "published" / f"{policy}-{load}.json").read_text())


@needs_data
@pytest.mark.parametrize(
    "number", [1, 8, *(pytest.param(number, marks=FULL_LOAD) for number in range(2, 8))]
)
@pytest.mark.parametrize("load", ["0.5", pytest.param("1.0", marks=FULL_LOAD)])
@pytest.mark.parametrize("policy", ["tiresias", "optimus"])
def test_each_job_takes_as_long_as_published(policy: str, load: str, number: int) -> None:
    folder = DATA / ("workloads" if load == "1.0" else f"workloads-{load}")
    jobs = read_jobs(folder / f"workload-{number}.csv", applications(DATA))
    setup = Setup(is_rigid=policy == "tiresias")
    found = play(jobs, load_policy(policy), setup).completion_s()
    expected, workload = published(policy, load), f"workload-{number}"
    assert found == expected["jcts"][workload]
    mean_s = sum(found.values()) / len(found)
    assert abs(mean_s - expected["avgs"][workload]) < 1e-9


def write(path: Path, *rows: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(rows) + "\n")


@pytest.fixture
def application(tmp_path: Path) -> Application:
    """Two epochs of 10 and 20 steps with the smallest batch, 10; on two GPUs 0.8 s each."""
    folder, noise = tmp_path / "net", "progress,iteration,metric,grad_sqr,grad_var"
    write(folder / "validation-10.csv", noise, "10,10,0,1,1", "30,30,0,1,1")
    write(folder / "validation-20.csv", noise, "10,8,0,1,1", "30,24,0,1,1")
    head = "local_bsz,step_time,sync_time"
    rows = ["1,5,0.5,0", "1,10,1.0,0", "11,5,0.8,0.3", "11,10,1.2,0.3"]
    write(folder / "placements.csv", f"placement,{head}", *rows)
    write(
        folder / "scalability.csv",
        f"num_nodes,num_replicas,{head}",
        "4,4,5,0.9,0.4",
        "2,4,5,0.7,0.2",
    )
    return Application(folder, 2)


def job(
    application: Application, name: str = "a", requested: int = 1, batch: int = 10
) -> AdaptdlJob:
    return AdaptdlJob(
        name=name, application=application, submitted_s=0, requested=requested, batch=batch
    )


def test_a_job_trains_after_a_pause(application: Application) -> None:
    """Seen after 60 s; 30 s of pause, 30 steps of 1 s."""
    found = play([job(application)], load_policy("fifo"), Setup(is_rigid=True))
    assert found.completion_s() == {"a": 120}
    assert (found.decisions, found.jobs[0].restarts, found.jobs[0].gpu_s) == (1, 0, 60)


def test_epochs_end_on_whole_seconds(application: Application) -> None:
    """On two nodes a batch of 20 makes 4/3 of progress in 1.2 s: 10 in 9 s, 20 in 18 s."""
    trained = job(application, batch=20)
    trained.move((0, 1))
    trained.advance(0, 60)
    assert trained.ended_s == 30 + 9 + 18


def test_a_batch_that_does_not_fit_is_trained_in_passes(application: Application) -> None:
    """Of a batch of 20 on one GPU: two passes of 10; of 10 on one GPU: one."""
    assert application.split(20, 1) == (10, 1)
    assert application.split(10, 1) == (10, 0)
    assert application.split(10, 1, least_passes=1) == (5, 1)
    assert application.split(20, 2) == (10, 0)


def test_progress_of_a_step_grows_less_than_the_batch(application: Application) -> None:
    assert application.gain(10, 0) == 1.0
    assert application.gain(20, 0) == pytest.approx(4 / 3)
    assert application.value("iteration", 15, 1) == 27.0


def test_the_curve_ends_where_nothing_is_known(application: Application) -> None:
    curve = estimated_curve(application, 10, 4, 4)
    assert curve.sizes == (1,)  # nothing is known of two GPUs on one node
    assert curve.samples_per_s == (10 / (0.5 + 0.5),)
    moved = job(application, batch=20)
    moved.move((0, 0, 0, 0))
    with pytest.raises(UsageError, match=r"BFT-3072.*4 GPUs"):
        moved.advance(0, 60)


def test_jobs_get_the_emptiest_nodes() -> None:
    free = [3, 4, 2, 4]
    assert place(5, free) == (1, 1, 1, 1, 3)
    assert (place(2, free), free) == ((0, 0), [1, 0, 2, 3])
    assert packed(9, 4) == (4, 4, 1)


def test_a_job_that_moves_pauses_again(application: Application) -> None:
    trained = job(application)
    trained.move((0,))
    trained.advance(0, 45)  # 15 steps of 30
    trained.move((3,))
    trained.advance(45, 60)
    assert (trained.ended_s, trained.restarts) == (45 + 30 + 15, 1)


def test_a_job_that_the_policy_drops_has_no_end(application: Application) -> None:
    def answer(problem: Problem, _context: Context) -> dict[str, Any]:
        return {"allocation": solve(replace(problem, p_jmax=1)), "dropped": {"b": "no room"}}

    jobs = [job(application, name) for name in ("a", "b")]
    found = play(jobs, Scripted(answer=answer), Setup())
    assert found.completion_s() == {"a": 120}
    assert [one.dropped for one in found.jobs] == ["", "no room"]


def test_what_is_missing_is_named(
    application: Application, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match=r"BFT-3070.*bert.*Set BFTRAINER_DATA"):
        read_applications(tmp_path)
    with pytest.raises(UsageError, match="BFT-3070"):
        read_jobs(tmp_path / "none.csv", {})
    monkeypatch.setitem(sys.modules, "scipy.interpolate", None)
    with pytest.raises(UsageError, match=r"BFT-3071.*bftrainer\[adaptdl\]"):
        application.step_time((4,), 5)
