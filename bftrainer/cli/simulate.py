"""``bftrainer simulate``: replay a trace with the daemon's own decisions.

Prints a table or a JSON object, and writes CSV or a page with figures. Several policies are
compared. Needs no daemon.
"""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from bftrainer.cli.common import json_option, print_json, print_table
from bftrainer.cli.trace import LateProgress, load, reading_options, selection_options

if TYPE_CHECKING:
    from bftrainer.batch.traces.fragments import Fragments
    from bftrainer.lab.simulator.costs import Injection, PhysicalCosts
    from bftrainer.lab.simulator.session import Choices, OnPlan, ReplayRun
    from bftrainer.lab.workloads.submission import TrainerWorkload
    from bftrainer.model.decision import DecisionInput, Plan

SHIPPED = "sample"
LONGEST_T_FWD_S = 1e9
STEPS = 500  # of the progress bar; more would slow the replay


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
    help="Name (hpo-NETWORK, diverse) or JSON file; see docs/reference/traces.md.",
)  # fmt: skip
@click.option("--policy", "policies", multiple=True, default=("milp",), show_default=True,
              metavar="NAME[,NAME...]",
              help="Decision rule; several are replayed side by side.")  # fmt: skip
@click.option(
    "--objective", default="throughput", show_default=True,
    type=click.Choice(["throughput", "scaling-efficiency", "weighted", "utility"]),
)  # fmt: skip
@click.option("--t-fwd", "t_fwd", default="120", show_default=True, metavar="SECONDS",
              help="Forward-looking time.")  # fmt: skip
@click.option("--p-jmax", type=click.IntRange(1), default=10, show_default=True,
              help="How many trainers run at once.")  # fmt: skip
@click.option("--job-nodes", type=click.IntRange(1),
              help="Nodes a job of no-rescale asks for [default: N_eq / P_jmax].")  # fmt: skip
@click.option("--costs", default="paper", show_default=True,
              help="paper, physical (as measured), or a file of durations.")  # fmt: skip
@click.option("--cost", "given", multiple=True, metavar="NAME=SECONDS",
              help="One duration of the physical model, such as claim=5.")  # fmt: skip
@click.option("--poll-interval", "poll_s", type=click.FloatRange(0.05), metavar="SECONDS",
              help="Time between two polls of the batch system, each with a decision; takes the "
              "place of the cost detection.")  # fmt: skip
