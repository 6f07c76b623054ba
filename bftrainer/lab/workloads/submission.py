"""A workload: trainers in the order of their submission.

Builders and readers make these; the simulator turns them into trainers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from bftrainer.model.node_request import request_of
from milp.problem import Curve

MAX_NODES = 1_000_000
MAX_TEXT = 200  # characters


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A submitted trainer."""

    submit_s: float  # after the start of the replay
    name: str
    n_min: int
    n_max: int
    samples: float  # to process
    curve: Curve  # samples per second by size
    rescale_up_s: float
    rescale_down_s: float
    utility: Curve | None = None  # objective of its own; None: follows from ``curve``
    weight: float = 1.0
    network: str = ""  # groups results
    gres: str = ""  # GPUs required on its nodes, as sbatch --gres
    user: str = ""
    account: str = ""

    def __post_init__(self) -> None:
        """Check the fields.

        Raises:
            ValueError: with the field that is wrong.
        """
        if not self.name or max(map(len, (self.name, self.network, self.gres))) > MAX_TEXT:
            raise ValueError(f"name is empty, or a text has more than {MAX_TEXT} characters")
        for name in ("submit_s", "rescale_up_s", "rescale_down_s"):
            if not 0 <= (value := getattr(self, name)) < math.inf:
                raise ValueError(f"{name} is {value:g}, not a time of 0 s or more")
        for name in ("samples", "weight"):
            if not 0 < (value := getattr(self, name)) < math.inf:
                raise ValueError(f"{name} is {value:g}, not more than 0")
        if not 1 <= self.n_min <= self.n_max <= MAX_NODES:
            raise ValueError(f"n_min {self.n_min} and n_max {self.n_max} are not a range of sizes")
        for curve in (self.curve, self.utility or self.curve):
            check_curve(curve)
        request_of(self.gres, "")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerWorkload:
    """Trainers by time of submission; simultaneous ones keep their order (FCFS)."""

    name: str
    submissions: tuple[Submission, ...]

    def __post_init__(self) -> None:
        """Check that times do not decrease and names are unique.

        Raises:
            ValueError: with what is wrong.
        """
        times = [submission.submit_s for submission in self.submissions]
        if times != sorted(times):
            raise ValueError("the trainers are not in the order of their submission")
        if len({submission.name for submission in self.submissions}) != len(times):
            raise ValueError("two trainers have one name")

    def __len__(self) -> int:
        """Return the number of trainers."""
        return len(self.submissions)

    def __iter__(self) -> Iterator[Submission]:
        """Yield the trainers in order."""
        return iter(self.submissions)


def check_curve(curve: Curve) -> None:
    """Check the sizes and values of a curve.

    Raises:
        ValueError: with what is wrong.
    """
    sizes, values = curve.sizes, curve.samples_per_s
    if not sizes or len(sizes) != len(values):
        raise ValueError("a curve needs as many values as sizes, at least one")
    if sizes[0] < 1 or any(b <= a for a, b in pairwise(sizes)):
        raise ValueError("the sizes of a curve rise, from 1 on")
    if not all(math.isfinite(value) and value >= 0 for value in values):
        raise ValueError("the values of a curve are numbers of 0 or more")
