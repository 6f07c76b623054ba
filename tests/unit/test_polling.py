"""The loop of looks: it comes back for a cycle of the scheduler that something waits for."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest

from bftrainer import polling
from bftrainer.decide.waiting import LAST_CALL_S
from bftrainer.policy.model import Policy
from bftrainer.poll.announcer import Announcement
from bftrainer.poll.batch_system import BatchSystem
from bftrainer.polling import CYCLE_SEEN_S, Poller


class Silent:
    """A batch system that would tell of everything, and of which nothing is to be told."""

    cycle_s = 30.0

    def __init__(self) -> None:
        self._ends = socket.socketpair()

    def open_announcer(self) -> Silent:
        return self

    def fileno(self) -> int:
        return self._ends[0].fileno()

    def read(self) -> tuple[Announcement, ...]:
        return ()

    def close(self) -> None:
        for end in self._ends:
            end.close()

    def request_counts(self) -> Mapping[str, int]:
        return {}


async def _looks(awaited_after_s: Sequence[float], count: int) -> tuple[list[float], list[float]]:
    """Return when the first looks came, and when last calls.

    Cycles are awaited so much after the first look.
    """
    looks, called_s = list[float](), list[float]()
    enough = asyncio.Event()

    async def look(*, wants_cycle: bool) -> None:
        del wants_cycle
        looks.append(time.monotonic())
        if len(looks) == count:
            enough.set()

    def awaited_cycle_s() -> float | None:
        if not looks:
            return None
        since_s = time.monotonic() - looks[0]
        return next((at_s - since_s for at_s in awaited_after_s if at_s > since_s), None)

    system: Any = Silent()
    poller = Poller(
        cast("BatchSystem", system),
        Policy(),
        look=look,
        hear=lambda _: None,
        awaited_cycle_s=awaited_cycle_s,
        last_call=lambda: called_s.append(time.monotonic()),
    )
    task = asyncio.create_task(poller.run())
    await asyncio.wait_for(enough.wait(), 60.0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return looks, called_s


def test_it_looks_when_the_awaited_cycle_can_be_read_and_not_at_the_usual_time() -> None:
    (first, second), called_s = asyncio.run(_looks([1.0], 2))
    assert 1.0 + CYCLE_SEEN_S <= second - first < 21.0
    assert called_s == []  # it was too late for that


def test_a_cycle_is_prepared_for_twice() -> None:
    (first, second), called_s = asyncio.run(_looks([LAST_CALL_S + 1.0], 2))
    assert len(called_s) == 2
    assert first + 1.0 <= called_s[0] < called_s[1] < second


def test_quick_cycles_do_not_make_it_look_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polling, "CYCLE_LOOKS_APART_S", 4.0)
    looks, _ = asyncio.run(_looks([0.5 * n for n in range(1, 120)], 3))
    assert looks[2] - looks[1] >= 3.5
