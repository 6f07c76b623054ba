"""Mishaps beyond a killed worker, and the way back from parked.

A ``Plane`` comes in; out go the times from a node falling silent to the first step of the
others, and from the plan that gives a parked trainer a node to its first step. Called by
``bench_rescale``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from _bench.plane import Plane
from _bench.records import Recorder, steady_by_generation, usual_step_s

MEMBERS = 3
BEFORE_STEPS = 12


async def silent_nodes(
    plane: Plane, records: Path, count: int, note: Callable[[str], None]
) -> list[float]:
    """Let one of three nodes fall silent, again and again; returns the pauses, s.

    From the silence until the worst survivor's first step committed without it, less the
    usual step of that size.
    """
    recorder = Recorder(records)
    waits: list[tuple[int, float]] = []  # generation, from silence to step
    for number in range(count):
        plane.set_nodes(plane.all_nodes())
        await _trained(plane, recorder, MEMBERS, BEFORE_STEPS)
        members = plane.members()
        node = members[number % len(members)][1]
        silent_s = plane.silence_node(node)
        generation = await _trained(plane, recorder, MEMBERS - 1, 1)
        steps = recorder.of_generation(generation).values()
        waits.append((generation, max(s[0].at_s for s in steps) - silent_s))
        await _trained(plane, recorder, MEMBERS - 1, BEFORE_STEPS)
        await plane.replace_node(node)
        note(f"silent node {number + 1} of {count}")
    steady = steady_by_generation(recorder.histories)
    return [wait_s - usual_step_s(steady, MEMBERS - 1, generation) for generation, wait_s in waits]


async def resumes(
    plane: Plane, records: Path, count: int, note: Callable[[str], None]
) -> list[float]:
    """Park and resume on one node; returns the times to the first step, s."""
    recorder = Recorder(records)
    node = plane.all_nodes()[0]
    found = []
    for number in range(count + 1):
        before = len(plane.rescales())
        given_s = time.monotonic()
        plane.set_nodes([node])
        await plane.until(lambda: plane.rescales()[before:], "the trainer is back")  # noqa: B023
        generation = await _trained(plane, recorder, 1, 1)
        (steps,) = recorder.of_generation(generation).values()
        if number:  # the first time it starts: its template may still be warming up
            found.append(steps[0].at_s - given_s)
        plane.set_nodes([])
        await plane.until(lambda: not plane.members() and not plane.is_busy(), "it is parked")
        note(f"resume {number + 1} of {count + 1}")
    return found


async def _trained(plane: Plane, recorder: Recorder, size: int, steps: int) -> int:
    """Wait until all members of a generation of that size have done some steps of it."""

    def newest() -> int:
        recorder.poll()
        rescales = plane.rescales()
        if not rescales or rescales[-1].size != size:
            return 0
        found = recorder.of_generation(rescales[-1].generation)
        is_there = len(found) == size and min(map(len, found.values())) >= steps
        return rescales[-1].generation if is_there else 0

    generation = await plane.until(newest, f"{steps} steps of {size} workers")
    await asyncio.sleep(0)
    return generation
