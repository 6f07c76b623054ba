"""Blackout windows: when they are, what decisions do before and in them, and the simulator."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from bftrainer.decide.decision import decide
from bftrainer.decide.policies.base import load_policy
from bftrainer.model.cluster import NodeState
from bftrainer.model.decision import DecisionInput, Memory, Plan, Settings
from bftrainer.model.fairness import Blackout
from bftrainer.site.policy.calendar import next_blackout
from bftrainer.site.policy.document import PolicyErrors
from bftrainer.site.policy.load import load_policy_file
from tests.support.snapshots import T0, claimed, held, idle_nodes, record, released, snapshot

ZONE = "Europe/Berlin"


def at(text: str) -> float:
    """``text`` is a time in Berlin."""
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(ZONE)).timestamp()


@pytest.mark.parametrize(
    ("windows", "now", "begin", "end"),
    [
        # 2026-03-04 is a Wednesday.
        ("Mon-Fri 08:00-18:00", "2026-03-04T07:00", "2026-03-04T08:00", "2026-03-04T18:00"),
        ("Mon-Fri 08:00-18:00", "2026-03-04T12:00", "2026-03-04T08:00", "2026-03-04T18:00"),
        ("mon-fri 08:00-18:00", "2026-03-06T18:00", "2026-03-09T08:00", "2026-03-09T18:00"),
        ("Wed 22:00-06:00", "2026-03-05T05:59", "2026-03-04T22:00", "2026-03-05T06:00"),
        ("Sat-Mon 00:00-24:00", "2026-03-04T12:00", "2026-03-07T00:00", "2026-03-10T00:00"),
        ("daily 12:00-13:00", "2026-03-04T13:00", "2026-03-05T12:00", "2026-03-05T13:00"),
        # The night in which clocks are put forward: an hour less.
        ("Sat 20:00-08:00", "2026-03-28T21:00", "2026-03-28T20:00", "2026-03-29T08:00"),
        (
            "2026-12-24 12:00 to 2026-12-27 06:00",
            "2026-03-04T12:00",
            "2026-12-24T12:00",
            "2026-12-27T06:00",
        ),
        # Windows that touch are one.
        (
            "Wed 08:00-12:00; Wed 12:00-14:00; Wed 13:00-15:00",
            "2026-03-04T09:00",
            "2026-03-04T08:00",
            "2026-03-04T15:00",
        ),
    ],
)
def test_the_present_or_the_next_one(windows: str, now: str, begin: str, end: str) -> None:
    found = next_blackout(windows.split("; "), ZONE, at(now))
    assert found is not None
    assert (found.begin_s, found.end_s) == (at(begin), at(end))
    assert found.name == windows.split("; ", maxsplit=1)[0]


def test_there_may_be_none() -> None:
    assert next_blackout((), ZONE, T0) is None
    past = ("2020-12-24 12:00 to 2020-12-27 06:00",)
    assert next_blackout(past, ZONE, at("2026-03-04T12:00")) is None


def test_without_a_zone_times_are_those_of_the_machine() -> None:
    now = datetime(2026, 3, 4, 7).astimezone()
    found = next_blackout(("daily 08:00-09:00",), None, now.timestamp())
    assert found is not None
    assert found.begin_s == now.replace(hour=8).timestamp()


@pytest.mark.parametrize(
    "line",
    [
        "blackouts: [Mon-Fri 8-18]",
        "blackouts: ['Mon-Fri 08:00-25:00']",
        "blackouts: ['Mo 08:00-18:00']",
        "blackouts: ['2026-12-27 06:00 to 2026-12-24 12:00']",
        "blackouts: ['2026-02-30 06:00 to 2026-12-24 12:00']",
        "blackouts: Mon-Fri 08:00-18:00",
        "time_zone: Europe/Nowhere",
        "time_zone: ../../etc/passwd",
        "time_zone: ''",
    ],
)
def test_bad_input_is_named_with_its_place(line: str, tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(line + "\n")
    path.chmod(0o600)
    with pytest.raises(PolicyErrors) as caught:
        load_policy_file(path)
    (problem,) = caught.value.problems
    assert problem.code == "BFT-2111"
    assert (problem.line, problem.column > 1) == (1, True)
    assert "such as" in problem.cause


# ---- decisions -------------------------------------------------------------------------

MARGIN_S = Settings().gap_margin_s
FREE, BUSY = idle_nodes(3), tuple(replace(n, state=NodeState.ALLOCATED) for n in idle_nodes(3))


def decided(begin_s: float, *, ours: tuple[str, ...] = (), gives_back: bool = True) -> Plan:
    """At T0, with a blackout of an hour from ``begin_s`` on."""
    given = DecisionInput(
        now_s=T0,
        snapshot=snapshot([b if b.name in ours else f for f, b in zip(FREE, BUSY, strict=True)]),
        is_new_snapshot=True,
        pilots=held(*ours),
        trainers=(record("t1"),),
        settings=Settings(reserve_nodes_per_type=0, gives_back=gives_back),
        memory=Memory(assignment=dict.fromkeys(ours, "t1")),
        training=dict.fromkeys(ours, "t1"),
        blackout=Blackout(begin_s=begin_s, end_s=begin_s + 3600.0, name="daily 01:00-02:00"),
    )
    return decide(given, load_policy("milp"))


def test_time_limits_end_before_it() -> None:
    plan = decided(T0 + 1000.0)
    assert {c.time_limit_s for c in plan.claims} == {1000.0 - MARGIN_S}
    assert len(plan.claims) == 3
    assert {n.usable_until_s for n in plan.pool} == {T0 + 1000.0 - MARGIN_S}
    assert plan.wake_at_s == T0 + 1000.0 - MARGIN_S


def test_one_that_is_far_off_changes_nothing() -> None:
    plan = decided(T0 + 1e6)
    assert {c.time_limit_s for c in plan.claims} == {Settings().pilot_time_limit_s}
    assert {n.usable_until_s for n in plan.pool} == {None}


@pytest.mark.parametrize("gives_back", [True, False])
def test_nodes_are_back_by_its_begin(gives_back: bool) -> None:
    plan = decided(T0 + MARGIN_S + 1.0, ours=("n1",), gives_back=gives_back)
    assert (released(plan), claimed(plan)) == (set(), set())
    assert plan.assignment == {"n1": "t1"}
    assert plan.wake_at_s == T0 + 1.0
    plan = decided(T0 + MARGIN_S, ours=("n1",), gives_back=gives_back)
    assert (released(plan), plan.assignment) == ({"n1"}, {})
    assert "blackout daily 01:00-02:00" in plan.releases[0].reason


def test_within_it_nothing_is_claimed_and_its_end_is_waited_for() -> None:
    plan = decided(T0 - 100.0)
    assert (plan.pool, plan.claims) == ((), ())
    assert plan.wake_at_s == T0 + 3500.0
    assert set(plan.not_used.values()) == {
        "The policy lends no nodes in the blackout daily 01:00-02:00, which has begun."
    }
