"""When a pilot that is asked for now starts, and what its limits are then."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from bftrainer.decide.types import Claim, Memory, PilotView, Settings
from bftrainer.decide.waiting import awaited_cycle_s, starts_by_s
from bftrainer.poll.snapshot import SchedulerCycle, Snapshot
from tests.support.snapshots import T0, Fold, idle_nodes, pending, record, snapshot

BLOCKED = pending("7", 9, submit_s=T0 - 100)
HELD = pending("8", 1, reason="JobHeldUser")


def _with_cycle(began_s: float | None) -> Snapshot:
    seen = snapshot(idle_nodes(1), [BLOCKED])
    return replace(seen, cycle=SchedulerCycle(ended_s=began_s, began_s=began_s))


@pytest.mark.parametrize("jobs", [(), (HELD,)])
def test_at_once_where_nobody_waits_for_nodes(jobs: tuple[()]) -> None:
    assert starts_by_s(snapshot(idle_nodes(1), jobs), 30.0, T0) == T0


@pytest.mark.parametrize(
    ("began_s", "starts_s"),
    [
        (T0 - 1.0, T0 + 29.0),
        (T0 - 29.5, T0 + 0.5),
        (T0 - 100.0, T0 + 20.0),  # an old one: nobody asked since
        (T0 + 0.2, T0 + 30.0),  # the clocks differ a little
        (None, T0 + 30.0),
    ],
)
def test_else_in_the_next_cycle(began_s: float | None, starts_s: float) -> None:
    assert starts_by_s(_with_cycle(began_s), 30.0, T0) == pytest.approx(starts_s)


def test_a_scheduler_without_cycles_is_at_once() -> None:
    assert starts_by_s(_with_cycle(T0 - 5), 0.0, T0) == T0


def _claim(*, waits: bool, starts_s: float | None = None) -> Claim:
    settings = Settings(reserve_nodes_per_type=0, min_gap_s=120.0, gap_margin_s=10.0)
    job = replace(BLOCKED, start_s=starts_s, planned_nodes=("n1",) if starts_s else ())
    seen = snapshot(idle_nodes(1), [job] if waits else [])
    [claim] = Fold(settings=settings).decide(seen, trainers=[record()]).claims
    return claim


def test_a_pilot_that_waits_for_a_plan_has_a_second_limit() -> None:
    assert _claim(waits=False).or_time_limit_s is None
    claim = _claim(waits=True)
    assert (claim.time_limit_s, claim.or_time_limit_s) == (14400.0, 120.0)
    claim = _claim(waits=True, starts_s=T0 + 400.0)
    assert (claim.time_limit_s, claim.or_time_limit_s) == (360.0, 120.0)


def test_no_second_limit_that_is_longer() -> None:
    claim = _claim(waits=True, starts_s=T0 + 150.0)
    assert (claim.time_limit_s, claim.or_time_limit_s) == (110.0, None)


def _awaits(requested_s: float | None, began_s: float | None) -> float | None:
    pilots = [PilotView(pilot_id="p1", node="n1", is_held=False, requested_s=requested_s or 0.0)]
    seen = _with_cycle(began_s)
    return awaited_cycle_s(Memory(), pilots if requested_s else [], seen, 30.0, T0)


def test_a_pilot_that_has_not_started_waits_for_the_cycle_after_its_request() -> None:
    assert _awaits(T0 - 2.0, T0 - 10.0) == pytest.approx(20.0)
    assert _awaits(T0 - 12.0, T0 - 10.0) is None  # it has passed
    assert _awaits(None, T0 - 10.0) is None
    assert _awaits(T0 - 2.0, None) == math.inf
