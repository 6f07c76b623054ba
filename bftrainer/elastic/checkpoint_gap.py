"""How long a training may go on without a checkpoint. Pure. Used by ``writer``.

A checkpoint costs time, and so does what is lost without one. The sum is least when they are
sqrt(2 * cost * expected life) apart (J. W. Young, "A first order approximation to the optimum
checkpoint interval", Communications of the ACM 17(9), 1974, pp. 530-531; J. T. Daly, "A higher
order estimate of the optimum checkpoint interval for restart dumps", Future Generation Computer
Systems 22(3), 2006, pp. 303-312).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

LIVES = "BFT_LIVES_S"  # in a worker's environment: how long its trainer's last lives lasted, s
KEY = "cost"  # in headers of checkpoints: of the one before
LEAST_S = 1.0  # more often is not worth the files
WRITE_WEIGHT = 0.1  # a second of writing, which is others' file system, in seconds of training


def lives_in(text: str) -> tuple[float, ...]:
    """Return the lives that an environment variable names; none if it is no list of times."""
    try:
        lives = tuple(float(word) for word in text.split())
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
    """What a checkpoint took; nothing while that is not known."""

    hold_s: float = 0.0  # for which the training stood still
    work_s: float = 0.0  # processor time of the writing thread, perhaps taken from the training
    wall_s: float = 0.0  # for which it wrote

    @classmethod
    def of(cls, header: Mapping[str, Any]) -> Cost:
        """Return what a checkpoint's header says of the one before it."""
        try:
            said = header[KEY]
            is_known = all(0.0 <= seconds < math.inf for seconds in said.values())
            return cls(**said) if is_known else cls()
        except (KeyError, TypeError, AttributeError):
            return cls()

    def mark(self) -> dict[str, dict[str, float]]:
        """Return the part of a header that ``of`` reads."""
        return {KEY: asdict(self)}

    @property
    def seconds(self) -> float:
        """Seconds of training that a checkpoint is worth."""
        return self.hold_s + max(self.work_s, WRITE_WEIGHT * self.wall_s)


def optimum_s(cost: Cost, life_s: float) -> float:
    """Return the best time from one checkpoint to the next."""
    return max(LEAST_S, math.sqrt(2.0 * cost.seconds * life_s))
