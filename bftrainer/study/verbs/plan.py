"""``bftrainer study plan STUDY.yaml``: the cheapest plan on rented nodes, and its file.

The plan that a study carries out is kept in the study's directory (``study run --plan``).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bftrainer.api.documents import CodecError, document, parse, view_of
from bftrainer.cli.common import connect
from bftrainer.cli.options import JSON, PATH, SOCKET, argument, option, verb
from bftrainer.cli.output import answer, duration, print_lines, print_table
from bftrainer.ground.fence import write_whole
from bftrainer.ground.regular_file import read_file
from bftrainer.model.errors import ExitCode, UsageError
from bftrainer.study.directory import MOST_BYTES, StudyDirectory, unwritable

if TYPE_CHECKING:
    from bftrainer.study.document import StudyDocument
    from bftrainer.study.plan.document import Amount, PlanRequest, StudyPlan
    from bftrainer.study.plan.problem import RungStage, ScalingProfile
    from bftrainer.study.trials import StudyRule
    from milp.problem import Curve

SAMPLES = 100
MOST_INSTANCES = 64
MOST_SHOWN = 12  # stages, behind each planner
ROUNDED = 1e-6  # amounts in a document are rounded
MOST_STAGES, MOST_TRIALS = 100, 50_000
HOW = (
    "Write unit_s, the seconds of one unit by nodes, into the study (unit_s: {1: 60, 2: 33}), or"
    " measure: bftrainer profile SCRIPT --table TABLE --out FILE, then --profile FILE; or name a"
    " trainer of that script with --trainer ID."
)
NAME = "study-plan"  # of the document
_NUMBER = r"(\d{1,9}(?:\.\d{1,9})?)"
_TIME = re.compile(rf"(?:{_NUMBER}d)?(?:{_NUMBER}h)?(?:{_NUMBER}m)?(?:{_NUMBER}s)?\Z", re.ASCII)
_STEPS_S = (86_400.0, 3_600.0, 60.0, 1.0)
_PRICE = re.compile(rf"{_NUMBER}(?:/(h|min|s))?\Z", re.ASCII)
_PER_H = {None: 1.0, "h": 1.0, "min": 60.0, "s": 3_600.0}
SPEED = [
    option("--profile FILE", "Throughput by nodes, as bftrainer profile writes it.",
           name="profile_path"),
    option("--trainer ID", "Take the throughput that the daemon measured of this trainer.",
           name="trainer_id"),
    option("--epoch-samples N", "Samples of an epoch, for --profile and --trainer.",
           click.IntRange(1)),
]  # fmt: skip


def parse_time(text: str) -> float:
    """Return the seconds of ``45s``, ``20m``, ``1h30m`` or ``2d`` (BFT-1642)."""
    match = _TIME.match(text)
    if not text or match is None:
        raise UsageError(
            "BFT-1642",
            f"{text[:40]!r} is not a time with a unit.",
            "Write for example 90s, 20m or 1h30m.",
        )
    return sum(float(part or 0) * step for part, step in zip(match.groups(), _STEPS_S, strict=True))


def parse_price(text: str) -> float:
    """Return the price of an hour of ``12.24/h``, ``0.2/min`` or ``0.0034/s`` (BFT-1642)."""
    match = _PRICE.match(text)
    price_h = float(match[1]) * _PER_H[match[2]] if match else 0.0
    if price_h <= 0.0:
        raise UsageError(
            "BFT-1642",
            f"{text[:40]!r} is not a price of an instance.",
            "Write for example 12.24/h; the currency is yours.",
        )
    return price_h


@verb(
    argument("study_path", PATH, metavar="STUDY"),
    option("--deadline TIME", "The whole study is to take no longer: 20m, 1h30m.", parse_time,
           name="deadline_s", required=True),
    option("--price PRICE/h", "Of one instance: 12.24/h.", parse_price, name="price_h",
           required=True),
    option("--gpus-per-instance N", "GPUs (of a trial, or its nodes) that are rented together.",
           click.IntRange(1, 256), 1),
    option("--instances N", "At most so many at once.", click.IntRange(1, 1024), MOST_INSTANCES,
           name="most_instances"),
    option("--scale TIME", "From the request of an instance until it is there; not billed.",
           parse_time, "0s", name="scale_s"),
    option("--init TIME", "From there until it can train; billed.",
           parse_time, "0s", name="init_s"),
    option("--start TIME", "What a trial needs in each stage before it trains.",
           parse_time, "0s", name="start_s"),
    option("--minimum TIME", "An instance costs at least as much as for this long.",
           parse_time, "0s", name="minimum_s"),
    option("--data-price PRICE", "Of the download of the data by an instance.",
           click.FloatRange(0.0, 1e9), 0.0, show_default=True),
    option("--billing", "What is paid: instances that one has, or GPUs that train.",
           click.Choice(["instance", "function"]), "instance"),
    *SPEED,
    option("--spread SHARE", "Standard deviation of trials' times, as a share of the mean.",
           click.FloatRange(0.0, 3.0), 0.05),
    JSON, SOCKET,
    example="bftrainer study plan study.yaml --deadline 1h --price 12.24/h --json",
)  # fmt: skip
def plan(study_path: Path, *, as_json: bool, **options: object) -> None:
    """Say how many GPUs each stage of STUDY.yaml is to have, and what that costs.

    The plan is the cheapest of all that end by the deadline on the average. 'bftrainer study run
    --plan FILE' carries out what --json prints.
    """
    from bftrainer.study.plan.document import plan_study  # noqa: PLC0415 - slow to import

    request = request_of(study_path, options, SAMPLES)
    cheapest = plan_study(request)
    if cheapest is None:
        raise _impossible(request)
    answer(cheapest, NAME, _print, as_json=as_json)


def _impossible(request: PlanRequest) -> UsageError:
    from bftrainer.study.plan.document import soonest  # noqa: PLC0415

    if request.most < request.scaling.n_min:
        cause = f"a trial needs {request.scaling.n_min} GPUs."
    else:
        time_s, cost = soonest(request)
        cause = f"the fastest takes {_exactly(time_s)} and costs {cost:.2f}."
    return UsageError(
        "BFT-1641",
        f"No plan with at most {request.cloud.instances(request.most)} instances ends within"
        f" {duration(request.deadline_s)}: {cause}",
        "Give it more time with --deadline, or more instances with --instances.",
        exit_code=ExitCode.VALIDATION_FAILED,
    )


def _print(plan: StudyPlan) -> None:
    """Print the stages, then the plans of other planners beside the total."""
    headers = ("STAGE", ">TRIALS", f">{plan.unit.upper()}", ">GPUS/TRIAL", ">AT ONCE")
    rows = list[tuple[str, ...]]()
    for number, stage in enumerate(plan.stages, 1):
        trials = (str(stage.trials), str(stage.units), str(stage.gpus_per_trial))
        at_once = (str(stage.at_once), str(stage.instances))
        rows.append((str(number), *trials, *at_once, *_amounts(stage.time_s, stage.cost)))
    if plan.minimum_cost > 0.0:
        rows.append(("minimum charge", *("",) * 7, f"{plan.minimum_cost:.2f}", ""))
    rows.append(("total", *("",) * 5, *_amounts(plan.time_s, plan.cost)))
    print_table((*headers, ">INSTANCES", ">TIME", ">P10-P90", ">COST", ">P10-P90"), rows)
    on_average = f"{duration(plan.deadline_s)} on the average"
    gap = _above(plan.cost.mean, plan.bound)
    if gap < ROUNDED:
        optimal = f"This is the optimum: no plan that takes {on_average} costs less."
    else:
        optimal = (
            f"No plan that takes {on_average} costs less than {plan.bound:.2f}: this one is at"
            f" most {gap:.2%} above the optimum."
        )
    print_lines("", optimal, f"It is in time with a probability of {plan.in_time:.0%}.", "")
    rivals = [_rival("exact", plan.gpus, plan.time_s.mean, plan.cost.mean, plan)]
    for name, rival in plan.rivals.items():
        if rival is None:
            rivals.append((name, "-", "-", "-", "none is in time"))
        else:
            rivals.append(_rival(name, rival.gpus, rival.time_s, rival.cost, plan))
    print_table(("PLANNER", ">TIME", ">COST", ">ABOVE", "GPUS BY STAGE"), rivals)


def _amounts(time_s: Amount, cost: Amount) -> tuple[str, ...]:
    return (
        _exactly(time_s.mean),
        f"{_exactly(time_s.low)}-{_exactly(time_s.high)}",
        f"{cost.mean:.2f}",
        f"{cost.low:.2f}-{cost.high:.2f}",
    )


def _rival(
    name: str, gpus: tuple[int, ...], time_s: float, cost: float, plan: StudyPlan
) -> tuple[str, ...]:
    above = f"{_above(cost, plan.cost.mean):.1%}".replace("-0.0%", "0.0%")
    stages = " ".join(map(str, gpus[:MOST_SHOWN]))
    if len(gpus) > MOST_SHOWN:
        stages += " ..."
    return name, _exactly(time_s), f"{cost:.2f}", above, stages


def _above(cost: float, least: float) -> float:
    """Return the share by which a cost is above another one; next to nothing costs 0."""
    return cost / least - 1.0 if least > 0.0 else 0.0


def _exactly(seconds: float) -> str:
    """Return a time; a short one to a tenth of a second."""
    if seconds < 60.0:
        return f"{seconds:.1f}s"
    return duration(seconds)


def request_of(path: Path, options: Mapping[str, Any], samples: int) -> PlanRequest:
    """Return what the options of ``study plan`` ask for.

    Raises:
        BftError: BFT-1643, nothing says how fast trials are; BFT-1644, that cannot be used;
            BFT-1645, the rule has no stages.
    """
    from bftrainer.study.document import read_study  # noqa: PLC0415 - slow to import
    from bftrainer.study.plan.document import PlanRequest  # noqa: PLC0415
    from bftrainer.study.plan.problem import Billing, Cloud  # noqa: PLC0415

    study = read_study(path)
    cloud = Cloud(
        gpus_per_instance=options["gpus_per_instance"],
        price_h=options["price_h"],
        minimum_s=options["minimum_s"],
        scale_s=options["scale_s"],
        init_s=options["init_s"],
        data_price=options["data_price"],
        billing=Billing(options["billing"]),
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
    from bftrainer.study.plan.problem import rung_stages  # noqa: PLC0415 - slow to import

    def refusal(cause: str, next_step: str) -> UsageError:
        return UsageError("BFT-1645", f"This study cannot be planned: {cause}.", next_step)

    if study.parallel != "auto":
        raise refusal(
            f"it sets parallel to {study.parallel}, and a plan says itself how many trials train at"
            " once",
            "Remove 'parallel' from the study.",
        )
    try:
        stages = rung_stages(study.rule_with())
    except ValueError as problem:
        next_step = (
            "Use the rule sha, hyperband or none; on idle nodes any rule will do, without a plan."
        )
        raise refusal(str(problem), next_step) from problem
    if len(stages) > MOST_STAGES or sum(stage.trials for stage in stages) > MOST_TRIALS:
        raise refusal(
            f"it has more than {MOST_STAGES} stages, or more than {MOST_TRIALS} trials in all of"
            " them",
            "Plan a smaller one.",
        )
    return stages


def scaling_of_study(study: StudyDocument, options: Mapping[str, Any]) -> ScalingProfile:
    """Return the profile: that of the options, else the study's own."""
    from bftrainer.cli.curve_file import read_curve  # noqa: PLC0415 - slow to import
    from bftrainer.cli.option_values import parse_gpus, parse_sizes  # noqa: PLC0415
    from bftrainer.study.plan.problem import Draw, ScalingProfile, scaling_of  # noqa: PLC0415

    n_min, n_max, size_set = parse_sizes(str(study.nodes))
    if study.gpus is not None:
        n_min, n_max, size_set = parse_gpus(str(study.gpus)).sizes
    unit_s: Mapping[Any, float] | None = None
    if options["profile_path"] is not None:
        curve, samples = read_curve(options["profile_path"]), options["epoch_samples"]
    elif options["trainer_id"] is not None:
        curve, samples = _measured(options["trainer_id"], options["socket_name"])
        samples = options["epoch_samples"] or samples
    elif study.unit_s:
        unit_s = study.unit_s
    else:
        raise UsageError("BFT-1643", "Nothing says how fast a trial is on how many nodes.", HOW)
    if unit_s is None and study.unit == "samples":
        samples = 1
    if unit_s is None and not samples:
        raise UsageError(
            "BFT-1644",
            "Budgets are in epochs, and throughput is in samples.",
            "Say with --epoch-samples how many samples an epoch has.",
        )
    try:
        if unit_s is None:
            unit_s = dict(zip(curve.sizes, scaling_of(curve, samples).unit_s, strict=True))
        sizes = sorted((int(size), float(seconds)) for size, seconds in unit_s.items())
        return ScalingProfile(
            gpus=tuple(size for size, _ in sizes),
            unit_s=tuple(seconds for _, seconds in sizes),
            spread=options["spread"],
            draw=Draw.TASK,
            start_s=options["start_s"],
            n_min=n_min,
            n_max=n_max,
            sizes=size_set,
        )
    except ValueError as problem:
        cause = f"The throughput by nodes cannot be used: {problem}."
        raise UsageError("BFT-1644", cause, HOW) from problem


