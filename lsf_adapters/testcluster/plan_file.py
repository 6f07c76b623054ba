"""The allocation plan of IBM's scheduler, lsb.allocation.plan.json (ALLOCATION_PLANNER=Y)."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from lsf_adapters.testcluster.config import CLUSTER
from lsf_adapters.testcluster.state import Job


def write(logdir: Path, jobs: Iterable[Job], now_s: float) -> None:
    """Write the plan of all jobs that have one, in LSF's layout."""
    planned_jobs = [job for job in jobs if job.is_pending and job.estimate_s is not None]
    content = {
        "TIMESTAMP": _date(now_s),
        "CHILD_PID": str(os.getpid()),
        "NUM_PLANS": str(len(planned_jobs)),
        "PLANS": [_plan(rank, job) for rank, job in enumerate(planned_jobs, start=1)],
    }
    path = logdir / "lsb.allocation.plan.json"
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(content, indent=2) + "\n")
    fresh.replace(path)


def _plan(rank: int, job: Job) -> dict[str, object]:
    start_s = job.estimate_s or 0.0
    finish_s = start_s + (job.limit_s or 0.0)
    return {
        "JOB_ID": f"{CLUSTER}@{job.key}",
        "RANK": str(rank),
        "START_TIME": str(int(start_s)),
        "START_TIME_H": _date(start_s),
        "FINISH_TIME": str(int(finish_s)),
        "FINISH_TIME_H": _date(finish_s),
        "ALLOC": [
            {"HOST": name, "RSRC": [{"NAME": "slots", "AMOUNT": n_slots}]}
            for name, n_slots in Counter(job.plan_hosts).items()
        ],
    }


def _date(moment_s: float) -> str:
    return time.strftime("%b %e %H:%M:%S %Y", time.localtime(moment_s))
