"""The jobs of the zero-harm benchmark: drawn from a seed, from a file, from a log."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from _bench.zero_harm.workload import (
    JITTER_S,
    Demand,
    fingerprint,
    generate,
    jittered,
    load_of,
    read,
)

DEMAND = Demand(n_jobs=320, n_nodes=16, minutes=20.0, load=0.65, seed=1)


@pytest.mark.parametrize("minutes", [6.0, 20.0])
def test_jobs_ask_for_the_load_wanted_within_the_run(minutes: float) -> None:
    demand = replace(DEMAND, minutes=minutes)
    jobs = generate(demand)
    assert len(jobs) == 320
    assert load_of(jobs, 16) == pytest.approx(0.65, abs=0.05)
    assert max(j.at_s for j in jobs) <= demand.span_s
    assert all(60 * j.limit_min > j.run_s for j in jobs)
    assert {j.kind for j in jobs} == {"sbatch", "srun", "immediate"}
    assert max(j.n_nodes for j in jobs) == 12
    assert all(j.n_nodes == 1 for j in jobs if j.kind == "immediate")


def test_a_seed_is_a_workload() -> None:
    assert generate(DEMAND) == generate(DEMAND)
    other = generate(replace(DEMAND, seed=2))
    assert other != generate(DEMAND)
    assert fingerprint(other, []) != fingerprint(generate(DEMAND), [])


def test_jobs_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "jobs.json"
    late_one = {"at_s": 5, "n_nodes": 2, "run_s": 3, "limit_min": 1}
    file.write_text(json.dumps([late_one, {**late_one, "at_s": 1, "kind": "srun"}]))
    assert [j.at_s for j in read(file, DEMAND)] == [1.0, 5.0]
    file.write_text(json.dumps([{**late_one, "n_nodes": 20}]))
    with pytest.raises(ValueError, match="more than 16 nodes"):
        read(file, DEMAND)


def test_jobs_of_a_log_are_compressed(tmp_path: Path) -> None:
    file = tmp_path / "log.swf"
    lines = [
        f"{n} {100 * n} 5 {600 if n % 2 else 60} {64 * (n % 4 + 1)} -1 -1 -1 7200 -1" + " -1" * 8
        for n in range(1, 101)
    ]
    file.write_text("; Computer: x\n" + "\n".join(lines) + "\n")
    demand = replace(DEMAND, n_jobs=50)
    jobs = read(file, demand)
    assert len(jobs) == 50
    assert jobs[-1].at_s == pytest.approx(demand.span_s)
    assert {j.n_nodes for j in jobs} == {3, 6, 9, 12}
    assert load_of(jobs, 16) == pytest.approx(0.65, abs=0.05)
    file.write_text("1 2 3\n")
    with pytest.raises(ValueError, match="fewer than 9"):
        read(file, demand)


def test_a_jittered_workload_has_the_same_jobs_half_a_tick_apart() -> None:
    jobs = generate(DEMAND)
    assert jittered(jobs, 0) == jobs
    one = jittered(jobs, 1)
    assert one == jittered(jobs, 1) != jittered(jobs, 2)
    assert [j.model_copy(update={"at_s": 0}) for j in one] == [
        j.model_copy(update={"at_s": 0}) for j in jobs
    ]
    moved_s = [x.at_s - y.at_s for x, y in zip(one, jobs, strict=True)]
    assert max(map(abs, moved_s)) <= JITTER_S
    assert min(moved_s) < 0 < max(moved_s)
