"""Background workloads: made from a seed, written, read back, refused when wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bftrainer.errors import ExitCode, UsageError
from bftrainer.local.replay import PastJob, start_times_s
from bftrainer.local.workload import (
    JobWorkload,
    WorkItem,
    load_workload,
    make_workload,
    workload_from_json,
    workload_to_json,
)


@given(st.integers(1, 40), st.floats(1, 200), st.integers(0, 2**32))
def test_same_seed_same_jobs_and_all_can_run(n_nodes: int, duration_s: float, seed: int) -> None:
    made = make_workload(n_nodes, duration_s, seed)
    assert made == make_workload(n_nodes, duration_s, seed)
    assert made == workload_from_json(json.loads(json.dumps(workload_to_json(made))))
    for item in made.items:
        assert 1 <= item.n_nodes <= n_nodes
        assert item.duration_s < item.limit_s


@pytest.mark.parametrize("seed", range(5))
def test_generated_workload_leaves_idle_nodes_and_blocks_now_and_then(seed: int) -> None:
    n_nodes, duration_s = 8, 75.0
    made = make_workload(n_nodes, duration_s, seed)
    jobs = [
        PastJob(
            job_id=str(number),
            n_nodes=item.n_nodes,
            limit_s=item.limit_s,
            submit_s=item.at_s,
            duration_s=item.duration_s,
        )
        for number, item in enumerate(made.items)
    ]
    starts = start_times_s(jobs, nodes=[f"n{i}" for i in range(n_nodes)], cycle_s=1.0)
    work = sum(j.n_nodes * j.duration_s for j in jobs)
    assert 0.2 < work / (n_nodes * duration_s) < 0.95
    assert len(jobs) >= duration_s / 5
    blocked = [j for j in jobs if j.n_nodes == n_nodes and starts[j.job_id] > j.submit_s + 1]
    assert blocked


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "Expecting value"),
        ("7", "expected a list"),
        ('{"jobs": [], "more": 1}', "expected a list"),
        ("[7]", "job 1: expected an object"),
        ('[{"at_s": 0, "n_nodes": 1, "duration_s": 1}]', "job 1: limit_s"),
        ('[{"at_s": 0, "n_nodes": 1.5, "duration_s": 1, "limit_s": 1}]', "whole number"),
        ('[{"at_s": -1, "n_nodes": 1, "duration_s": 1, "limit_s": 1}]', "not negative"),
        ('[{"at_s": NaN, "n_nodes": 1, "duration_s": 1, "limit_s": 1}]', "finite"),
        ('[{"at_s": 0, "n_nodes": 1, "duration_s": 1, "limit_s": 1, "x": 1}]', "unknown field"),
        ('{"jobs": [], "repeat_s": "1"}', "repeat_s must be a number"),
        ('{"jobs": [], "repeat_s": 0}', "repeat_s must be at least"),
    ],
)
def test_wrong_files_are_refused_with_the_place(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "workload.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=complaint) as caught:
        load_workload(path)
    assert caught.value.code == "BFT-1257"
    assert caught.value.exit_code is ExitCode.VALIDATION_FAILED
    assert str(path) in caught.value.cause


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="BFT-1257"):
        load_workload(tmp_path / "none.json")


def test_jobs_are_put_in_the_order_of_their_times() -> None:
    late = WorkItem(at_s=2, n_nodes=1, duration_s=1, limit_s=1)
    early = WorkItem(at_s=1, n_nodes=1, duration_s=1, limit_s=1)
    data = workload_to_json(JobWorkload(items=(late, early), repeat_s=5))
    assert workload_from_json(data).items == (early, late)
