"""The optimum interval between checkpoints, and the ages of committed steps. Pure.

A checkpoint costs time, and so does what is lost without one. The sum is least when they are
sqrt(2 * cost * expected life) apart (J. W. Young, "A first order approximation to the optimum
checkpoint interval", Communications of the ACM 17(9), 1974, pp. 530-531; J. T. Daly, "A higher
order estimate of the optimum checkpoint interval for restart dumps", Future Generation Computer
Systems 22(3), 2006, pp. 303-312).

``Ages`` keeps the times of a subset of the committed steps, for a worker that takes over as writer
from another one. Used by ``writer``.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

LIVES = "BFT_LIVES_S"  # in a worker's environment: how long its trainer's last lives lasted, s
KEY = "cost"  # in headers of checkpoints: of the one before
LEAST_S = 1.0  # more often is not worth the files
ENOUGH = 5  # steps, to compare them
WRITE_WEIGHT = 0.1  # a second of writing, which is others' file system, in seconds of training
PER_INTERVAL = 32  # resolution
INTERVALS = 2  # an older checkpoint is overdue anyway


def lives_in(text: str) -> tuple[float, ...]:
    """Return the lives that an environment variable names; none if it is no list of times."""
    try:
        lives = tuple(map(float, text.split()))
    except ValueError:
        return ()
    return lives if all(0.0 <= life < math.inf for life in lives) else ()


def expected_life_s(lives_s: Sequence[float], age_s: float) -> float:
    """Return how long the present life is likely to last.

    A life is the time from a start until all nodes are lost at once. The estimate is all time
    trained by losses, the next one included: what has no history is expected to last as long as
    it has lasted, so the first checkpoints come early.
    """
    return (sum(lives_s) + age_s) / (len(lives_s) + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Time that a checkpoint cost; zeros while that is not known."""

    hold_s: float = 0.0  # for which the training stood still
    slow_s: float = 0.0  # that steps took longer while it was written
    wall_s: float = 0.0  # for which it wrote

    @classmethod
    def of(cls, header: Mapping[str, Any]) -> Cost:
        """Return what a checkpoint's header says of the one before it."""
        try:
            costs_s = header[KEY]
            is_valid = all(0.0 <= seconds < math.inf for seconds in costs_s.values())
            return cls(**costs_s) if is_valid else cls()
        except (KeyError, TypeError, AttributeError):
            return cls()

    def mark(self) -> dict[str, dict[str, float]]:
        """Return the part of a header that ``of`` reads."""
        return {KEY: asdict(self)}

    @property
    def seconds(self) -> float:
        """Seconds of training that a checkpoint is worth."""
        return self.hold_s + max(self.slow_s, WRITE_WEIGHT * self.wall_s)


def optimum_s(cost: Cost, life_s: float) -> float:
    """Return the best time from one checkpoint to the next."""
    return max(LEAST_S, math.sqrt(2.0 * cost.seconds * life_s))


class Slowdown:
    """The increase of the step time while a checkpoint is written."""

    def __init__(self) -> None:
        self._steps = {False: 0.0, True: 0.0}
        self._took_s = {False: 0.0, True: 0.0}

    def note(self, took_s: float, *, is_writing: bool) -> None:
        """Record a step."""
        self._steps[is_writing] += 1
        self._took_s[is_writing] += took_s

    def lost_s(self, wall_s: float, work_s: float) -> float:
        """Return what a write has cost the training; earlier ones count less and less.

        Args:
            wall_s: for which it wrote.
            work_s: processor time of its thread: the answer while there are too few steps.
        """
        lost_s = work_s
        if min(self._steps.values()) >= ENOUGH:
            before_s, beside_s = (self._took_s[key] / self._steps[key] for key in (False, True))
            lost_s = wall_s * max(0.0, 1.0 - before_s / beside_s)
        for sums in (self._steps, self._took_s):
            for key in sums:
                sums[key] /= 2.0
        return lost_s


class CommittedStep(NamedTuple):
    """A step, and when it was committed."""

    step: int
    at_s: float


class Ages:
    """Times of committed steps, a few dozen of them at most."""

    def __init__(self, interval_s: float) -> None:
        self._apart_s = interval_s / PER_INTERVAL
        self._steps: deque[CommittedStep] = deque(maxlen=PER_INTERVAL * INTERVALS)

    def note(self, step: int, now_s: float) -> None:
        """Record a step committed now, unless one was recorded just before."""
        if not self._steps or now_s - self._steps[-1].at_s >= self._apart_s:
            self._steps.append(CommittedStep(step, now_s))

    def committed_s(self, step: int) -> float | None:
        """Return the earliest time at which this step was committed, None if unknown."""
        # A step may be repeated after a failure: its earlier commit counts.
        steps = [committed for committed in list(self._steps) if committed.step <= step]
        if not steps:
            return None
        newest = max(committed.step for committed in steps)
        return min(committed.at_s for committed in steps if committed.step == newest)
