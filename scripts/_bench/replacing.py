"""Rounds of trials that come, go and change their sizes, placed by Algorithm 3."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bftrainer.study.plan.placing import Placement, place

GPUS = 8  # of an instance
SIZES = (1, 2, 4, 8)


@dataclass(slots=True, kw_only=True)
class Placed:
    """What came of some rounds."""

    rounds: int = 0
    wrong: int = 0  # a trial is missing, or has another number of GPUs
    oversubscribed: int = 0
    split: int = 0  # trials that fit on an instance and are on several
    unchanged: int = 0  # trials that had their size before
    moved: int = 0  # of these


def replaced(histories: int, rounds: int = 4) -> Placed:
    """Place and place again."""
    random, sums = np.random.default_rng(0), Placed()
    for _ in range(histories):
        instances = int(random.integers(2, 9))
        last: Placement = {}
        for number in range(rounds):
            gpus = _drawn(random, last, instances * GPUS, number)
            placement = place(gpus, last, instances, GPUS) or {}
            _count(sums, gpus, last, placement)
            last = placement
    return sums


def _drawn(random: np.random.Generator, last: Placement, left: int, number: int) -> dict[str, int]:
    """Some trials end, some change, new ones come until the instances are full."""
    gpus: dict[str, int] = {}
    for trial, where in last.items():
        if random.random() < 0.3:
            continue
        size = int(random.choice(SIZES)) if random.random() < 0.4 else len(where)
        if size <= left:
            gpus[trial] = size
            left -= size
    while left and random.random() < 0.9:
        size = int(random.choice(SIZES))
        if size <= left:
            gpus[f"{number}-{len(gpus)}"] = size
            left -= size
    return gpus


def _count(sums: Placed, gpus: dict[str, int], last: Placement, found: Placement) -> None:
    used = np.zeros(64, int)
    for where in found.values():
        np.add.at(used, list(where), 1)
    kept = [t for t in gpus if len(last.get(t, ())) == gpus[t]]
    sums.rounds += 1
    sums.wrong += sum(len(found.get(t, ())) != size for t, size in gpus.items())
    sums.wrong += len(set(found) - set(gpus))
    sums.oversubscribed += int(used.max() > GPUS)
    sums.split += sum(len(set(w)) > 1 for w in found.values() if len(w) <= GPUS)
    sums.unchanged += len(kept)
    sums.moved += sum(sorted(found[t]) != sorted(last[t]) for t in kept)
