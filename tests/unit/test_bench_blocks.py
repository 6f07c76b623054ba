"""What bench_blocks.py reads out of slurmctld's log, and the exact intervals of counts."""

from __future__ import annotations

import json
from datetime import datetime

import pytest
from _bench.blocks.evaluate import figures
from _bench.blocks.slurmlog import read
from _bench.stats import poisson_interval, share_interval

MINUTE = "2026-01-02T03:04:"
BEGAN_S = datetime.fromisoformat(f"{MINUTE}00.000").timestamp()
# Four nodes; pilots 1 and 2 make way for 4, which starts in the second cycle; 5 waits for 3.
LOG = """\
[2026-01-02T03:04:01.000] _slurm_rpc_submit_batch_job: JobId=1 InitPrio=1 usec=5
[2026-01-02T03:04:01.000] _slurm_rpc_submit_batch_job: JobId=2 InitPrio=1 usec=5
[2026-01-02T03:04:01.000] _slurm_rpc_submit_batch_job: JobId=3 InitPrio=1 usec=5
[2026-01-02T03:04:03.000] sched: Allocate JobId=3 NodeList=n[3-4] #CPUs=8 Partition=batch
[2026-01-02T03:04:05.000] sched/backfill: _start_job: Started JobId=1 in bf on n1
[2026-01-02T03:04:05.000] sched/backfill: _start_job: Started JobId=2 in bf on n2
[2026-01-02T03:04:08.000] _slurm_rpc_submit_batch_job: JobId=4 InitPrio=1 usec=5
[2026-01-02T03:04:09.000] _slurm_rpc_submit_batch_job: JobId=5 InitPrio=1 usec=5
[2026-01-02T03:04:10.000] debug:  sched/backfill: _attempt_backfill: beginning
[2026-01-02T03:04:30.000] preempted JobId=1 has been killed to reclaim resources for JobId=4
[2026-01-02T03:04:30.000] preempted JobId=2 has been killed to reclaim resources for JobId=4
[2026-01-02T03:05:20.000] debug:  sched/backfill: _attempt_backfill: beginning
[2026-01-02T03:05:25.000] sched/backfill: _start_job: Started JobId=4 in batch on n[1-2]
[2026-01-02T03:06:00.000] _job_complete: JobId=3 done
[2026-01-02T03:06:05.000] sched: Allocate JobId=5 NodeList=n3 #CPUs=4 Partition=batch
[2026-01-02T03:06:30.000] debug:  sched/backfill: _attempt_backfill: beginning
"""
STREAM = [
    json.dumps({"job_id": job_id, "n_nodes": n_nodes, "limit_min": 10})
    for job_id, n_nodes in (("3", 2), ("4", 2), ("5", 1))
]
PILOTS = [
    (BEGAN_S + 6.0, "p1", "1", "n1", "running", ""),
    (BEGAN_S + 7.0, "p2", "2", "n2", "running", ""),
    (BEGAN_S + 40.0, "p1", "1", "n1", "ended", "seen late"),
    (BEGAN_S + 40.0, "p2", "2", "n2", "ended", "seen late"),
]


def test_a_job_that_pilots_were_in_the_way_of_has_lost_a_cycle() -> None:
    found = figures(read(LOG, STREAM), PILOTS, (BEGAN_S, BEGAN_S + 160.0), 4, 60.0)
    assert found.cycles_s == (10.0, 10.0)
    assert (found.submitted, found.started, found.by_backfill) == (3, 3, 1)
    assert (found.fitted, found.lost) == (2, 1)  # job 4 in both cycles
    assert (found.fitted_on_ours, found.lost_for_ours) == (1, 1)
    assert (found.preempted, found.preempted_for, found.submissions) == (2, 1, 2)
    assert found.held_node_s == pytest.approx(24.0 + 23.0)  # until slurmctld killed them
    assert found.free_node_s == pytest.approx(4 * 160.0 - 2 * 117.0 - 2 * 75.0 - 35.0)


def test_intervals_of_counts_are_the_exact_ones() -> None:
    # Quantiles of the chi-squared and the beta distribution.
    assert poisson_interval(0) == pytest.approx((0.0, 3.688879))
    assert poisson_interval(40) == pytest.approx((28.576586, 54.468647))
    assert share_interval(0, 10) == pytest.approx((0.0, 0.308497))
    assert share_interval(30, 400) == pytest.approx((0.051172, 0.105338), abs=1e-6)
    assert share_interval(10, 10) == pytest.approx((0.691503, 1.0))
