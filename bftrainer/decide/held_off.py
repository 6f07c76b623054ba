"""Nodes held off for jobs: after a release, and where a job is about to start. Pure.

``giveback`` and the other stages hold nodes off; ``observe`` is an estimator (``observation``).
"""

from __future__ import annotations

from dataclasses import replace

from bftrainer.decide.cycles import have_passed
from bftrainer.model.census import NodeCensus
from bftrainer.model.decision import DecisionInput, Memory


def observe(memory: Memory, given: DecisionInput, census: NodeCensus) -> Memory:
    """Update which nodes are held off for jobs.

    The time counts from when the node was free. It ends when a job has the node, when no job
    waits any more, or after a whole scheduler cycle.
    """
    if not memory.held_off:
        return memory
    snapshot, settings = given.snapshot, given.settings
    if not census.has_startable_jobs:
        return replace(memory, held_off={})  # no job to keep them free for
    more_s = (settings.hold_off_cycles - 1.0) * settings.cycle_s  # while backing off
    leaving = census.leaving | census.completing
    held_off: dict[str, float] = {}
    for node, at_s in memory.held_off.items():
        if node in census.taken:
            continue
        since_s = at_s
        if node in leaving:
            since_s = given.now_s
        if not have_passed(1, since_s + more_s, memory, snapshot, settings):
            held_off[node] = since_s
    return replace(memory, held_off=held_off)
