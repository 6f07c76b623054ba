"""Ordinary jobs for runs on a real Slurm, and the cycles in which it starts them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from _bench.real_slurm import cycles
from _bench.real_slurm.workload import Demand, generate

DEMAND = Demand(n_jobs=320, n_nodes=16, minutes=20.0, load=0.65, seed=1)


@pytest.mark.parametrize("minutes", [6.0, 20.0])
def test_jobs_ask_for_the_load_wanted_within_the_run(minutes: float) -> None:
    demand = replace(DEMAND, minutes=minutes)
    jobs = generate(demand)
    assert len(jobs) == 320
    assert sum(j.n_nodes * j.duration_s for j in jobs) / (
        16 * max(j.at_s for j in jobs)
    ) == pytest.approx(0.65, abs=0.05)
    assert max(j.at_s for j in jobs) <= demand.span_s
    assert all(j.limit_s and j.limit_s > j.duration_s for j in jobs)
    assert {j.kind for j in jobs} == {"sbatch", "srun", "immediate"}
    assert max(j.n_nodes for j in jobs) == 12
    assert all(j.n_nodes == 1 for j in jobs if j.kind == "immediate")


def test_a_seed_is_a_workload() -> None:
    assert generate(DEMAND) == generate(DEMAND)
    other = generate(replace(DEMAND, seed=2))
    assert other != generate(DEMAND)


def test_cycles_are_read_to_the_millisecond(tmp_path: Path) -> None:
    log = tmp_path / "slurmctld.log"
    log.write_text(
        "[2026-11-20T17:56:38.275] debug:  sched/backfill: _attempt_backfill: beginning\n"
        "[2026-11-20T17:56:38.275] debug:  sched/backfill: _attempt_backfill: no jobs\n"
        "[2026-11-20T17:57:08.300] debug:  sched/backfill: _attempt_backfill: beginning\n"
    )
    first, second = cycles.read(log)
    assert second - first == pytest.approx(30.025)
