"""When a pilot that is asked for now starts, what its limit is then, and who waits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bftrainer.decide.cycles import is_awaited
from bftrainer.model.census import census_of
from bftrainer.model.cluster import Job
from bftrainer.model.decision import Claim, Memory, Settings, VainReleases
from tests.support.snapshots import T0, Fold, idle_nodes, pending, pilot, record, snapshot

BLOCKED = pending("7", 9, submit_s=T0 - 100)
HELD = pending("8", 1, is_entitled=False)


@pytest.mark.parametrize(("jobs", "is_one"), [((), False), ((HELD,), False), ((BLOCKED,), True)])
def test_who_waits_for_nodes(jobs: tuple[Job, ...], *, is_one: bool) -> None:
    assert census_of(snapshot(idle_nodes(1), jobs)).has_startable_jobs is is_one


def _claim(*, waits: bool, starts_s: float | None = None) -> Claim:
    settings = Settings(reserve_nodes_per_type=0, min_gap_s=120.0, gap_margin_s=10.0)
    job = replace(BLOCKED, start_s=starts_s, planned_nodes=("n1",) if starts_s else ())
    seen = snapshot(idle_nodes(1), [job] if waits else [])
    [claim] = Fold(settings=settings).decide(seen, trainers=[record()]).claims
    return claim


def test_a_limit_fits_what_is_left_when_the_pilot_starts() -> None:
    assert _claim(waits=False).time_limit_s == 14400.0
    assert _claim(waits=True).time_limit_s == 14400.0
    assert _claim(waits=True, starts_s=T0 + 400.0).time_limit_s == 360.0


def test_what_of_ours_waits_for_a_cycle() -> None:
    waits, runs = pilot("n1", is_held=False), pilot("n2")
    assert is_awaited(Memory(), [runs, waits])
    assert not is_awaited(Memory(), [runs, replace(waits, is_leaving=True)])
    assert is_awaited(Memory(held_off={"n1": T0}), [])
    assert is_awaited(Memory(vain={"7": VainReleases(job_id="7")}), [])
