"""A fixed part of ``bench_nemesis``: a few random faults of real hosts, all rules judged."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from _bench.nemesis.bed import N_TRAINERS, PLAN
from _bench.nemesis.life import live
from _bench.nemesis.schedule import draw
from _bench.nemesis.verdicts import judge

from tests.support.accounts import why_closed
from tests.support.hosts.why_not import why_not

pytestmark = [pytest.mark.slurm, pytest.mark.long, pytest.mark.timeout(1200)]
FAULTS = 10


@pytest.mark.parametrize("seed", [101, 103, 106])
def test_after_random_faults_all_is_as_without(seed: int, tmp_path: Path) -> None:
    if why := why_not() or why_closed():
        pytest.skip(why)
    schedule = draw(seed, FAULTS, PLAN.nodes, N_TRAINERS)
    kept = tmp_path / "kept"
    life = live(schedule, kept)
    told = "\n".join([*map(str, schedule.faults), *life.left_out, *life.tracebacks])
    assert judge(life.recorded) == (), told
    assert min(life.steps) == max(life.steps) > FAULTS
    assert life.n_starts >= 1
    shutil.rmtree(kept)
