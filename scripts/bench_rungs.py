#!/usr/bin/env python3
"""What the rules of studies are worth on real learning curves, and how long a verdict takes.

LCDB's curves (validation error of classifiers by the size of the training set): 128 configurations,
eta 2, 8 workers on a virtual clock, three orders on each data set. Regret is that of the best
complete trial against the best of all configurations trained in full; resource and time are shares
of what the rule ``none`` takes. The rules ``stopping`` and ``median`` are asked beside Optuna's
pruners about every report. CPU time of a verdict: the slowest of four moments of a study with 1,000
trials, and of ten times as many. Samplers search a parabola with each rule. Prints targets with
``met`` or ``missed``; exits 1 when one is missed. The archive of LCDB is downloaded once with pip
unless --lcdb or BFTRAINER_LCDB names it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from _bench import rungs, samplers
from _bench.benchmark import Benchmark, Measured, note
from _bench.lcdb import ETA, DataSet, archive, data_sets
from _bench.pruners import Beside
from _bench.rule_replay import play
from optuna.pruners import MedianPruner, SuccessiveHalvingPruner

from bftrainer.study.rungs import rule_of
from bftrainer.study.trials import StudyRule, StudyTrial, Verdicts

FEW: Final = 6  # data sets of the targets
MANY: Final = 60  # of the wider table, as far as they have 128 configurations and five anchors
SPREAD: Final = 0.5  # of the logarithm of a trial's speed
REGRET: Final = 0.0030
RESOURCE: Final = 0.23
VERDICT_S: Final = {1: 0.005, 10: 0.050}  # by thousands of trials
TIMED: Final[Mapping[str, Mapping[str, int]]] = {
    "asha": {"trials": 1000},
    "sha": {"trials": 1000},
    "hyperband": {"trials": 1000},
    "stopping": {"trials": 1000},
    "median": {"trials": 1000},
    "none": {"trials": 1000},
    "pbt": {"population": 700, "interval": 9},
}


def measure(arguments: argparse.Namespace, measured: Measured) -> None:
    """Play, compare, time."""
    note("verdicts at 1,000 and 10,000 trials")
    _verdicts(measured, ("asha", "sha") if arguments.quick else tuple(TIMED))
    note("LCDB")
    sets = data_sets(archive(arguments.lcdb), FEW if arguments.quick else MANY)
    few = sets[:FEW]
    _beside(measured, few, rungs.SEEDS[:1] if arguments.quick else rungs.SEEDS)
    found = _table(measured, few, f"{FEW} data sets, {len(rungs.SEEDS)} orders each")
    measured.at_most("asha: regret", found["asha"].regret, REGRET, "of error")
    measured.at_most("asha: resource", found["asha"].resource, RESOURCE, "of full")
    if not arguments.quick:
        whole = [one for one in sets if len(one.errors) >= rungs.TRIALS and one.most == 16]
        note(f"{len(whole)} data sets")
        title = f"{len(whole)} data sets, {len(rungs.SEEDS)} orders each"
        _table(measured, whole, title)
        _table(measured, whole, f"{title}, unequal speeds", SPREAD)
        _toy(measured)
        note("samplers")
        _samplers(measured)


def _samplers(measured: Measured) -> None:
    found = {
        (rule, name): make(rule) for rule in samplers.RULES for name, make in samplers.ROWS.items()
    }
    measured.table(
        f"A parabola of four parameters, {len(samplers.SEEDS)} seeds",
        ("rule", "sampler", "best loss", "+-", "units"),
        [
            (rule, name, f"{best:.4f}", f"{error:.4f}", f"{units:.0f}")
            for (rule, name), (best, error, units) in found.items()
        ],
        left=2,
    )
    measured.results["samplers"] = [
        {"rule": rule, "sampler": name, "best": best, "error": error, "units": units}
        for (rule, name), (best, error, units) in found.items()
    ]
    gain = found["asha", "tpe"][0] / found["asha", "random"][0]
    measured.at_most("asha: best loss with tpe, of that with random", gain, 0.5, "")


def _table(
    measured: Measured, sets: Sequence[DataSet], title: str, spread: float = 0.0
) -> dict[str, rungs.Worth]:
    found = {name: rungs.worth(sets, make, spread) for name, make in rungs.RULES.items()}
    measured.results[title] = {name: asdict(one) for name, one in found.items()}
    measured.table(
        f"LCDB, {title}; {rungs.TRIALS} trials, eta {ETA}, {rungs.WORKERS} workers",
        ("rule", "regret", "+-", "resource", "complete", "time"),
        [
            (
                name,
                f"{one.regret:.4f}",
                f"{one.error:.4f}",
                f"{one.resource:.3f}",
                f"{one.complete:.1%}",
                f"{one.took_s / found['none'].took_s:.3f}",
            )
            for name, one in found.items()
        ],
    )
    return found


def _beside(measured: Measured, sets: Sequence[DataSet], seeds: Sequence[int]) -> None:
    """Ask Optuna's pruners beside our rules."""
    for name, pruner in (
        ("stopping", lambda: SuccessiveHalvingPruner(min_resource=1, reduction_factor=ETA)),
        ("median", MedianPruner),
    ):
        events = different = 0
        for data in sets:
            for seed in seeds:
                order = data.order(seed, rungs.TRIALS)
                rule = rungs.RULES[name](len(order), data.most)
                beside = Beside(rule=rule, pruner=pruner())
                played = rungs.play_on(data, beside, order)
                events += sum(len(trial.values) for trial in played.trials)
                different += len(beside.differences)
        measured.results[f"{name} beside Optuna"] = {"reports": events, "different": different}
        measured.at_most(f"{name}: verdicts unlike Optuna's", different, 0, "reports", f"{events}")


