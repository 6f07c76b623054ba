"""When nodes go to jobs that only backfill can start: shortly before it comes round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from bftrainer.decide.giveback import GiveBack, give_back
from bftrainer.decide.turns import LATE_S
from bftrainer.decide.types import Memory, PilotView, Settings
from bftrainer.poll.snapshot import Job, JobState, NodeState, SchedulerCycle
from tests.support.snapshots import (
    T0,
    held,
    idle_nodes,
    pending,
    pilot,
    running,
    snapshot,
    with_state,
)

SETTINGS = Settings(reserve_nodes_per_type=0, cycle_s=30.0, backfill_lead_s=6.0)
BLOCKED = pending("7", 3, submit_s=T0 - 20)
BEHIND = pending("8", 1, submit_s=T0 - 10)
N1, N2 = held("n1", "n2")


def _give(
    jobs: Sequence[Job],
    *,
    began_s: float | None = T0,
    now_s: float = T0 + 5.0,
    settings: Settings = SETTINGS,
    memory: Memory | None = None,
    pilots: Sequence[PilotView] = (N1, N2),
) -> GiveBack:
    nodes = with_state(idle_nodes(3), NodeState.ALLOCATED, "n1", "n2", "n3")
    seen = snapshot(nodes, [*jobs, running("6", "n3")], at_s=now_s)
    seen = replace(seen, cycle=SchedulerCycle(ended_s=began_s, began_s=began_s))
    return give_back(
        seen, pilots, memory or Memory(), settings, now_s, lambda n, c, _: sorted(c)[:n]
    )


def _for(given: GiveBack) -> list[str]:
    return [release.for_job for release in given.releases]


@pytest.mark.parametrize(
    ("now_s", "jobs"),
    [
        (T0 + 5.0, []),
        (T0 + 23.9, []),
        (T0 + 24.0, ["8"]),
        (T0 + 30.0, ["8"]),
        (T0 + 30.0 + LATE_S / 2, ["8"]),  # expected, and nobody has seen it begin
        (T0 + 35.0, []),  # nobody asked: it will have been
    ],
)
def test_a_job_behind_a_blocked_one_gets_its_node_before_the_cycle(
    now_s: float, jobs: list[str]
) -> None:
    assert _for(_give([BLOCKED, BEHIND], now_s=now_s)) == jobs


@pytest.mark.parametrize(
    "job",
    [
        pending("8", 1, submit_s=T0 - 30),  # before the blocked one
        replace(BEHIND, partition="other"),
        replace(BEHIND, partition=f"{BEHIND.partition},other"),
    ],
)
def test_a_job_that_the_main_scheduler_can_start_gets_it_at_once(job: Job) -> None:
    assert _for(_give([BLOCKED, job])) == ["8"]


def test_who_waits_for_something_else_blocks_nobody() -> None:
    assert _for(_give([replace(BLOCKED, reason="JobHeldUser"), BEHIND])) == ["8"]


@pytest.mark.parametrize(
    "settings",
    [replace(SETTINGS, backfill_lead_s=None), replace(SETTINGS, hold_off_cycles=2.0)],
)
def test_at_once_where_policy_says_so_and_while_the_daemon_backs_off(settings: Settings) -> None:
    assert _for(_give([BLOCKED, BEHIND], settings=settings)) == ["8"]


def test_at_once_where_nobody_knows_when_backfill_comes() -> None:
    assert _for(_give([BLOCKED, BEHIND], began_s=None)) == ["8"]


def test_its_chance_is_a_cycle_that_found_the_node_free() -> None:
    early = _give([BLOCKED, BEHIND], now_s=T0 + 5.0)
    memory = Memory(gave_back=early.gave_back)
    # A cycle nobody expected so soon had nothing to give it.
    soon = _give([BLOCKED, BEHIND], began_s=T0 + 10.0, now_s=T0 + 12.0, memory=memory)
    assert _for(soon) == []
    memory = Memory(gave_back=soon.gave_back)
    given = _give([BLOCKED, BEHIND], began_s=T0 + 10.0, now_s=T0 + 35.0, memory=memory)
    assert _for(given) == ["8"]
    memory = Memory(gave_back=given.gave_back)
    after = _give([BLOCKED, BEHIND], began_s=T0 + 40.0, now_s=T0 + 41.0, memory=memory)
    assert [v.why for v in after.verdicts if v.job_id == "8"] == [
        "It had its chance, and nothing has changed since."
    ]


@pytest.mark.parametrize(
    ("now_s", "is_held", "state", "jobs"),
    [
        (T0 + 27.0, True, JobState.PENDING, []),  # started since: by a cycle, which nobody saw
        (T0 + 28.0, True, JobState.PENDING, ["8"]),  # the next one is too near for a look
        (T0 + 27.0, False, JobState.PENDING, ["8"]),
        (T0 + 27.0, True, JobState.RUNNING, ["8"]),
    ],
)
def test_a_look_that_a_cycle_has_overtaken_says_nothing_of_what_backfill_left(
    now_s: float, state: JobState, jobs: list[str], *, is_held: bool
) -> None:
    ours = replace(pending("70", 1), pilot_id="p-n1", state=state)
    given = _give([BLOCKED, BEHIND, ours], now_s=now_s, pilots=[pilot("n1", is_held=is_held), N2])
    assert _for(given) == jobs


def test_a_job_of_the_main_scheduler_does_not_wait_for_the_next_look() -> None:
    ours = replace(pending("70", 1), pilot_id="p-n1")
    assert _for(_give([BEHIND, ours])) == ["8"]


def test_who_was_served_is_about_to_start_while_others_wait_for_the_cycle() -> None:
    served = replace(pending("announced-1", 1, reason="", partition="debug"), was_tried=True)
    given = _give([BLOCKED, BEHIND, served])
    assert _for(given) == []
    assert len(given.spoken_for) == 1
