"""Background workloads: written, read back, refused when wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from bftrainer.batch.local.workload import (
    JobWorkload,
    WorkItem,
    load_workload,
    workload_from_json,
    workload_to_json,
)
from bftrainer.model.errors import ExitCode, UsageError


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "is not JSON"),
        ("7", "jobs must be a list"),
        ('{"jobs": [], "more": 1}', "more is not a known field"),
        ("[7]", r"jobs\[0\] must be an object"),
        ('[{"at_s": 0, "n_nodes": 1, "duration_s": 1}]', r"jobs\[0\].limit_s is missing"),
        ('[{"at_s": 0, "n_nodes": 1.5, "duration_s": 1, "limit_s": 1}]', "whole number"),
        ('[{"at_s": -1, "n_nodes": 1, "duration_s": 1, "limit_s": 1}]', "not be negative"),
        ('[{"at_s": NaN, "n_nodes": 1, "duration_s": 1, "limit_s": 1}]', "NaN"),
        ('[{"at_s": 0, "n_nodes": 1, "duration_s": 1, "limit_s": 1, "x": 1}]', "not a known field"),
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
    data = workload_to_json(JobWorkload(jobs=(late, early), repeat_s=5))
    assert workload_from_json(data).jobs == (early, late)
