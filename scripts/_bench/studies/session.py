"""One replay of a study with given settings, and its figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from _bench.studies.books import PromptModel
from _bench.studies.replay import StudyReplay
from _bench.studies.trials import Happening, SimStudy, Trials
from bftrainer.batch.traces.fragments import HOUR_S, Fragments
from bftrainer.decide.policies.base import load_policy
from bftrainer.lab.simulator.metrics import static_samples
from bftrainer.lab.simulator.paper import PaperModel
from bftrainer.lab.simulator.physical import PhysicalModel
from bftrainer.lab.simulator.replay import Outcome
from bftrainer.lab.simulator.session import Choices, OnPlan, settings_of
from bftrainer.lab.simulator.trainers import Tally
from bftrainer.model.decision import DecisionInput, Plan
from bftrainer.study.trials import TrialStage

NEAR = 0.01  # of error: a configuration is good enough


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """What a study has found; None: it did not come to that."""

    best_h: float | None  # until the best of all configurations has been trained in full
    near_h: float | None  # until one within NEAR of it has been
    regret: float | None  # error of the best one trained in full, less that of the best of all
    complete: int  # trained in full


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures(Reached):
    """Figures of merit of a study on a trace."""

    hours: float  # until the study is over, or the trace
    is_over: bool
    units: float  # trained by all trials, over what all would need in full
    trials: int
    waiting_most: int  # trials that waited at a rung at the same time
    node_h: float  # on which trials trained
    offered_node_h: float  # while the study ran
    utilization: float  # U while it ran
    rescales: int  # changes of size by decision, starts included
    preemptions: int
    decisions: int
    decision_ms_mean: float
    decision_ms_p99: float
    decision_ms_max: float
    rule_ms_mean: float
    rule_ms_max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRun:
    """One replay of a study."""

    figures: Figures
    course: tuple[Happening, ...]
    outcome: Outcome


def play_study(
    trace: Fragments,
    study: SimStudy,
    choices: Choices,
    *,
    on_plan: OnPlan = lambda _given, _plan: None,
) -> StudyRun:
    """Play a study on a trace, with the paper's costs unless physical ones are chosen.

    Raises:
        UsageError: BFT-3050, there is no such policy.
        ValueError: the rule starts more trials than there are curves, or perturbs some.
    """
    tally = Tally()
    books: PaperModel = PromptModel(tally)
    if choices.costs is not None:
        books = PhysicalModel(tally, choices.costs, seed=choices.seed)
    seconds = list[float]()

    def decided(given: DecisionInput, plan: Plan) -> None:
        seconds.append(tally.decide_s)
        on_plan(given, plan)

    replay = StudyReplay(
        trace,
        study,
        settings=settings_of(choices),
        policy=load_policy(choices.policy),
        books=books,
        seed=choices.seed,
        on_plan=decided,
    )
    outcome = replay.run()
    decide_ms = 1e3 * np.diff(seconds, prepend=0.0)
    return StudyRun(
        figures=_figures(outcome, replay.trials, choices, decide_ms),
        course=tuple(replay.trials.course),
        outcome=outcome,
    )


def reached(course: Sequence[Happening], errors: NDArray[np.float64], begin_s: float) -> Reached:
    """Return what a study has found.

    Args:
        course: what happened.
        errors: of all configurations, trained in full.
        begin_s: of the study.
    """
    in_full = {h.number: h.at_s for h in course if h.stage is TrialStage.COMPLETE}
    best = int(np.argmin(errors))
    least = float(errors[best])
    near_s = [at_s for number, at_s in in_full.items() if errors[number] <= least + NEAR]
    return Reached(
        best_h=(in_full[best] - begin_s) / HOUR_S if best in in_full else None,
        near_h=(min(near_s) - begin_s) / HOUR_S if near_s else None,
        regret=min([float(errors[n]) for n in in_full]) - least if in_full else None,
        complete=len(in_full),
    )


def _figures(
    outcome: Outcome, trials: Trials, choices: Choices, decide_ms: NDArray[np.float64]
) -> Figures:
    tally, begin_s = outcome.tally, outcome.trace.span_s[0]
    study, trainers = trials.study, outcome.trainers
    end_s = trials.over_s or outcome.trace.span_s[1]
    span_s = end_s - begin_s
    found = reached(trials.course, study.curves.at([study.rule.most])[:, 0], begin_s)
    trained = sum([min(t.done, t.submission.samples) for t in trainers])
    static = static_samples(trainers, tally.node_s_offered / span_s, choices.p_jmax, span_s)
    rule_ms = 1e3 * np.array(trials.rule_s)
    return Figures(
        hours=span_s / HOUR_S,
        is_over=trials.over_s is not None,
        best_h=found.best_h,
        near_h=found.near_h,
        regret=found.regret,
        units=trained / study.unit_samples / (len(study.curves) * study.rule.most),
        trials=len(trainers),
        complete=found.complete,
        waiting_most=_waiting_most(trials.course),
        node_h=tally.node_s_used / HOUR_S,
        offered_node_h=tally.node_s_offered / HOUR_S,
        utilization=trained / static if static else 0.0,
        rescales=sum([t.rescales for t in trainers]),
        preemptions=sum([t.preemptions for t in trainers]),
        decisions=tally.decisions,
        decision_ms_mean=float(decide_ms.mean()),
        decision_ms_p99=float(np.quantile(decide_ms, 0.99)),
        decision_ms_max=float(decide_ms.max()),
        rule_ms_mean=float(rule_ms.mean()),
        rule_ms_max=float(rule_ms.max()),
    )


def _waiting_most(course: Sequence[Happening]) -> int:
    """Return how many trials waited at once at most, instants counted as a whole."""
    waiting, most = set[int](), 0
    for k, happening in enumerate(course):
        (waiting.add if happening.stage is TrialStage.WAITING else waiting.discard)(
            happening.number
        )
        if k + 1 == len(course) or course[k + 1].at_s > happening.at_s:
            most = max(most, len(waiting))
    return most
