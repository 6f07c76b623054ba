"""Mishaps beyond a killed worker, and the way back from parked.

A ``Plane`` comes in; out go the times from a node falling silent or losing its network, or
a worker being stopped, to the first step of the others, and from the plan that gives a
parked trainer a node to its first step. Called by ``bench_rescale``.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from _bench.records import Recorder, steady_by_generation, usual_step_s
from tests.support.plane import Plane

MEMBERS = 3
BEFORE_STEPS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Mishap:
    """Something that takes a member from the others without a word."""

    name: str
    happens: Callable[[Plane, str, str], float]  # to a worker on a node; returns when, monotonic
    is_mended: Callable[[Plane, str], Awaitable[None]]  # the node can be used again


async def _replace(plane: Plane, node: str) -> None:
    await plane.replace_node(node)


async def _reconnect(plane: Plane, node: str) -> None:
    plane.mend_node(node)
    await plane.until(lambda: plane.is_connected(node), f"{node} is back")


async def _nothing(_plane: Plane, _node: str) -> None:
    """Its agent has ended the worker and may start another."""


MISHAPS: Final = {
    "silent": Mishap(
        name="silent node",
        happens=lambda plane, _worker, node: plane.silence_node(node),
        is_mended=_replace,
    ),
    "stopped": Mishap(
        name="stopped worker",
        happens=lambda plane, worker, _node: plane.kill_worker(worker, signal.SIGSTOP),
        is_mended=_nothing,
    ),
    "network": Mishap(
        name="lost network",
        happens=lambda plane, _worker, node: plane.cut_node(node),
        is_mended=_reconnect,
    ),
}


async def losses(
    plane: Plane, records: Path, count: int, mishap: Mishap, note: Callable[[str], None]
) -> list[float]:
    """Let it happen to one of three members, again and again; returns the pauses, s.

    From the mishap until the worst survivor's first step committed without that member,
    less the usual step of that size.
    """
    recorder = Recorder(records)
    waits: list[tuple[int, float]] = []  # generation, from mishap to step
    for number in range(count):
        plane.set_nodes(plane.all_nodes())
        await _trained(plane, recorder, MEMBERS, BEFORE_STEPS)
        members = plane.members()
        worker, node = members[number % len(members)]
        lost_s = mishap.happens(plane, worker, node)
        generation = await _trained(plane, recorder, MEMBERS - 1, 1)
        plane.set_nodes([n for n in plane.all_nodes() if n != node])  # stay so for some steps
        steps = recorder.of_generation(generation).values()
        waits.append((generation, max(s[0].at_s for s in steps) - lost_s))
        await _trained(plane, recorder, MEMBERS - 1, BEFORE_STEPS)
        await mishap.is_mended(plane, node)
        note(f"{mishap.name} {number + 1} of {count}")
    steady = steady_by_generation(recorder.histories)
    return [wait_s - usual_step_s(steady, MEMBERS - 1, generation) for generation, wait_s in waits]


async def resumes(
    plane: Plane, records: Path, count: int, note: Callable[[str], None]
) -> list[float]:
    """Park and resume on one node; returns the times to the first step, s."""
    recorder = Recorder(records)
    node = plane.all_nodes()[0]
    lost_s = []
    for number in range(count + 1):
        before = len(plane.rescales())
        given_s = time.monotonic()
        plane.set_nodes([node])
        await plane.until(lambda: plane.rescales()[before:], "the trainer is back")  # noqa: B023
        generation = await _trained(plane, recorder, 1, 1)
        (steps,) = recorder.of_generation(generation).values()
        if number:  # the first time it starts: its template may still be warming up
            lost_s.append(steps[0].at_s - given_s)
        plane.set_nodes([])
        await plane.until(lambda: not plane.members() and not plane.is_busy(), "it is parked")
        note(f"resume {number + 1} of {count + 1}")
    return lost_s


async def _trained(plane: Plane, recorder: Recorder, size: int, steps: int) -> int:
    """Wait until all members of a generation of that size have done some steps of it."""

    def newest() -> int:
        recorder.poll()
        rescales = plane.rescales()
        if not rescales or rescales[-1].size != size:
            return 0
        steps_of = recorder.of_generation(rescales[-1].generation)
        is_there = len(steps_of) == size and min(map(len, steps_of.values())) >= steps
        return rescales[-1].generation if is_there else 0

    generation = await plane.until(newest, f"{steps} steps of {size} workers")
    await asyncio.sleep(0)
    return generation
