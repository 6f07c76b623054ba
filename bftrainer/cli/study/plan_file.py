"""The plan that a study carries out: it is kept in the study's directory (``study run --plan``)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from bftrainer.api.documents import CodecError, document, parse, view_of
from bftrainer.cli.study.plan_input import stages_of
from bftrainer.elastic.fence import write_whole
from bftrainer.model.errors import ExitCode, UsageError
from bftrainer.study.directory import StudyDirectory, unwritable
from bftrainer.study.plan.document import NAME, StudyPlan, is_for
from bftrainer.study.plan.execution import Carried
from bftrainer.study.trials import StudyRule


def plan_for(study: StudyDirectory, path: Path) -> StudyPlan:
    """Return the plan in a file if it is one for this study (BFT-1646, BFT-1647)."""
    found = read_plan(path)
    if is_for(found, stages_of(study.document)):
        return found
    raise UsageError(
        "BFT-1647",
        f"The plan was made for other stages: those of {found.study}.",
        "Plan this study anew: bftrainer study plan STUDY.yaml ... --json",
        exit_code=ExitCode.VALIDATION_FAILED,
    )


def keep_plan(study: StudyDirectory, plan: StudyPlan) -> None:
    """Write the plan into the study's directory: from now on it is carried out."""
    try:
        write_whole(study.plan, [json.dumps(document(NAME, plan), indent=1).encode()])
    except OSError as problem:
        raise unwritable(study.plan, problem) from problem


def with_plan(study: StudyDirectory) -> Callable[[StudyRule], StudyRule]:
    """Return how the study's rule becomes one that carries out the plan, if there is a plan."""
    if not study.plan.exists():
        return lambda rule: rule
    plan = read_plan(study.plan)
    return lambda rule: Carried(rule=rule, plan=plan)


def read_plan(path: Path) -> StudyPlan:
    """Return the plan in a file (BFT-1646)."""
    try:
        return view_of(StudyPlan, NAME, parse(path.read_bytes()))
    except (OSError, CodecError, ValueError) as problem:
        raise UsageError(
            "BFT-1646",
            f"{path} is not a plan: {problem}.",
            "Make one with: bftrainer study plan STUDY.yaml ... --json > PLAN.json",
        ) from problem
