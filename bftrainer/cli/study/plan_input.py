"""The input of ``study plan``: the stages of a study, and a trial's speed by nodes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bftrainer.cli.common import connect
from bftrainer.cli.spec import read_curve
from bftrainer.cli.submit_options import parse_sizes
from bftrainer.decide.throughput.curves import points_of
from bftrainer.model.errors import BftError, UsageError
from bftrainer.study.document import StudyDocument, read_study
from bftrainer.study.plan.document import PlanRequest
from bftrainer.study.plan.problem import Billing, Cloud, Draw, ScalingProfile, scaling_of
from bftrainer.study.plan.stages import RungStage, rung_stages
from milp.problem import Curve

MOST_STAGES, MOST_TRIALS = 100, 50_000
HOW = (
    "Write unit_s, the seconds of one unit by nodes, into the study (unit_s: {1: 60, 2: 33}), or"
    " measure: bftrainer profile SCRIPT --table TABLE --out FILE, then --profile FILE; or name a"
    " trainer of that script with --trainer ID."
)


def request_of(path: Path, options: Mapping[str, Any], samples: int) -> PlanRequest:
    """Return what the options of ``study plan`` ask for.

    Raises:
        BftError: BFT-1643, nothing says how fast trials are; BFT-1644, that cannot be used;
            BFT-1645, the rule has no stages.
    """
    study = read_study(path)
    cloud = Cloud(
        gpus_per_instance=options["gpus_per_instance"],
        price_h=options["price_h"],
        billing=Billing(options["billing"]),
        minimum_s=options["minimum_s"],
        scale_s=options["scale_s"],
        init_s=options["init_s"],
        data_price=options["data_price"],
    )
    return PlanRequest(
        study=str(study.name),
        unit=study.unit,
        rule=study.rule_with().describe(),
        stages=stages_of(study),
        deadline_s=options["deadline_s"],
        most=options["most_instances"] * cloud.gpus_per_instance,
        scaling=scaling_of_study(study, options),
        cloud=cloud,
        samples=samples,
        seed=study.seed,
    )


def stages_of(study: StudyDocument) -> tuple[RungStage, ...]:
    """Return the stages of a study's rule (BFT-1645)."""
    if study.parallel != "auto":
        raise UsageError(
            "BFT-1645",
            f"This study cannot be planned: it sets parallel to {study.parallel}, and a plan says"
            " itself how many trials train at once.",
            "Remove 'parallel' from the study.",
        )
    try:
        stages = rung_stages(study.rule_with())
    except ValueError as problem:
        raise UsageError(
            "BFT-1645",
            f"This study cannot be planned: {problem}.",
            "Use the rule sha, hyperband or none; on idle nodes any rule will do, without a plan.",
        ) from problem
    if len(stages) > MOST_STAGES or sum(stage.trials for stage in stages) > MOST_TRIALS:
        raise UsageError(
            "BFT-1645",
            f"This study cannot be planned: it has more than {MOST_STAGES} stages, or more than"
            f" {MOST_TRIALS} trials in all of them.",
            "Plan a smaller one.",
        )
    return stages


def scaling_of_study(study: StudyDocument, options: Mapping[str, Any]) -> ScalingProfile:
    """Return the profile: that of the options, else the study's own."""
    n_min, n_max = parse_sizes(str(study.nodes))
    if options["profile_path"] is not None:
        curve, samples = read_curve(options["profile_path"]), options["epoch_samples"]
    elif options["trainer_id"] is not None:
        curve, samples = _measured(options["trainer_id"], options["socket_name"])
        samples = options["epoch_samples"] or samples
    elif study.unit_s:
        return _usable(study.unit_s, options, n_min, n_max)
    else:
        raise UsageError("BFT-1643", "Nothing says how fast a trial is on how many nodes.", HOW)
    if study.unit == "samples":
        samples = 1
    if not samples:
        raise UsageError(
            "BFT-1644",
            "Budgets are in epochs, and throughput is in samples.",
            "Say with --epoch-samples how many samples an epoch has.",
        )
    try:
        unit_s = dict(zip(curve.sizes, scaling_of(curve, samples).unit_s, strict=True))
    except ValueError as problem:
        raise _unusable(problem) from problem
    return _usable(unit_s, options, n_min, n_max)


def _usable(
    unit_s: Mapping[Any, float], options: Mapping[str, Any], n_min: int, n_max: int
) -> ScalingProfile:
    try:
        sizes = sorted((int(size), float(seconds)) for size, seconds in unit_s.items())
        return ScalingProfile(
            gpus=tuple(size for size, _ in sizes),
            unit_s=tuple(seconds for _, seconds in sizes),
            spread=options["spread"],
            draw=Draw.TASK,
            start_s=options["start_s"],
            n_min=n_min,
            n_max=n_max,
        )
    except ValueError as problem:
        raise _unusable(problem) from problem


def _unusable(problem: ValueError) -> BftError:
    return UsageError("BFT-1644", f"The throughput by nodes cannot be used: {problem}.", HOW)


def _measured(trainer_id: str, socket_name: str | None) -> tuple[Curve, float]:
    """Return a trainer's throughput where it was measured, and its samples per epoch if known."""
    record = connect(socket_name).trainer(trainer_id).record
    points = points_of(record.costs)
    if not points:
        raise UsageError("BFT-1643", f"Nothing is measured of {trainer_id} yet.", HOW)
    curve = Curve(
        sizes=tuple(one.size for one in points),
        samples_per_s=tuple(one.samples_per_s for one in points),
    )
    epochs = record.spec.epochs or 0
    return curve, record.progress.total / epochs if epochs else 0.0
