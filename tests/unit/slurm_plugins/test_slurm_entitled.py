"""Which pending jobs Slurm would start if they had nodes, by what it says of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bftrainer.model.cluster import Job, NodeState
from slurm_plugins import parse
from slurm_plugins.job_requests import judged
from tests.support.snapshots import (
    T0,
    Fold,
    held,
    idle_nodes,
    pending,
    released,
    running,
    snapshot,
    with_state,
)

TOO_FEW = "Nodes required for job are DOWN, DRAINED"
RECORDED = Path(__file__).parents[2] / "fixtures" / "slurm"


def is_entitled(job: Job, *others: Job) -> bool:
    return judged([job, *others])[0].is_entitled


@pytest.mark.parametrize(
    "reason",
    [
        "",  # nobody has looked yet
        "Priority",
        "Resources",
        "ReqNodeNotAvail, UnavailableNodes:n9",
        "ReqNodeNotAvail, May be reserved for other job",
        # As 22.05 says it, and as 25.05 does where nodes are powered down.
        f"{TOO_FEW} or reserved for jobs in higher priority partitions",
        f"{TOO_FEW}, POWERING_DOWN or reserved for jobs in higher priority partitions",
        # Of 26.05 (ESLURM_TOPO_*, slurm_errno.c); seen failing before.
        *("Required nodes lack available resources", "Required nodes do not fit topology"),
        *("No suitable topology unit found", "No suitable topology unit found for segment"),
        *("Insufficient resources in topology unit", "No available nodes in topology"),
        "Weight-based selection could not satisfy request within topology unit",
        "Exceeded maximum node limit during topology allocation",
    ],
)
def test_who_lacks_nodes_only_would_start(reason: str) -> None:
    job = pending("7", 1, reason=reason, priority=1.0)
    assert is_entitled(job)
    assert not is_entitled(replace(job, priority=0.0)), "it is held"


@pytest.mark.parametrize(
    "reason",
    [
        *("JobHeldUser", "JobHeldAdmin", "JobHoldMaxRequeue", "BeginTime", "Reservation"),
        *("Dependency", "DependencyNeverSatisfied", "AssocGrpCpuLimit", "QOSMaxJobsPerUserLimit"),
        *("PartitionTimeLimit", "PartitionDown", "JobArrayTaskLimit", "Licenses", "Cleaning"),
        *(
            "InvalidAccount",
            "InvalidQOS",
            "BadConstraints",
            "BurstBufferStageIn",
            "MaxJobsPerAccount",
        ),
        *("MaxCpuPerAccount", "MaxNodePerAccount", "MaxGRESPerAccount", "FedJobLock", "NotBefore"),
        "launch failed requeued held",
        "job requeued in held state",
        "uid 7 not in group permitted to use this partition (x). groups allowed: y",
        "PriorityOfSomethingNew",
    ],
)
def test_everybody_else_would_not(reason: str) -> None:
    assert not is_entitled(pending("7", 1, reason=reason, priority=9.0))


@pytest.mark.parametrize(
    ("changes", "parents", "expected"),
    [
        ({"waits_for": "afterok:6(unfulfilled)"}, ("6",), False),
        ({"waits_for": "afterok:6(unfulfilled)", "reason": "Dependency"}, ("6",), False),
        ({"waits_for": "afterok:6(unfulfilled)", "reason": "Dependency"}, (), True),
        ({"waits_for": "afterok:6_3(unfulfilled)"}, ("6_4",), False),
        ({"waits_for": "afterok:5(unfulfilled),afterany:6(unfulfilled)"}, ("6",), False),
        ({"waits_for": "afterok:5(unfulfilled)?afterany:6(unfulfilled)"}, ("6",), True),
        ({"waits_for": "singleton(unfulfilled)"}, (), True),  # nobody has looked yet
        ({"waits_for": "singleton(unfulfilled)", "reason": "Dependency"}, (), False),
        ({"waits_for": "afterok:6(failed)", "reason": "DependencyNeverSatisfied"}, (), False),
        ({"waits_for": "afterok:6(unfulfilled)", "reason": "AssocGrpCpuLimit"}, (), False),
    ],
    ids=str,
)
def test_who_waits_for_jobs_would_when_they_have_left_the_queue(
    changes: dict[str, Any], parents: Sequence[str], *, expected: bool
) -> None:
    job = replace(pending("7", 1, reason="", priority=9.0), **changes)
    assert is_entitled(job, *(running(parent, "n9") for parent in parents)) is expected


def test_no_account_is_invalid_where_none_is_needed() -> None:
    job = pending("7", 1, reason="InvalidAccount", priority=9.0)
    assert [judged([job], enforces_accounts=e)[0].is_entitled for e in (True, False)] == [
        False,
        True,
    ]


def test_who_waits_for_a_time_would_from_then_on() -> None:
    job = pending("7", 1, reason="BeginTime", start_s=T0 + 60, priority=9.0)
    found = judged([job])[0]
    assert (found.is_entitled, found.begin_s) == (True, T0 + 60)
    held_too = judged([replace(job, priority=0.0)])[0]
    assert not held_too.is_entitled


def test_jobs_that_run_and_ours_are_left_as_they_are() -> None:
    jobs = (running("6", "n9"), replace(pending("8", 1), pilot_id="p1"))
    assert judged(jobs) == jobs


@pytest.mark.parametrize("version", sorted(path.name for path in RECORDED.glob("[0-9]*")))
def test_the_recorded_queue(version: str) -> None:
    config, queue = (
        (RECORDED / version / f"{name}.txt").read_text() for name in ("config", "busy.squeue")
    )
    enforces = parse.controller_config(config).enforces_accounts
    jobs = parse.jobs(queue)
    found = {job.job_id: job for job in judged(jobs, enforces_accounts=enforces)}
    assert {i for i, job in found.items() if not job.is_entitled and "_" not in i} == {"6"}
    assert found["7"].begin_s == found["7"].start_s
    assert found["3"].begin_s is None


def _released(job: Job) -> set[str]:
    nodes = with_state(idle_nodes(2), NodeState.ALLOCATED, "n1", "n2")
    return released(Fold().decide(snapshot(nodes, judged([job])), held("n1", "n2")))


def test_nodes_go_to_those_who_would_start_and_from_then_on() -> None:
    assert _released(pending("7", 2, reason="Resources", priority=1.0)) == {"n1", "n2"}
    assert not _released(pending("7", 2, reason="launch failed requeued held"))
    assert not _released(pending("7", 2, reason="MaxNodePerAccount", priority=9.0))
