"""The loop of looks: it comes back for nodes that the batch system still cleans up."""

from __future__ import annotations

import asyncio
import math
import socket
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, cast

import pytest

from bftrainer.batch.announcer import Announcement
from bftrainer.batch.batch_system import BatchSystem
from bftrainer.daemon.poll_calls import AGAIN_S
from bftrainer.daemon.poller import Poller
from bftrainer.model.cluster import NodeState
from bftrainer.site.policy.model import SitePolicy
from tests.support.snapshots import node, snapshot


class Silent:
    """A batch system that would tell of everything, and of which nothing is to be told."""

    cycle_s = 30.0
    hears_all = True

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


async def _looks(
    states: Sequence[NodeState], count: int, *, owes_node: bool = False
) -> tuple[list[float], float]:
    """Return when the first looks came, and when the next is called for.

    One after the other shows the node in these states.
    """
    looks = list[float]()
    enough = asyncio.Event()

    async def look(*, wants_cycle: bool) -> None:
        del wants_cycle
        seen = snapshot([node("n1", states[min(len(looks), len(states) - 1)])])
        poller.saw(seen, is_unshown=False, owes_node=owes_node)
        looks.append(time.monotonic())
        if len(looks) == count:
            enough.set()

    system: Any = Silent()
    poller = Poller(
        cast("BatchSystem", system),
        SitePolicy(),
        look=look,
        hear=lambda _: None,
        waits_for_cycle=lambda: True,
    )
    task = asyncio.create_task(poller.run())
    await asyncio.wait_for(enough.wait(), 60.0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return looks, poller.pace.calls.due_s()


@pytest.mark.parametrize(
    ("state", "owes_node"), [(NodeState.COMPLETING, False), (NodeState.IDLE, True)]
)
def test_it_comes_back_for_a_node_that_is_still_completing_or_owed(
    state: NodeState, *, owes_node: bool
) -> None:
    looks, _ = asyncio.run(_looks([state], 4, owes_node=owes_node))
    waits_s = [after - before for before, after in pairwise(looks)]
    assert waits_s == pytest.approx(AGAIN_S, abs=0.9)


@pytest.mark.parametrize(
    "states", [[NodeState.IDLE], [NodeState.COMPLETING, NodeState.IDLE]], ids=str
)
def test_a_node_that_is_idle_is_no_reason_to_come_back(states: list[NodeState]) -> None:
    _, next_s = asyncio.run(_looks(states, len(states)))
    assert next_s == math.inf
