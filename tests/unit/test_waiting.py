"""When a look asks for the scheduler's cycle: only while something waits for one."""

from __future__ import annotations

import pytest

from bftrainer.decide.types import GaveBack, Memory, PilotView
from bftrainer.decide.waiting import waits_for_cycle
from bftrainer.poll.snapshot import SchedulerCycle, Snapshot

AT_S = 1000.0


def seen(began_s: float | None) -> Snapshot:
    cycle = SchedulerCycle(began_s=began_s, ended_s=None if began_s is None else began_s + 0.5)
    return Snapshot(taken_at_s=AT_S, nodes=(), jobs=(), cycle=cycle)


def pilot(*, is_held: bool, is_leaving: bool = False) -> PilotView:
    return PilotView(
        pilot_id="p1", node="n1", requested_s=AT_S, is_held=is_held, is_leaving=is_leaving
    )


GIVEN = Memory(gave_back={"7": GaveBack(at_s=AT_S, situation="")})
BEFORE, AFTER = seen(AT_S - 1), seen(AT_S + 1)


@pytest.mark.parametrize(
    ("memory", "pilots", "snapshot", "waits"),
    [
        (Memory(), (), BEFORE, False),
        (Memory(), (), None, False),
        (Memory(held_off={"n1": AT_S}), (), AFTER, True),  # dropped when it has passed
        (GIVEN, (), BEFORE, True),
        (GIVEN, (), AFTER, False),
        (GIVEN, (), seen(None), True),
        (GIVEN, (), None, True),
        (Memory(), (pilot(is_held=False),), BEFORE, True),
        (Memory(), (pilot(is_held=False),), AFTER, False),
        (Memory(), (pilot(is_held=True),), BEFORE, False),
        (Memory(), (pilot(is_held=False, is_leaving=True),), BEFORE, False),
    ],
    ids=[
        "nothing", "nothing-seen", "held-off", "given-back", "given-back-and-passed",
        "never-ran", "never-asked", "requested", "requested-and-passed", "held", "leaving",
    ],
)  # fmt: skip
def test_what_waits(
    memory: Memory, pilots: tuple[PilotView, ...], snapshot: Snapshot | None, waits: bool
) -> None:
    assert waits_for_cycle(memory, pilots, snapshot) is waits
