"""What ``bench_rungs.py`` plays: rules on LCDB's curves, variants of others, and a toy for pbt."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Final

import numpy as np

from _bench.lcdb import ETA, DataSet
from _bench.rule_replay import Curve, Parent, Played, play
from bftrainer.study.configurations import FACTORS
from bftrainer.study.rungs import (
    Asha,
    Full,
    Hyperband,
    Median,
    Pbt,
    Sha,
    Stopping,
    best_first,
    rung_of,
)
from bftrainer.study.trials import StudyRule, StudyTrial

TRIALS: Final = 128
WORKERS: Final = 8
SEEDS: Final = (0, 1, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankShare(Stopping):
    """Stops as Ray Tune 2.60 and Syne Tune 0.16 do: by the share of better values."""

    def goes_on(self, value: float, seen: Sequence[float]) -> bool:
        """Go on with at most 1 / eta better; the first one does."""
        return len(seen) == 1 or sum(one < value for one in seen) / len(seen) <= 1 / self.eta


@dataclass(frozen=True, slots=True, kw_only=True)
class Capped(Asha):
    """Promotes at most floor(n / eta) of a rung altogether, not just from its top."""

    def promotable(
        self, trials: Sequence[StudyTrial], budgets: list[int]
    ) -> Iterator[tuple[int, int]]:
        """Leave out who comes too late."""
        left: dict[int, int] = {}
        for number, budget in Asha.promotable(self, trials, budgets):
            if budget not in left:
                rung = budgets.index(budget) - 1
                reached = [t for t in trials if rung_of(t, budgets) >= rung]
                beyond = sum(rung_of(t, budgets) > rung for t in trials)
                left[budget] = len(best_first(reached, budgets[rung])) // self.eta - beyond
            left[budget] -= 1
            if left[budget] >= 0:
                yield number, budget


Make = Callable[[int, int], StudyRule]
RULES: Final[Mapping[str, Make]] = {
    "stopping": lambda n, most: Stopping(trials=n, most=most, eta=ETA),
    "stopping, share of better ones": lambda n, most: RankShare(trials=n, most=most, eta=ETA),
    "asha": lambda n, most: Asha(trials=n, most=most, eta=ETA),
    "asha, floor(n / eta) in all": lambda n, most: Capped(trials=n, most=most, eta=ETA),
    "sha": lambda n, most: Sha(trials=n, most=most, eta=ETA),
    "hyperband": lambda n, most: Hyperband(trials=n, most=most, eta=ETA),
    "median": lambda n, most: Median(trials=n, most=most),
    "none": lambda n, most: Full(trials=n, most=most),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """What a rule is worth on some data sets, means over sets and orders."""

    regret: float  # of the best complete trial against the best of all at the last anchor
    error: float  # standard error of the regret
    resource: float  # units trained, of all units in full
    complete: float  # share of the trials
    took_s: float  # on the virtual clock

    @classmethod
    def of(cls, rows: Sequence[tuple[float, float, float, float]]) -> Worth:
        """Return the means."""
        regrets, *others = zip(*rows, strict=True)
        resource, complete, took_s = (fmean(column) for column in others)
        error = float(np.std(regrets)) / math.sqrt(len(rows))
        return cls(
            regret=fmean(regrets), error=error, resource=resource, complete=complete, took_s=took_s
        )


def play_on(data: DataSet, rule: StudyRule, order: Sequence[int], spread: float = 0.0) -> Played:
    """Play a rule on a data set's configurations in an order.

    Their speeds differ by a factor of about 1 + ``spread`` either way.
    """
    chance = np.random.default_rng(order[0])
    units_s = np.exp(chance.normal(0, spread, len(order)))
    return play(
        rule,
        lambda number, _: replace(data.curve(order[number]), unit_s=float(units_s[number])),
        WORKERS,
    )


def worth(sets: Sequence[DataSet], make: Make, spread: float = 0.0) -> Worth:
    """Play a rule on each data set in each order."""
    rows = []
    for data in sets:
        for seed in SEEDS:
            order = data.order(seed, TRIALS)
            played = play_on(data, make(len(order), data.most), order, spread)
            best = min(data.errors[one][-1] for one in order)
            found = played.best[0] if played.best else 1.0
            share = len(played.complete) / len(order)
            resource = played.units / (len(order) * data.most)
            rows.append((found - best, resource, share, played.took_s))
    return Worth.of(rows)


# ---- pbt: descent on a noisy parabola, whose best rate falls as it goes on -----------------


def toy(rule: StudyRule, seed: int) -> tuple[float, float]:
    """Return the least expected loss and the units trained; the rate is searched.

    One step of rate r takes the mean of the distance d to (1 - r) d and the loss E d^2 to
    (1 - r)^2 E d^2 + r^2. Rates of heirs are changed as ``study.perturbing`` does.
    """
    rates: dict[int, float] = {}
    losses: dict[int, list[float]] = {}

    def draw(number: int, parent: Parent | None) -> Curve:
        chance = np.random.default_rng([seed, number])
        rate, known = float(10 ** chance.uniform(-3, 0)), [100.0]
        if parent is not None:
            rate = min(rates[parent.number] * float(chance.choice(FACTORS)), 1.0)
            known = losses[parent.number][: parent.units + 1]
        while len(known) <= rule.most:
            known = [*known, (1 - rate) ** 2 * known[-1] + rate**2]
        rates[number], losses[number] = rate, known
        return Curve(points=tuple(enumerate(known))[1:])

    played = play(rule, draw, WORKERS)
    return min(trial.values[-1].value for trial in played.complete), played.units


def toys(most: int = 100) -> dict[str, StudyRule]:
    """Return the rules that play the toy."""
    return {
        "pbt": Pbt(population=16, interval=most // 20, most=most),
        "asha": Asha(trials=64, most=most),
        "none": Full(trials=16, most=most),
    }


def drawn_curve(number: int, _: Any = None, most: int = 27) -> Curve:
    """A learning curve that falls by a power, with noise."""
    chance = np.random.default_rng([17, number])
    end, speed = chance.uniform(0, 1), chance.uniform(0.3, 2.3)
    units = np.arange(1, most + 1)
    values = end + (1 - end) / (1 + units) ** speed + chance.normal(0, 0.01, most)
    points = zip(units.tolist(), values.tolist(), strict=True)
    return Curve(points=tuple(points), unit_s=float(chance.uniform(0.5, 2)))
