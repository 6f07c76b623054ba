"""Ends of pilots, starts of jobs and waits of blocks → hand-overs and added waits. Pure.

A GPU that is given back is in vain if no job that starts on its node within a cycle of backfill
needs it: GPUs are matched one by one, so that two GPUs for a job of one are one too many. A pilot
counts as given back if a job has at least one of its GPUs.
"""

from __future__ import annotations

import enum
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from _bench.gpus.measures import HandOvers
from _bench.stats import RESAMPLES, Interval


class EndOfPilot(enum.StrEnum):
    """The cause of a pilot's end."""

    RELEASED = "released"  # for a job
    NOT_NEEDED = "not needed"  # released for another reason: the reserve, a plan, no trainer
    PREEMPTED = "preempted"
    LIMIT = "limit"


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedPilot:
    """A pilot that ran and has ended."""

    node: int
    gpus: int
    ended_s: float
    end: EndOfPilot


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedJob:
    """The start of an ordinary job on one of its nodes."""

    node: int
    gpus: int
    started_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockWait:
    """The waits of all jobs in one block, in job-seconds."""

    jobs: int  # submitted in it
    without_s: float  # without the daemon, from the state beside it
    beside_s: float
    again_s: float  # without it, submissions moved a little


def hand_overs(
    pilots: Sequence[EndedPilot], jobs: Sequence[StartedJob], within_s: float
) -> HandOvers:
    """Count how pilots left.

    Args:
        pilots: that have ended; only those preempted or released for a job count.
        jobs: that have started.
        within_s: after its end a job that starts can be the one for which a pilot left.
    """
    starts: dict[int, list[list[float]]] = {}  # by node: when, and how many GPUs are not matched
    for job in sorted(jobs, key=lambda job: job.started_s):
        starts.setdefault(job.node, []).append([job.started_s, job.gpus])
    given_back = preempted = in_vain = 0
    for pilot in sorted(pilots, key=lambda pilot: pilot.ended_s):
        if pilot.end is EndOfPilot.PREEMPTED:
            preempted += 1
        elif pilot.end is EndOfPilot.RELEASED:
            if _matched(starts.get(pilot.node, []), pilot, within_s):
                given_back += 1
            else:
                in_vain += 1
    return HandOvers(given_back=given_back, preempted=preempted, in_vain=in_vain)


def _matched(starts: list[list[float]], pilot: EndedPilot, within_s: float) -> int:
    """Match a pilot's GPUs with those that jobs need; return how many are."""
    n_matched = 0
    for start in starts:
        started_s, n_open = start
        if pilot.ended_s <= started_s <= pilot.ended_s + within_s:
            n_taken = min(int(n_open), pilot.gpus - n_matched)
            start[1] -= n_taken
            n_matched += n_taken
    return n_matched


def added_percent(blocks: Sequence[BlockWait], *, is_null: bool = False) -> Interval:
    """Return the added wait of all jobs, in % of their wait, and its 95% interval.

    Jobs of a block wait for each other: whole blocks are resampled.

    Args:
        blocks: of the runs of one arm.
        is_null: what chance adds instead.
    """
    chance = random.Random(1)  # noqa: S311 - statistics, not a secret
    samples = (
        _percent(chance.choices(blocks, k=len(blocks)), is_null=is_null) for _ in range(RESAMPLES)
    )
    return Interval.of_samples(_percent(blocks, is_null=is_null), samples)


def _percent(blocks: Sequence[BlockWait], *, is_null: bool) -> float:
    without_s = sum(block.without_s for block in blocks)
    other_s = sum(block.again_s if is_null else block.beside_s for block in blocks)
    return 100.0 * (other_s - without_s) / without_s if without_s else math.nan


def added_s(blocks: Sequence[BlockWait]) -> float:
    """Return the added wait of a job in the mean, s."""
    total_s = sum(block.beside_s - block.without_s for block in blocks)
    return total_s / max(1, sum(block.jobs for block in blocks))
