"""``bftrainer study plan STUDY.yaml``: the cheapest plan on rented nodes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bftrainer.api.documents import document
from bftrainer.cli.common import duration, json_option, print_json, print_table, socket_option
from bftrainer.cli.study.amounts import parse_price, parse_time
from bftrainer.model.errors import BftError, ExitCode, UsageError

if TYPE_CHECKING:
    from bftrainer.study.plan.document import Amount, PlannedStage, PlanRequest, StudyPlan

SAMPLES = 100
MOST_INSTANCES = 64
MOST_SHOWN = 12  # stages, behind each planner
ROUNDED = 1e-6  # amounts in a document are rounded
_TIME: dict[str, Any] = {"type": parse_time, "metavar": "TIME", "show_default": True}


@click.command()
@click.argument("study_path", metavar="STUDY", type=click.Path(path_type=Path))
@click.option("--deadline", "deadline_s", type=parse_time, required=True, metavar="TIME",
              help="The whole study is to take no longer: 20m, 1h30m.")  # fmt: skip
@click.option("--price", "price_h", type=parse_price, required=True, metavar="PRICE/h",
              help="Of one instance: 12.24/h.")  # fmt: skip
@click.option("--gpus-per-instance", type=click.IntRange(1, 256), default=1, show_default=True,
              metavar="N", help="GPUs (nodes, or slots, of a trial) that are rented together.",
              )  # fmt: skip
@click.option("--instances", "most_instances", type=click.IntRange(1, 1024),
              default=MOST_INSTANCES, show_default=True, metavar="N",
              help="At most so many at once.")  # fmt: skip
@click.option("--scale", "scale_s", default="0s", **_TIME,
              help="From the request of an instance until it is there; not billed.")  # fmt: skip
@click.option("--init", "init_s", default="0s", **_TIME,
              help="From there until it can train; billed.")  # fmt: skip
@click.option("--start", "start_s", default="0s", **_TIME,
              help="What a trial needs in each stage before it trains.")  # fmt: skip
@click.option("--minimum", "minimum_s", default="0s", **_TIME,
              help="An instance costs at least as much as for this long.")  # fmt: skip
@click.option("--data-price", type=click.FloatRange(0.0, 1e9), default=0.0, show_default=True,
              metavar="PRICE", help="Of the download of the data by an instance.")  # fmt: skip
@click.option("--billing", type=click.Choice(["instance", "function"]), default="instance",
              show_default=True, help="What is paid: instances that one has, or GPUs that train.",
              )  # fmt: skip
@click.option("--profile", "profile_path", metavar="FILE",
              help="Throughput by nodes, as bftrainer profile writes it.")  # fmt: skip
@click.option("--trainer", "trainer_id", metavar="ID",
              help="Take the throughput that the daemon measured of this trainer.")  # fmt: skip
@click.option("--epoch-samples", type=click.IntRange(1), metavar="N",
              help="Samples of an epoch, for --profile and --trainer.")  # fmt: skip
@click.option("--spread", type=click.FloatRange(0.0, 3.0), default=0.05, show_default=True,
              metavar="SHARE",
              help="Standard deviation of trials' times, as a share of the mean.")  # fmt: skip
@json_option
@socket_option
def plan(study_path: Path, *, as_json: bool, **options: object) -> None:
    """Say how many GPUs each stage of STUDY.yaml is to have, and what that costs.

    The plan is the cheapest of all that end by the deadline on the average. 'bftrainer study run
    --plan FILE' carries out what --json prints.
    """
    # EMPTY
    from bftrainer.cli.study.plan_input import request_of  # noqa: PLC0415 - slow to import
    from bftrainer.study.plan.document import NAME, plan_study  # noqa: PLC0415

    request = request_of(study_path, options, SAMPLES)
    found = plan_study(request)
    if found is None:
        raise _impossible(request)
    if as_json:
        print_json(document(NAME, found))
    else:
        _print(found)


def _impossible(request: PlanRequest) -> BftError:
    from bftrainer.study.plan.document import soonest  # noqa: PLC0415

    instances = request.cloud.instances(request.most)
    if request.most < request.scaling.n_min:
        cause = f"a trial needs {request.scaling.n_min} GPUs."
    else:
        time_s, cost = soonest(request)
        cause = f"the fastest takes {_exactly(time_s)} and costs {cost:.2f}."
    return UsageError(
        "BFT-1641",
        f"No plan with at most {instances} instances ends within {duration(request.deadline_s)}:"
        f" {cause}",
        "Give it more time with --deadline, or more instances with --instances.",
        exit_code=ExitCode.VALIDATION_FAILED,
    )


def _print(found: StudyPlan) -> None:
    """Print the stages, then the plans of other planners beside the total."""
    headers = ("STAGE", ">TRIALS", f">{found.unit.upper()}", ">GPUS/TRIAL", ">AT ONCE")
    rows = [_cells(number, one) for number, one in enumerate(found.stages, 1)]
    if found.minimum_cost > 0.0:
        rows.append(("minimum charge", *("",) * 7, f"{found.minimum_cost:.2f}", ""))
    total = ("total", *("",) * 5, *_amounts(found.time_s, found.cost))
    print_table((*headers, ">INSTANCES", ">TIME", ">P10-P90", ">COST", ">P10-P90"), [*rows, total])
    click.echo(f"\n{_optimal(found)}\nIt is in time with a probability of {found.in_time:.0%}.\n")
    rivals: list[tuple[str, ...]] = [
        _rival("exact", found.gpus, found.time_s.mean, found.cost.mean, found)
    ]
    for name, one in found.rivals.items():
        if one is None:
            rivals.append((name, "-", "-", "-", "none is in time"))
        else:
            rivals.append(_rival(name, one.gpus, one.time_s, one.cost, found))
    print_table(("PLANNER", ">TIME", ">COST", ">ABOVE", "GPUS BY STAGE"), rivals)


def _optimal(found: StudyPlan) -> str:
    """Return how good the plan is."""
    on_average = f"{duration(found.deadline_s)} on the average"
    gap = _above(found.cost.mean, found.bound)
    if gap < ROUNDED:
        return f"This is the optimum: no plan that takes {on_average} costs less."
    return (
        f"No plan that takes {on_average} costs less than {found.bound:.2f}: this one is at most"
        f" {gap:.2%} above the optimum."
    )


def _cells(number: int, one: PlannedStage) -> tuple[str, ...]:
    return (
        str(number),
        str(one.trials),
        str(one.units),
        str(one.gpus_per_trial),
        str(one.at_once),
        str(one.instances),
        *_amounts(one.time_s, one.cost),
    )


def _amounts(time_s: Amount, cost: Amount) -> tuple[str, ...]:
    return (
        _exactly(time_s.mean),
        f"{_exactly(time_s.low)}-{_exactly(time_s.high)}",
        f"{cost.mean:.2f}",
        f"{cost.low:.2f}-{cost.high:.2f}",
    )


def _rival(
    name: str, gpus: tuple[int, ...], time_s: float, cost: float, found: StudyPlan
) -> tuple[str, ...]:
    above = _above(cost, found.cost.mean)
    stages = " ".join(map(str, gpus[:MOST_SHOWN])) + (" ..." if len(gpus) > MOST_SHOWN else "")
    return name, _exactly(time_s), f"{cost:.2f}", f"{above:.1%}".replace("-0.0%", "0.0%"), stages


def _above(cost: float, least: float) -> float:
    """Return the share by which a cost is above another one; next to nothing costs 0."""
    return cost / least - 1.0 if least > 0.0 else 0.0


def _exactly(seconds: float) -> str:
    """Return a time; a short one to a tenth of a second."""
    return f"{seconds:.1f}s" if seconds < 60.0 else duration(seconds)