def _toy(measured: Measured) -> None:
    """Play the toy of ``pbt``."""
    rows = []
    for name, rule in rungs.toys().items():
        found = [rungs.toy(rule, seed) for seed in range(10)]
        loss, units = (fmean(column) for column in zip(*found, strict=True))
        rows.append((name, f"{loss:.4f}", f"{units:.0f}"))
    measured.results["toy"] = rows
    title = "Descent on a noisy parabola in 100 steps, its rate searched; 10 seeds"
    measured.table(title, ("rule", "loss", "units"), rows)


@dataclass(slots=True)
class _Watched:
    """A rule that keeps what it was asked."""

    rule: StudyRule
    asked: list[tuple[Sequence[StudyTrial], int]] = field(default_factory=list)

    @property
    def most(self) -> int:
        return self.rule.most

    def verdicts(self, trials: Sequence[StudyTrial], room: int) -> Verdicts:
        self.asked.append((trials, room))
        return self.rule.verdicts(trials, room)

    def describe(self) -> Mapping[str, Any]:
        return self.rule.describe()


def _verdicts(measured: Measured, names: Sequence[str]) -> None:
    rows = []
    for name in names:
        settings: dict[str, Any] = {"name": name, "most": 27, **TIMED[name]}
        watched = _Watched(rule_of(settings))
        play(watched, rungs.drawn_curve, 40)
        moments = [watched.asked[int(len(watched.asked) * at)] for at in (0.25, 0.5, 0.75, 0.99)]
        times_s = {}
        for times in VERDICT_S:
            larger = {k: times * v for k, v in TIMED[name].items() if k != "interval"}
            rule = rule_of({**settings, **larger})
            times_s[times] = max(
                _least_s(rule, _repeated(trials, times), room) for trials, room in moments
            )
        rows.append((name, *(f"{1000 * one:.2f}" for one in times_s.values())))
        measured.results[f"verdict, {name}"] = times_s
        for times, limit_s in VERDICT_S.items():
            measured.at_most(f"{name}: verdict at {times},000 trials", times_s[times], limit_s)
    headings = ("rule", *(f"{times},000 trials" for times in VERDICT_S))
    measured.table("CPU time of a verdict, ms", headings, rows)


def _repeated(trials: Sequence[StudyTrial], times: int) -> tuple[StudyTrial, ...]:
    """Return the study so many times over, with numbers of its own."""
    return tuple(
        replace(
            trial,
            number=trial.number + copy * len(trials),
            parent=None if trial.parent is None else trial.parent + copy * len(trials),
        )
        for copy in range(times)
        for trial in trials
    )


def _least_s(rule: StudyRule, trials: Sequence[StudyTrial], room: int) -> float:
    times_s = []
    for _ in range(3):
        before = time.process_time()
        rule.verdicts(trials, room)
        times_s.append(time.process_time() - before)
    return min(times_s)


BENCHMARK = Benchmark(
    name="rungs",
    title="Rules of studies",
    about=__doc__,
    quick="fewer data sets and rules (about 30 s)",
    measure=measure,
    options={"--lcdb": {"type": Path, "metavar": "FILE", "help": "lcdb-0.1.0.tar.gz of PyPI"}},
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
