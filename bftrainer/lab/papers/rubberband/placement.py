"""Algorithm 3: random studies that come, grow, shrink and go, placed again and again."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from bftrainer.lab.papers.findings import Reproduced, percent
from bftrainer.lab.papers.paper import Records
from bftrainer.lab.papers.rubberband.algorithm3 import Placement, place
from bftrainer.lab.papers.rubberband.setting import EXPECTED, Points

GPUS = 8  # p3.16xlarge, section 6.2
SIZES = (1, 2, 4, 8)  # of trials
LEAST_INSTANCES, MOST_INSTANCES = 2, 8
TIMES = 4  # that each study is placed
LEAVES, CHANGES, ANOTHER = 0.3, 0.4, 0.9  # probabilities: of a trial, of its size, of one more
SEED = 0


@dataclass(slots=True, kw_only=True)
class Placed:
    """What came of all placements."""

    rounds: int = 0  # placements
    wrong: int = 0  # trials that are missing, or have another number of GPUs
    oversubscribed: int = 0  # placements
    fitting: int = 0  # trials that fit on an instance
    split: int = 0  # of these, on several
    unchanged: int = 0  # trials that had their number of GPUs before
    moved: int = 0  # of these


def replaced(histories: int) -> Placed:
    """Place so many random studies, each ``TIMES`` times."""
    counts, chance = Placed(), np.random.default_rng(SEED)
    for _ in range(histories):
        instances = int(chance.integers(LEAST_INSTANCES, MOST_INSTANCES + 1))
        last: Placement = {}
        for time in range(TIMES):
            gpus = _next(chance, last, instances * GPUS, time)
            found = place(gpus, last, instances, GPUS) or {}
            _count(counts, gpus, last, found)
            last = found
    return counts


def find(_: Records, extent: Points) -> Reproduced:
    """Count oversubscribed instances, trials that are split, and those that are moved."""
    placed = replaced(extent.placements)
    line = EXPECTED.line
    over = placed.oversubscribed + placed.wrong
    return Reproduced(
        lines=(
            line("alg3", "over", float(over), holds=over == 0, of=placed.rounds),
            line("alg3", "split", float(placed.split), holds=placed.split == 0, of=placed.fitting),
            line("alg3", "moved", percent(placed.moved / placed.unchanged), of=placed.unchanged),
        )
    )


def _next(chance: np.random.Generator, last: Placement, room: int, time: int) -> dict[str, int]:
    """Draw who is there next: some have left, some have other sizes, some are new."""
    gpus: dict[str, int] = {}
    for trial, where in last.items():
        if chance.random() < LEAVES:
            continue
        size = int(chance.choice(SIZES)) if chance.random() < CHANGES else len(where)
        if size <= room:
            gpus[trial] = size
            room -= size
    while room and chance.random() < ANOTHER:
        size = int(chance.choice(SIZES))
        if size <= room:
            gpus[f"{time}-{len(gpus)}"] = size
            room -= size
    return gpus


def _count(counts: Placed, gpus: dict[str, int], last: Placement, found: Placement) -> None:
    used = Counter(instance for where in found.values() for instance in where)
    counts.rounds += 1
    counts.oversubscribed += max(used.values(), default=0) > GPUS
    counts.wrong += len(set(found) - set(gpus))
    for trial, size in gpus.items():
        where = found.get(trial, ())
        counts.wrong += len(where) != size
        if size <= GPUS:
            counts.fitting += 1
            counts.split += len(set(where)) > 1
        if len(last.get(trial, ())) == size:
            counts.unchanged += 1
            counts.moved += sorted(where) != sorted(last[trial])