def _measured(trainer_id: str, socket_name: str | None) -> tuple[Curve, float]:
    """Return a trainer's throughput where it was measured, and its samples per epoch if known."""
    from bftrainer.decide.throughput.curves import points_of  # noqa: PLC0415 - slow to import
    from milp.problem import Curve  # noqa: PLC0415

    record = connect(socket_name).trainer(trainer_id).record
    points = points_of(record.costs)
    if not points:
        raise UsageError("BFT-1643", f"Nothing is measured of {trainer_id} yet.", HOW)
    curve = Curve(
        sizes=tuple(point.size for point in points),
        samples_per_s=tuple(point.samples_per_s for point in points),
    )
    epochs = record.spec.epochs or 0
    samples = record.progress.total / epochs if epochs else 0.0
    return curve, samples


def plan_for(study: StudyDirectory, path: Path) -> StudyPlan:
    """Return the plan in a file if it is one for this study (BFT-1646, BFT-1647)."""
    from bftrainer.study.plan.document import is_for  # noqa: PLC0415 - slow to import

    plan = read_plan(path, is_typed=True)
    if is_for(plan, stages_of(study.document)):
        return plan
    raise UsageError(
        "BFT-1647",
        f"The plan was made for other stages: those of {plan.study}.",
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
    if not os.path.lexists(study.plan):
        return lambda rule: rule
    from bftrainer.study.plan.document import Carried  # noqa: PLC0415 - slow to import

    plan = read_plan(study.plan)
    return lambda rule: Carried(rule=rule, plan=plan)


def read_plan(path: Path, *, is_typed: bool = False) -> StudyPlan:
    """Return the plan in a file (BFT-1646)."""
    from bftrainer.study.plan.document import StudyPlan  # noqa: PLC0415 - slow to import

    try:
        return view_of(StudyPlan, NAME, parse(read_file(path, MOST_BYTES, is_typed=is_typed)))
    except (OSError, CodecError, ValueError) as problem:
        raise UsageError(
            "BFT-1646",
            f"{path} is not a plan: {problem}.",
            "Make one with: bftrainer study plan STUDY.yaml ... --json > PLAN.json",
        ) from problem
