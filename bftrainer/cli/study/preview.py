"""A preview of a study and its first trial, for ``study run --dry-run``."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from bftrainer.cli.common import duration
from bftrainer.model.trainer import TrainerSpec
from bftrainer.study.actions import spec_of
from bftrainer.study.configurations import CategoricalParameter, Parameter
from bftrainer.study.directory import StudyDirectory
from bftrainer.study.trials import Scalar, StoredTrial

if TYPE_CHECKING:
    from bftrainer.study.plan.document import PlannedStage, StudyPlan

_FAILED = {"worst": "it counts as the worst", "ignore": "another one takes its place"}


def first_trial(study: StudyDirectory, plan: StudyPlan | None = None) -> TrainerSpec:
    """Return a trial's trainer, with parameters that some trial may have."""
    document, rule = study.document, study.document.rule_with()
    if isinstance(document.configurations, tuple):
        parameters = dict(document.configurations[0])
    else:
        parameters = {name: _example(one) for name, one in document.parameters.items()}
    budget = next((start.budget for start in rule.verdicts((), 1).start), rule.most)
    trial = StoredTrial(number=0, end=None, parameters=parameters, budget=budget)
    nodes = None if plan is None else plan.stages[0].gpus_per_trial
    return spec_of(study, trial, budget=budget, most=rule.most, nodes=nodes)


def preview_lines(study: StudyDirectory, plan: StudyPlan | None = None) -> list[tuple[str, str]]:
    """Return the study as names and values."""
    document, spec = study.document, first_trial(study, plan)
    settings = document.rule_with().describe()
    how = ", ".join(f"{name} {value}" for name, value in settings.items() if name != "name")
    drawn = f"drawn by {document.sampler}, seed {document.seed}"
    if isinstance(document.configurations, tuple):
        drawn = f"{len(document.configurations)} listed configurations"
    return [
        ("study", study.study_id),
        ("directory", str(study.path)),
        ("metric", f"{document.metric}, to {document.direction}"),
        ("rule", f"{settings['name']}: {how}; in {document.unit}"),
        *((f"  {name}", _words(one)) for name, one in document.parameters.items()),
        ("parameters", drawn),
        ("nodes", f"{spec.n_min} to {spec.n_max} for a trial; parallel: {document.parallel}"),
        ("failed", f"tried again up to {document.retry} times, then {_FAILED[document.failed]}"),
        ("a trial runs", shlex.join((spec.interpreter, spec.script, *spec.args)).strip("' ")),
    ]


def plan_lines(plan: StudyPlan | None) -> list[tuple[str, str]]:
    """Return the stages of a plan."""
    if plan is None:
        return []
    return [
        ("plan", f"{duration(plan.time_s.mean)}, {plan.cost.mean:.2f}"),
        *((f"  to {stage.budget}", _stage(stage)) for stage in plan.stages),
    ]


def _stage(stage: PlannedStage) -> str:
    return (
        f"trials {stage.trials}, {stage.at_once} at once, nodes {stage.gpus_per_trial} each,"
        f" {duration(stage.time_s.mean)}"
    )


def _example(one: Parameter) -> Scalar:
    return one.choices[0] if isinstance(one, CategoricalParameter) else one.low


def _words(one: Parameter) -> str:
    if isinstance(one, CategoricalParameter):
        return f"one of {', '.join(map(str, one.choices))}"
    step = f", step {one.step}" if one.step not in (None, 1) else ""
    return f"{one.low} to {one.high}{', log' if one.log else ''}{step}"
