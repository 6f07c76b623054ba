"""Algorithm 3: random studies that come, grow, shrink and go, placed again and again."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from bftrainer.papers.findings import Reproduced, percent
from bftrainer.papers.paper import Records
from bftrainer.papers.rubberband.extent import Points
from bftrainer.papers.rubberband.published import EXPECTED
from bftrainer.study.plan.placing import Placement, place

GPUS = 8  # p3.16xlarge, section 6.2
SIZES = (1, 2, 4, 8)  # of trials
LEAST_INSTANCES, MOST_INSTANCES = 2, 8
TIMES = 4  # that each study is placed
LEAVES, CHANGES, ANOTHER = 0.3, 0.4, 0.9  # probabilities: of a trial, of its size, of one more
SEED = 2021


@dataclass(slots=True)
class _Counts:
    """What was seen."""

    placements: int = 0
    over: int = 0
    fitting: int = 0  # trials that fit on an instance
    split: int = 0
    same: int = 0  # trials with the same GPUs as before
    moved: int = 0


def find(_: Records, extent: Points) -> Reproduced:
    """Count oversubscribed instances, trials that are split, and those that are moved."""
    counts = _Counts()
    chance = np.random.default_rng(SEED)
    for _study in range(extent.placements):
        instances = int(chance.integers(LEAST_INSTANCES, MOST_INSTANCES + 1))
        last: Placement = {}
        for time in range(TIMES):
            gpus = _next(chance, last, instances * GPUS, time)
            found = place(gpus, last, instances, GPUS)
            if found is None or set(found) != set(gpus):
                raise RuntimeError("a trial was not placed though there is room")
            _count(counts, gpus, last, found)
            last = found
    line = EXPECTED.line
    return Reproduced(
        lines=(
            line("alg3", "over", float(counts.over), holds=counts.over == 0, of=counts.placements),
            line("alg3", "split", float(counts.split), holds=counts.split == 0, of=counts.fitting),
            line("alg3", "moved", percent(counts.moved / counts.same), of=counts.same),
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


def _count(counts: _Counts, gpus: dict[str, int], last: Placement, found: Placement) -> None:
    counts.placements += 1
    used = Counter(instance for where in found.values() for instance in where)
    is_wrong = any(len(found[trial]) != size for trial, size in gpus.items())
    counts.over += is_wrong or max(used.values(), default=0) > GPUS
    for trial, size in gpus.items():
        if size <= GPUS:
            counts.fitting += 1
            counts.split += len(set(found[trial])) > 1
        if len(last.get(trial, ())) == size:
            counts.same += 1
            counts.moved += sorted(found[trial]) != sorted(last[trial])
