"""Studies on a trace for bench_hpo.py: the cases, and how each is played."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any, Final

from _bench.studies.curves import drawn
from _bench.studies.session import Figures, StudyRun, play_study, reached
from _bench.studies.trials import SimStudy
from bftrainer.batch.traces.fragments import Fragments
from bftrainer.decide.decision import decide
from bftrainer.decide.policies.base import load_policy
from bftrainer.lab.simulator.physical import MEASURED
from bftrainer.lab.simulator.session import Choices
from bftrainer.lab.workloads import NETWORKS, SAMPLES, hpo
from bftrainer.model.decision import DecisionInput
from bftrainer.study.rungs import rule_of

EPOCHS: Final = 100  # of ImageNet, as each trial of the paper
ETA: Final = 3
REPORTS: Final = (1, 3, 9, 11, 27, 33, 81)  # epochs: the rungs of all rules
OFTEN: Final = tuple(range(5, EPOCHS, 5))  # for median stopping


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One study on the trace."""

    name: str
    rule: str
    parallel: int = 10  # trials active at once, and P_jmax
    n_max: int = 64
    is_physical: bool = False
    least: int = 1  # epochs of the lowest rung

    def played(self, trace: Fragments, trials: int, seed: int) -> StudyRun:
        """Play it with the learning curves of a seed."""
        settings: dict[str, Any] = {"name": self.rule, "trials": trials, "most": EPOCHS}
        if self.rule not in ("none", "median"):
            settings |= {"least": self.least, "eta": ETA}
        trial = hpo(NETWORKS["shufflenet"], n_trainers=1).submissions[0]
        study = SimStudy(
            rule=rule_of(settings),
            curves=drawn(trials, most=EPOCHS, seed=seed),
            trial=replace(trial, n_max=self.n_max),
            unit_samples=SAMPLES / EPOCHS,
            parallel=self.parallel,
            reports=OFTEN if self.rule == "median" else REPORTS,
        )
        costs = MEASURED if self.is_physical else None
        return play_study(trace, study, Choices(p_jmax=self.parallel, costs=costs))


RULES: Final = (
    Case(name="none", rule="none"),
    Case(name="median", rule="median"),
    Case(name="stopping", rule="stopping"),
    Case(name="hyperband", rule="hyperband"),
    Case(name="sha", rule="sha"),
    Case(name="asha", rule="asha"),
)
N_MAX: Final = (1, 4, 16, 64)
LEAST: Final = tuple(
    Case(name=f"asha from {least} epochs", rule="asha", least=least) for least in (3, 9)
)
PARALLEL: Final = tuple(
    Case(name=f"asha, {parallel} at once", rule="asha", parallel=parallel)
    for parallel in (5, 10, 20, 40, 80)
)
COSTS: Final = tuple(
    Case(name=rule, rule=rule, parallel=20, is_physical=True) for rule in ("asha", "stopping")
)


def growth(rule: str, n_max: int, parallel: int) -> Case:
    """Return a study in which trials have at most so many nodes each."""
    return Case(name=f"{rule}, n_max {n_max}", rule=rule, parallel=parallel, n_max=n_max)


def played(case: Case, trace: Fragments, trials: int, seeds: Sequence[int]) -> list[Figures]:
    """Return the figures of a case with the curves of each seed."""
    if case.rule != "none":
        return [case.played(trace, trials, seed).figures for seed in seeds]
    # Nothing depends on the curves but which trial is a good one.
    run = case.played(trace, trials, seeds[0])
    found = []
    for seed in seeds:
        errors = drawn(trials, most=EPOCHS, seed=seed).at([EPOCHS])[:, 0]
        got = reached(run.course, errors, trace.span_s[0])
        found.append(replace(run.figures, best_h=got.best_h, near_h=got.near_h, regret=got.regret))
    return found


def averaged(figures: Sequence[Figures], name: str) -> float:
    """Return the mean of a figure where it is known; NaN: nowhere."""
    values = [float(v) for one in figures if (v := getattr(one, name)) is not None]
    return mean(values) if values else math.nan


def decision_ms(trace: Fragments, active: int, hours: float) -> list[float]:
    """Return what decisions cost while so many trials are active, of which ten may run."""
    given: list[DecisionInput] = []
    study = SimStudy(
        rule=rule_of({"name": "none", "trials": active, "most": EPOCHS}),
        curves=drawn(active, most=EPOCHS, seed=1),
        trial=hpo(NETWORKS["shufflenet"], n_trainers=1).submissions[0],
        unit_samples=SAMPLES / EPOCHS,
        parallel=active,
        reports=(),
    )
    play_study(trace.restrict(hours=hours), study, Choices(), on_plan=lambda g, _: given.append(g))
    policy = load_policy("milp")
    taken = []
    for one in given:
        began = time.process_time()
        decide(one, policy)
        taken.append(1e3 * (time.process_time() - began))
    return taken
