"""``bftrainer simulate``: replay a trace with the daemon's own decisions.

A trace and a workload come in; one JSON object, CSV or a table of figures goes out. With
several policies they are replayed side by side. No daemon is asked.
"""

from __future__ import annotations

import csv
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bftrainer.cli.common import json_option, print_json, print_table
from bftrainer.cli.trace import LateProgress, load, reading_options, selection_options

if TYPE_CHECKING:
    from bftrainer.simulate.costs import PhysicalCosts
    from bftrainer.simulate.metrics import Metrics

SHIPPED = "sample"


@click.command()
@click.option(
    "--trace",
    "file",
    default=SHIPPED,
    show_default=True,
    help="Trace file in any format of 'bftrainer trace', or the generated sample.",
)
@selection_options
@reading_options
@click.option(
    "--workload", default="hpo-shufflenet", show_default=True,
    help="Name (hpo-NETWORK, diverse) or JSON file; see docs/traces.md.",
)  # fmt: skip
@click.option("--policy", "policies", multiple=True, default=("milp",), show_default=True,
              help="Decision rule; several are replayed side by side.")  # fmt: skip
@click.option("--objective", default="throughput", show_default=True,
              type=click.Choice(["throughput", "scaling-efficiency", "weighted"]))  # fmt: skip
@click.option("--t-fwd", "t_fwd_s", type=click.FloatRange(0), default=120.0, show_default=True,
              help="Forward-looking time in seconds.")  # fmt: skip
@click.option("--p-jmax", type=click.IntRange(1), default=10, show_default=True,
              help="How many trainers run at once.")  # fmt: skip
@click.option("--costs", default="paper", show_default=True,
              help="paper, physical, or a file of durations (bench_rescale's).")  # fmt: skip
@click.option("--cost", "given", multiple=True, metavar="NAME=SECONDS",
              help="One duration of the physical model, such as claim=5.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True)
@click.option("--csv", "csv_file", type=click.Path(path_type=Path), help="Also write a table.")
@json_option
def simulate(
    file: str,
    workload: str,
    policies: tuple[str, ...],
    objective: str,
    costs: str,
    given: tuple[str, ...],
    csv_file: Path | None,
    *,
    as_json: bool,
    **options: Any,
) -> None:
    """Replay a trace of idle nodes and say what it would have been good for."""
    from bftrainer.simulate.session import Choices, play  # noqa: PLC0415 - numpy takes 0.1 s
    from bftrainer.simulate.traces import SAMPLE  # noqa: PLC0415
    from bftrainer.simulate.workloads import by_name, read_workload  # noqa: PLC0415
    from milp.problem import Objective  # noqa: PLC0415

    t_fwd_s, p_jmax, seed = (options.pop(name) for name in ("t_fwd_s", "p_jmax", "seed"))
    trace = load(SAMPLE if file == SHIPPED else Path(file), **options)
    path = Path(workload)
    chosen = read_workload(path) if path.is_file() else by_name(workload, seed=seed)
    physical = _costs(costs, given)
    found: list[dict[str, Any]] = []
    begin_s, end_s = trace.span_s
    for policy in dict.fromkeys(policies):
        choices = Choices(
            policy=policy,
            objective=Objective(objective),
            t_fwd_s=t_fwd_s,
            p_jmax=p_jmax,
            costs=physical,
            seed=seed,
        )
        with LateProgress(f"replaying with {policy}") as progress:
            _, metrics = play(
                trace,
                chosen,
                choices,
                on_plan=lambda given, _: progress.report(
                    (given.now_s - begin_s) / (end_s - begin_s)
                ),
            )
        found.append(_document(file, chosen.name, costs, choices.seed, policy, metrics, options))
        found[-1] |= {"t_fwd_s": t_fwd_s, "p_jmax": p_jmax, "objective": objective}
    if csv_file is not None:
        _write_csv(csv_file, found)
    if as_json:
        print_json(found[0] if len(found) == 1 else {"replays": found})
        return
    names = [name for name in found[0] if name != "selection"]
    print_table(("", *[f">{r['policy']}" for r in found]), [_row(name, found) for name in names])


def _costs(costs: str, given: tuple[str, ...]) -> PhysicalCosts | None:
    from bftrainer.simulate.costs import costs_from_file, costs_from_mapping  # noqa: PLC0415

    if costs == "paper":
        if given:
            raise click.BadParameter("the paper's bookkeeping has none.", param_hint="--cost")
        return None
    durations: dict[str, float] = {}
    for assignment in given:
        name, _, text = assignment.partition("=")
        try:
            durations[name] = float(text)
        except ValueError:
            raise click.BadParameter(f"{text!r} is no number.", param_hint="--cost") from None
    own = costs_from_mapping(durations, "--cost")
    if costs == "physical":
        return own
    read = costs_from_file(Path(costs))
    named = {name.removesuffix("_s") for name in durations}
    return dataclasses.replace(read, **{name: getattr(own, name) for name in named})


def _document(
    file: str,
    workload: str,
    costs: str,
    seed: int,
    policy: str,
    metrics: Metrics,
    selection: dict[str, Any],
) -> dict[str, Any]:
    return {
        "policy": policy,
        "trace": file,
        "workload": workload,
        "costs": costs,
        "seed": seed,
        "selection": {k: v for k, v in selection.items() if v not in (None, (), False)},
        **dataclasses.asdict(metrics),
    }


def _row(name: str, found: list[dict[str, Any]]) -> tuple[str, ...]:
    cells = [replay[name] for replay in found]
    return (name, *[f"{c:,.4g}" if isinstance(c, float) else str(c) for c in cells])


def _write_csv(path: Path, found: list[dict[str, Any]]) -> None:
    names = [name for name in found[0] if name != "selection"]
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, names, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(found)