@click.option(
    "--slow",
    metavar="SHARE:FRACTION",
    help="Share of the nodes that reach only FRACTION of the usual throughput.",
)
@click.option("--straggler-threshold", type=click.FloatRange(0.0, 0.99), default=0.8,
              show_default=True, help="As in the policy; 0: slow nodes stay.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True)
@click.option("--csv", "csv_file", type=click.Path(path_type=Path), help="Also write a table.")
@click.option("--report", "report_file", type=click.Path(path_type=Path),
              metavar="FILE.html|FILE.png", help="Also write a page with figures.")  # fmt: skip
@json_option
@click.pass_context
def simulate(
    context: click.Context,
    /,
    file: str,
    workload: str,
    costs: str,
    csv_file: Path | None,
    report_file: Path | None,
    *,
    as_json: bool,
    **options: Any,
) -> None:
    """Replay a trace of idle nodes and report what trainers would have made of it."""
    from bftrainer.batch.traces import SAMPLE  # noqa: PLC0415
    from bftrainer.lab.report.tables import (  # noqa: PLC0415
        ReportSetup,
        check_place,
        comparison,
        document,
        write_csv,
    )
    from bftrainer.lab.workloads import by_name, read_workload  # noqa: PLC0415

    chosen = _choices(costs, options)
    if csv_file is not None:
        check_place(csv_file)
    if report_file is not None:
        from bftrainer.lab.report.page import check_destination, write_report  # noqa: PLC0415

        check_destination(report_file)
    trace = load(SAMPLE if file == SHIPPED else Path(file), **options)
    path = Path(workload)
    trainers = read_workload(path) if path.is_file() else by_name(workload, seed=chosen[0].seed)
    runs = _replay(trace, trainers, chosen)
    setup = ReportSetup(
        trace=file, workload=trainers.name, costs=costs, command=command_line(context)
    )
    documents = [document(run, setup, options) for run in runs]
    if csv_file is not None:
        write_csv(csv_file, documents)
    if report_file is not None:
        with _Bar("drawing") as bar:
            write_report(report_file, runs, setup, bar.report)
    if as_json:
        print_json(documents[0] if len(documents) == 1 else {"runs": documents})
        return
    click.echo(setup.sentence(runs))
    print_table(("", *[f">{run.choices.policy}" for run in runs]), comparison(runs))


def _choices(costs: str, options: dict[str, Any]) -> list[Choices]:
    """One per policy, in the order of the command line; takes what it needs out of options.

    Raises:
        UsageError: BFT-3050, there is no such policy; BFT-4101 to 4103, wrong costs.
    """
    from bftrainer.decide.policies.base import load_policy  # noqa: PLC0415
    from bftrainer.lab.simulator.session import Choices  # noqa: PLC0415 - numpy takes 0.1 s
    from milp.problem import Objective  # noqa: PLC0415

    names = [name.strip() for text in options.pop("policies") for name in text.split(",")]
    for name in names:
        load_policy(name)  # before the first of them is replayed
    given = options.pop("given")
    common = Choices(
        objective=Objective(options.pop("objective")),
        t_fwd_s=_forward_time_s(options.pop("t_fwd")),
        p_jmax=options.pop("p_jmax"),
        job_nodes=options.pop("job_nodes"),
        seed=options.pop("seed"),
        costs=_costs(costs, given),
        poll_s=_poll_s(options.pop("poll_s"), costs),
        slow=_injection(options.pop("slow"), costs),
        straggler_threshold=options.pop("straggler_threshold"),
    )
    return [dataclasses.replace(common, policy=name) for name in dict.fromkeys(names)]


def _forward_time_s(text: str) -> float:
    """Read a time in seconds."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0.0 <= seconds <= LONGEST_T_FWD_S:
        raise click.BadParameter(f"{text!r} is not a time in seconds.", param_hint="--t-fwd")
    return seconds


def _poll_s(poll_s: float | None, costs: str) -> float | None:
    """Return the interval of polls."""
    if poll_s is not None and costs == "paper":
        raise click.BadParameter(
            "the paper's bookkeeping has no polls.", param_hint="--poll-interval"
        )
    return poll_s


def _injection(text: str | None, costs: str) -> Injection | None:
    """Return the slow nodes that ``--slow`` asks for; None: it was not given."""
    from bftrainer.lab.simulator.costs import Injection  # noqa: PLC0415

    if text is None:
        return None
    if costs == "paper":
        raise click.BadParameter("the paper's bookkeeping has no slow nodes.", param_hint="--slow")
    share, _, fraction = text.partition(":")
    try:
        found = Injection(share=float(share), fraction=float(fraction))
    except ValueError:
        found = Injection(share=-1.0, fraction=-1.0)
    if not (0.0 <= found.share <= 1.0 and 0.0 < found.fraction < 1.0):
        raise click.BadParameter(f"{text!r} is not SHARE:FRACTION.", param_hint="--slow")
    return found


def _replay(trace: Fragments, workload: TrainerWorkload, chosen: list[Choices]) -> list[ReplayRun]:
    """Replay with each of the choices, with one progress bar for all."""
    from bftrainer.lab.simulator.session import record  # noqa: PLC0415 - numpy takes 0.1 s

    runs: list[ReplayRun] = []
    names = ", ".join(choices.policy for choices in chosen)
    with _Bar(f"replaying with {names}") as bar:
        for choices in chosen:
            tell = _teller(trace.span_s, len(runs), len(chosen), bar.report)
            on_plan = tell if bar.is_shown else None
            runs.append(record(trace, workload, choices, on_plan=on_plan))
    return runs


def _teller(
    span_s: tuple[float, float], done: int, n_runs: int, report: Callable[[float], None]
) -> OnPlan:
    """Return what to call after each decision; it reports now and then."""
    begin_s, end_s = span_s
    step_s = (end_s - begin_s) * n_runs / STEPS
    next_s = begin_s

    def tell(given: DecisionInput, _: Plan) -> None:
        nonlocal next_s
        now_s = given.now_s
        if now_s >= next_s:
            next_s = now_s + step_s
            report((done + (now_s - begin_s) / (end_s - begin_s)) / n_runs)

    return tell


class _Bar(LateProgress):
    """A late progress bar, on terminals only."""

    @property
    def is_shown(self) -> bool:
        """Return whether standard error is a terminal."""
        return sys.stderr.isatty()

    def report(self, share: float) -> None:
        """Show that ``share`` (0 to 1) is done."""
        if self.is_shown:
            super().report(share)


def command_line(context: click.Context) -> str:
    """Return the command line that repeats this run, quoted for a shell."""
    words = ["bftrainer", context.info_name or "simulate"]
    for parameter in context.command.params:
        name = parameter.name or ""
        if context.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            continue
        value = context.params[name]
        for one in value if isinstance(value, tuple) else (value,):
            words.append(parameter.opts[0])
            words += [] if one is True else [_word(one)]
    return shlex.join(words)


def _word(value: object) -> str:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def _costs(costs: str, given: tuple[str, ...]) -> PhysicalCosts | None:
    from bftrainer.lab.simulator.costs import chosen_costs  # noqa: PLC0415

    if costs != "paper":
        return chosen_costs(None if costs == "physical" else Path(costs), given)
    if given:
        raise click.BadParameter("the paper's bookkeeping has none.", param_hint="--cost")
    return None
