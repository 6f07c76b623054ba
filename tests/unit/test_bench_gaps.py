"""``bench_gaps``: its jobs are drawn as asked for, its rows compare block by block."""

from __future__ import annotations

import bench_gaps
import pytest
from _bench.gaps.machines import machines, small_jobs

from bftrainer.lab.site.arms import ArmOutcome, Harvest
from bftrainer.lab.site.losses import PLANNED
from bftrainer.lab.site.machine import Machine
from bftrainer.lab.site.sidecar import Core


def test_a_seed_draws_jobs_of_a_minute_or_two_until_the_load_is_asked_for() -> None:
    jobs = list(small_jobs(8, 3600.0, 0.75, 1))
    assert jobs == list(small_jobs(8, 3600.0, 0.75, 1))
    assert [job.submit_s for job in jobs] == sorted(job.submit_s for job in jobs)
    assert {job.n_nodes for job in jobs} <= set(range(1, 9))
    assert all(job.limit_s % 60.0 == 0.0 and job.limit_s >= 2.0 * job.run_s for job in jobs)
    assert sum(job.n_nodes * job.run_s for job in jobs) >= 0.75 * 8 * 3600.0
    assert len({job.number for job in jobs}) == len(jobs)


def test_the_settings_of_a_task_reach_the_decision() -> None:
    stage = machines()[0].stage(1, {"min_gap_s": 7.0, "gap_margin_s": 3.0})
    core = Core(Machine(stage.slurm), policy_values=stage.policy_values)
    assert (core.settings.min_gap_s, core.settings.gap_margin_s) == (7.0, 3.0)


def test_harm_is_compared_block_by_block() -> None:
    def outcome(*added_s: float) -> ArmOutcome:
        return ArmOutcome(
            wait_s=0.0,
            refused=0,
            backfill_starts=0,
            cycles=0,
            lost=0,
            lost_to_neighbour=0,
            avoidable=0,
            preempted=0,
            cpu_s=0.0,
            blocks=((50.0, 60.0),) * len(added_s),
            node_blocks=tuple((100.0, 100.0 + one) for one in added_s),
            harvest=Harvest(
                held_s=50.0,
                trained_s=40.0,
                oracle_s=60.0,
                idle_s=200.0,
                submissions=0,
                releases=0,
                pilots=3,
                pilots_trained=2,
                decisions=1,
                decide_s=0.0,
                causes_s={PLANNED: 20.0},
            ),
        )

    row = bench_gaps.row_of(
        machines()[0], (60.0, 60.0), [outcome(5.0, 7.0)], [outcome(4.0, 8.0)]
    )  # blocks of 20 min: three an hour
    assert row.added_node_s_per_h.mean == 18.0
    assert row.against_defaults.mean == 0.0  # +1 and -1
    assert row.against_defaults.half == pytest.approx(3 * 12.706, rel=1e-3)  # Student, 1 freedom
    assert row.added_share == pytest.approx(0.06)
    assert (row.trained, row.oracle, row.planned) == (0.2, 0.3, 0.1)
