"""``bftrainer simulate``, ``compare``, ``whatif``: replays of idle nodes by the daemon's decisions.

``compare`` plays policies side by side, with confidence intervals; ``whatif`` predicts what a site
would harvest, from its own accounting. They print tables or JSON, and write CSV or a page with
figures. None needs a daemon.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from bftrainer.cli.options import JSON, PATH, PROCESSES, option, verb
from bftrainer.cli.output import print_json, print_lines
from bftrainer.lab.verbs.report_text import print_report
from bftrainer.lab.verbs.trace import (
    READING,
    READING_NAMES,
    SELECTION,
    SELECTION_NAMES,
    LateProgress,
    load,
    workload_of,
)
from bftrainer.lab.verbs.whatif_harm import HARM_OPTIONS, OWN_NAMES, answer_harm, is_asked
from bftrainer.model.columns import counted
from bftrainer.model.errors import UsageError

if TYPE_CHECKING:
    from bftrainer.batch.traces.fragments import Fragments
    from bftrainer.lab.compare import Arena
    from bftrainer.lab.simulator.physical import Injection
    from bftrainer.lab.simulator.session import Choices, ReplayRun
    from bftrainer.lab.whatif import Assumptions
    from bftrainer.lab.whatif.advice import Effort
    from bftrainer.lab.workloads import TrainerWorkload
    from bftrainer.model.decision import DecisionInput, Plan

SHIPPED = "sample"
LONGEST_T_FWD_S = 1e9
_CHOSEN = ("p_jmax", "job_nodes", "seed", "poll_s", "straggler_threshold")
_PHYSICAL = (  # option, its name on the command line, what is lacking without a physical model
    ("assignments", "--cost", "none"),
    ("poll_s", "--poll-interval", "no polls"),
    ("slow", "--slow", "no slow nodes"),
)
STEPS = 500  # of the progress bar; more would slow the replay
ALL = "all"
IDLE, SPOT, DEDICATED, SITE = ARENAS = ("idle", "spot", "dedicated", "site")
DATA_VARIABLE = "BFTRAINER_DATA"
TRAINERS = 40  # most of them end within the span
SITE_NODES, SITE_HOURS = 64, 2.0
QUICK_SEEDS, QUICK_HOURS = 2, 6.0
PILOT_PARTITION = "bf"  # where the Slurm adapter submits pilots unless told otherwise


@verb(
    option("--trace FILE", "Trace file in any format of 'bftrainer trace', or the generated "
           "sample.",
           default=SHIPPED, name="file"),
    *SELECTION, *READING,
    option("--workload NAME|FILE", "Name (hpo-NETWORK, diverse) or JSON file; see "
           "docs/reference/traces.md.",
           default="hpo-shufflenet"),
    option("--policy NAME[,NAME...]", "Decision rule; several are replayed side by side.",
           default=("milp",), name="policies", multiple=True),
    option("--objective", "What the policy milp makes the most of.",
           click.Choice(["throughput", "scaling-efficiency", "weighted", "utility"]),
           default="throughput"),
    option("--t-fwd SECONDS", "How far ahead a decision looks.", default="120", name="t_fwd"),
    option("--p-jmax", "How many trainers run at once.", click.IntRange(1), 10),
    option("--job-nodes", "Nodes a job of no-rescale asks for  [default: the mean number of "
           "idle nodes, shared by --p-jmax]",
           click.IntRange(1)),
    option("--costs NAME|FILE", "paper, physical (as measured), or a file of durations.",
           default="paper"),
    option("--cost NAME=SECONDS", "One duration of the physical model, such as claim=5.",
           name="assignments", multiple=True),
    option("--poll-interval SECONDS", "Time between two polls of the batch system, each with a "
           "decision; takes the place of the cost detection.", click.FloatRange(0.05),
           name="poll_s"),
    option("--slow SHARE:FRACTION", "Share of the nodes that reach only FRACTION of the usual "
           "throughput."),
    option("--straggler-threshold", "As in the policy; 0: slow nodes stay.",
           click.FloatRange(0.0, 0.99), 0.8),
    option("--seed", "The same seed gives the same figures.", click.IntRange(0), 1),
    option("--csv", "Also write a table.", PATH, name="csv_file"),
    option("--report FILE.html|FILE.png", "Also write a page with figures.", PATH,
           name="report_file"),
    JSON,
    example="bftrainer simulate --hours 12 --policy milp,equal-share",
)  # fmt: skip
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
    """Replay a trace of idle nodes and report what trainers would have made of it.

    A trace says which nodes were idle, from when until when. "bftrainer trace" makes one from the
    records of a batch system.
    """
    from bftrainer.lab.report import (  # noqa: PLC0415
        ReportSetup,
        check_place,
        document,
        report_of,
        write_csv,
    )

    choices = _choices(costs, options)
    if csv_file is not None:
        check_place(csv_file)
    if report_file is not None:
        from bftrainer.lab.report import check_destination, write_report  # noqa: PLC0415

        check_destination(report_file)
    trace = load(_trace_file(file), **options)
    trainers = workload_of(workload, choices[0].seed)
    runs = _replay(trace, trainers, choices)
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
        if len(documents) == 1:
            print_json(documents[0])
        else:
            print_json({"runs": documents})
        return
    print_report(report_of(runs, setup))


def _trace_file(file: str) -> Path:
    """Return the file that ``--trace`` names, or the generated sample that is shipped."""
    from bftrainer.batch.traces import SAMPLE  # noqa: PLC0415 - numpy takes 0.1 s

    return SAMPLE if file == SHIPPED else Path(file)


def _choices(costs: str, options: dict[str, Any]) -> list[Choices]:
    """One per policy, in the order of the command line; takes what it needs out of options.

    Raises:
        UsageError: BFT-3050, there is no such policy; BFT-4101 to 4103, wrong costs.
    """
    from bftrainer.decide.policies.base import load_policy  # noqa: PLC0415
    from bftrainer.lab.simulator.physical import chosen_costs  # noqa: PLC0415 - numpy takes 0.1 s
    from bftrainer.lab.simulator.session import Choices  # noqa: PLC0415
    from milp.problem import Objective  # noqa: PLC0415

    names = list(map(str.strip, ",".join(options.pop("policies")).split(",")))
    for name in names:
        load_policy(name)  # before the first of them is replayed
    if costs == "paper":
        for name, hint, lack in _PHYSICAL:
            if options[name]:
                cause = f"the paper's bookkeeping has {lack}."
                raise click.BadParameter(cause, param_hint=hint)
    t_fwd_s = _forward_time_s(options.pop("t_fwd"))
    assignments, physical_costs = options.pop("assignments"), None
    if costs == "physical":
        physical_costs = chosen_costs(None, assignments)
    elif costs != "paper":
        physical_costs = chosen_costs(Path(costs), assignments)
    common = Choices(
        objective=Objective(options.pop("objective")),
        t_fwd_s=t_fwd_s,
        costs=physical_costs,
        slow=_injection(options.pop("slow")),
        **{name: options.pop(name) for name in _CHOSEN},
    )
    return [dataclasses.replace(common, policy=name) for name in dict.fromkeys(names)]


def _forward_time_s(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0.0 <= seconds <= LONGEST_T_FWD_S:
        raise click.BadParameter(f"{text!r} is not a time in seconds.", param_hint="--t-fwd")
    return seconds


def _injection(text: str | None) -> Injection | None:
    """Return the slow nodes that ``--slow`` asks for; None: it was not given."""
    from bftrainer.lab.simulator.physical import Injection  # noqa: PLC0415

    if text is None:
        return None
    with contextlib.suppress(ValueError):
        share, _, fraction = text.partition(":")
        injection = Injection(share=float(share), fraction=float(fraction))
        if 0.0 <= injection.share <= 1.0 and 0.0 < injection.fraction < 1.0:
            return injection
    raise click.BadParameter(f"{text!r} is not SHARE:FRACTION.", param_hint="--slow")


def _replay(
    trace: Fragments, workload: TrainerWorkload, choices_by_policy: list[Choices]
) -> list[ReplayRun]:
    """Replay with each of the choices, with one progress bar for all."""
    from bftrainer.lab.simulator.session import record  # noqa: PLC0415 - numpy takes 0.1 s

    runs: list[ReplayRun] = []
    begin_s, end_s = trace.span_s
    next_s = begin_s

    def tell(decision_input: DecisionInput, _: Plan) -> None:
        """Report now and then how far the replays are."""
        nonlocal next_s
        now_s = decision_input.now_s
        if now_s >= next_s:
            next_s = now_s + (end_s - begin_s) * len(choices_by_policy) / STEPS
            share = (now_s - begin_s) / (end_s - begin_s)
            bar.report((len(runs) + share) / len(choices_by_policy))

    with _Bar(
        f"replaying with {', '.join(choices.policy for choices in choices_by_policy)}"
    ) as bar:
        for choices in choices_by_policy:
            next_s = begin_s
            runs.append(record(trace, workload, choices, on_plan=tell if bar.is_shown else None))
    return runs


def _is_watched() -> bool:
    """Return whether somebody at a terminal sees standard error."""
    return sys.stderr.isatty()


class _Bar(LateProgress):
    """A late progress bar, on terminals only."""

    @property
    def is_shown(self) -> bool:
        """Return whether standard error is a terminal."""
        return _is_watched()

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
        values = value if isinstance(value, tuple) else (value,)
        for word in values:
            words.append(parameter.opts[0])
            if isinstance(word, float) and word.is_integer():
                words.append(str(int(word)))  # as people write it
            elif word is not True:
                words.append(str(word))
    return shlex.join(words)


@verb(
    option("--policies NAME[,NAME...]", "Policies; the others are held to the first.", default=ALL),
    option("--arena", "What is played; repeat for more.  [default: all that can be]",
           click.Choice(ARENAS), name="arenas", multiple=True),
    option("--seeds", "How often, each time with other nodes, times and orders.",
           click.IntRange(1, 1000), 5),
    option("--trace FILE", "Trace of the arena idle, as for simulate.",
           default=SHIPPED, name="file"),
    *READING,
    option("--workload NAME|FILE", "Name or JSON file, as for simulate.", default="diverse"),
    option("--trainers", "So many of the workload, at most.", click.IntRange(1), TRAINERS,
           name="n_trainers"),
    option("--nodes", "Of the trace.", click.IntRange(1), 256, name="n_nodes"),
    option("--hours", "Of the trace.", click.FloatRange(0.1), 24.0),
    option("--quick", f"At most {QUICK_SEEDS} seeds, {QUICK_HOURS:g} h."),
    option("--p-jmax", "How many trainers run at once.", click.IntRange(1), 10),
    option("--physical", "Physical costs of rescales instead of the paper's."),
    option("--report FILE.html", "Also write a page with figures.", PATH, name="report_file"),
    option("--processes", "Plays at a time.", click.IntRange(1, 256), os.cpu_count() or 1,
           show_default="number of cores"),
    JSON,
    example="bftrainer compare --quick --report compare.html",
)  # fmt: skip
@click.pass_context
def compare(
    context: click.Context,
    /,
    policies: str,
    seeds: int,
    report_file: Path | None,
    processes: int,
    *,
    quick: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Play the same workloads with several policies and show what differs."""
    from bftrainer.lab import compare as table  # noqa: PLC0415 - numpy takes 0.1 s
    from bftrainer.lab.compare import play_all  # noqa: PLC0415

    names = _policies(policies)
    if quick:
        seeds = min(seeds, QUICK_SEEDS)
        options["hours"] = min(options["hours"], QUICK_HOURS)
    if report_file is not None:
        from bftrainer.lab.report import check_place  # noqa: PLC0415

        table.check_pictures()
        check_place(report_file)
    arenas = _arenas(**options)
    numbers = range(1, seeds + 1)
    with LateProgress(f"playing {len(names)} policies") as progress:
        plays = play_all(arenas, names, numbers, processes=processes, on_progress=progress.report)
    if report_file is not None:
        table.write_page(report_file, plays, arenas, names, numbers, command_line(context))
    if as_json:
        print_json(table.document(plays, arenas, names, numbers))
        return
    print_report(table.report_of(plays, arenas, names, numbers))


def _policies(text: str) -> list[str]:
    """Return the names, each once.

    Raises:
        UsageError: BFT-3050, there is no such policy.
    """
    from bftrainer.decide.policies.base import load_policy, policy_names  # noqa: PLC0415

    names = [name.strip() for name in text.split(",") if name.strip()]
    if names == [ALL]:
        names = sorted(policy_names(), key=lambda name: (name != "milp", name))
    if not names:
        raise UsageError("BFT-4120", "No policy is named.", "Write --policies milp,equal-share.")
    for name in names:
        load_policy(name)
    return list(dict.fromkeys(names))


def _arenas(
    *,
    arenas: tuple[str, ...],
    file: str,
    workload: str,
    n_trainers: int,
    n_nodes: int,
    hours: float,
    p_jmax: int,
    physical: bool,
    **reading: Any,
) -> list[Arena]:
    from bftrainer.lab.compare import POOL, Dedicated, IdleNodes  # noqa: PLC0415
    from bftrainer.lab.simulator.physical import PhysicalCosts  # noqa: PLC0415
    from bftrainer.lab.simulator.session import Choices  # noqa: PLC0415

    trainers = workload_of(workload)
    n_trainers = min(n_trainers, len(trainers))
    played = f"{n_trainers} trainers of the workload {trainers.name}, P_jmax {p_jmax}"
    idle = IdleNodes(
        name=IDLE,
        about=f"{n_nodes} nodes and {hours:g} h of the trace {Path(file).name}, {played}.",
        trace=None,
        workload=trainers,
        choices=Choices(p_jmax=p_jmax, costs=PhysicalCosts() if physical else None),
        n_trainers=n_trainers,
        n_nodes=n_nodes,
        hours=hours,
    )
    folder = Path(os.environ.get(DATA_VARIABLE, "")) / "adaptdl-osdi21"
    chosen_arenas: list[Arena] = []
    for name in dict.fromkeys(arenas or ARENAS):
        if name == IDLE:
            trace = load(_trace_file(file), **reading)
            chosen_arenas.append(replace(idle, trace=trace))
        elif name == SPOT:
            about = (
                f"A generated pool of {POOL.n_nodes} nodes that come and go within minutes,"
                f" {min(hours, POOL.hours):g} h, {played}."
            )
            chosen_arenas.append(replace(idle, name=SPOT, about=about))
        elif name == SITE:
            chosen_arenas.append(_site(trainers, n_trainers, p_jmax, hours))
        elif arenas or folder.is_dir():
            about = (
                "AdaptDL's 16 nodes of 4 GPUs and its workloads of 160 jobs; a node of a decision"
                " is a GPU."
            )
            chosen_arenas.append(Dedicated(name=DEDICATED, about=about, folder=folder))
    return chosen_arenas


def _site(workload: TrainerWorkload, n_trainers: int, p_jmax: int, hours: float) -> Arena:
    from bftrainer.lab.compare import LOAD, WORK, Site  # noqa: PLC0415

    hours = min(hours, SITE_HOURS)
    return Site(
        name=SITE,
        about=f"{SITE_NODES} nodes of a simulated Slurm, {LOAD:.0%} asked for by ordinary jobs,"
        f" {hours:g} h, {n_trainers} trainers of the workload {workload.name} with"
        f" {WORK:.0%} of their samples, P_jmax {p_jmax}. Job wait: of the ordinary jobs, and what"
        " the trainers add to it.",
        workload=workload,
        n_trainers=n_trainers,
        p_jmax=p_jmax,
        n_nodes=SITE_NODES,
        hours=hours,
    )


@verb(
    option("--sacct FILE", "Output of sacct --parsable2; see docs/reference/traces.md.", PATH,
           name="sacct_file"),
    option("--swf FILE", "A log in the Standard Workload Format.", PATH, name="swf_file"),
    option("--trace FILE", "A trace in any other format of 'bftrainer trace'.", PATH,
           name="trace_file"),
    option("--nodes N", "Nodes of the machine, if the file does not name all.", click.IntRange(1),
           name="n_nodes"),
    *SELECTION[1:4],
    option("--unfillable", "Only what no pending job could have used.", name="only_unfillable"),
    *READING,
    option("--policy NAME", "Decision rule; several are compared at the settings of the first.",
           default=("milp",), name="policies", multiple=True),
    option("--t-fwd S", "How far ahead a decision looks; repeat to try several.",
           click.FloatRange(1), name="t_fwd_s",
           multiple=True),
    option("--p-jmax N", "Number(s) of trainers at once to try.", click.IntRange(1, 1000),
           multiple=True),
    option("--hold-down S", "How long a node is idle before it is taken; repeat to try several.",
           click.FloatRange(0), name="hold_down_s",
           multiple=True),
    option("--poll-interval", "Time between two polls of the batch system.", click.FloatRange(0.05),
           1.0, name="poll_interval_s"),
    option("--reserve N", "Idle nodes of each kind that the policy keeps free "
           "(reserve_nodes_per_type).", click.IntRange(0, 100_000), 1,
           name="reserve_nodes_per_type"),
    option("--min-gap S", "The policy's min_gap_s.", click.FloatRange(0), 120.0, name="min_gap_s"),
    option("--gap-margin S", "The policy's gap_margin_s.", click.FloatRange(0), 60.0,
           name="gap_margin_s"),
    option("--network NAME", "What the trainers train: a network of the BFTrainer paper's Table 2.",
           default="shufflenet"),
    option("--trainer-nodes MIN:MAX", "Sizes a trainer may have.", default="1:64"),
    option("--costs FILE", "Durations, such as bench_rescale.py --json writes.", PATH,
           name="costs_file"),
    option("--cost NAME=SECONDS", "One duration, such as claim=5.", name="assignments",
           multiple=True),
    option("--seed", "The same seed gives the same figures.", click.IntRange(0), 1),
    PROCESSES,
    option("--report FILE.html", "Also write the page.", PATH),
    *HARM_OPTIONS,
    JSON,
    example="bftrainer whatif --sacct jobs.txt --nodes 500 --report idle.html",
)  # fmt: skip
def whatif(
    sacct_file: Path | None,
    swf_file: Path | None,
    trace_file: Path | None,
    report: Path | None,
    *,
    processes: int,
    as_json: bool,
    **options: Any,
) -> None:
    """Say what a machine's idle time is worth, and with which settings.

    With --harm: what the jobs of your own site would notice.
    """
    if is_asked(click.get_current_context()):
        answer_harm(sacct_file=sacct_file, processes=processes, as_json=as_json, **options)
        return
    options = {name: value for name, value in options.items() if name not in {"harm", *OWN_NAMES}}
    from bftrainer.decide.policies.base import load_policy  # noqa: PLC0415 - numpy takes 0.1 s
    from bftrainer.lab.verbs.present_look import look_at_lending  # noqa: PLC0415 - loads the adapter
    from bftrainer.lab.whatif import as_document, report_of, study  # noqa: PLC0415

    for name in options["policies"]:
        load_policy(name)  # before files are read
    files = [file for file in (sacct_file, swf_file, trace_file) if file is not None]
    if len(files) != 1:
        raise click.UsageError("Give exactly one of --sacct, --swf and --trace.")
    file = files[0]
    if sacct_file:
        options["format_name"] = "sacct"
    elif swf_file:
        options["format_name"] = "swf"
    options["ignored"] = options["ignored"] or (PILOT_PARTITION,)
    if report is not None:
        from bftrainer.lab.report import check_place  # noqa: PLC0415

        check_place(report)
    names = options.keys() & {*SELECTION_NAMES, *READING_NAMES}
    trace = load(file, **{name: options.pop(name) for name in names})

    def tell(effort: Effort) -> None:
        if _is_watched():
            print_lines(_begun(file.name, effort, processes), err=True)

    with _Bar("replaying") as bar:
        assumptions = _assumptions(**options)
        result = study(trace, assumptions, bar.report, on_start=tell, processes=processes)
    now = look_at_lending()
    if report is not None:
        from bftrainer.lab.whatif.page import write_page  # noqa: PLC0415

        write_page(report, result, file.name, shlex.join(["bftrainer", *sys.argv[1:]]), now)
    if as_json:
        print_json(as_document(result, str(file), now))
    else:
        print_report(report_of(result, file.name, now=now))


def _begun(name: str, effort: Effort, processes: int) -> str:
    """Return what is done now and about how long it takes."""
    seconds = max(1, round(effort.processor_s))
    return (
        f"Replaying {name} {effort.replays} times, with other settings each time: about "
        f"{seconds} s of processor time ({counted(processes, 'process', 'processes')})."
    )


def _assumptions(
    *,
    network: str,
    trainer_nodes: str,
    costs_file: Path | None,
    assignments: tuple[str, ...],
    **plain: Any,
) -> Assumptions:
    """Make the assumptions; what was not given keeps its default."""
    from bftrainer.lab.simulator.physical import chosen_costs  # noqa: PLC0415
    from bftrainer.lab.whatif import Assumptions  # noqa: PLC0415
    from bftrainer.lab.workloads import NETWORKS  # noqa: PLC0415

    if network.lower() not in NETWORKS:
        raise click.BadParameter(f"choose from {', '.join(NETWORKS)}.", param_hint="--network")
    n_min, n_max = _sizes(trainer_nodes)
    values: dict[str, Any] = {name: v for name, v in plain.items() if v not in (None, ())}
    for name in values.keys() & {"t_fwd_s", "p_jmax", "hold_down_s"}:
        values[name] = tuple(sorted(set(values[name])))
    return Assumptions(
        network=NETWORKS[network.lower()],
        n_min=n_min,
        n_max=n_max,
        costs=chosen_costs(costs_file, assignments),
        **values,
    )


def _sizes(text: str) -> tuple[int, int]:
    low, colon, high = text.partition(":")
    if not colon:
        high = low
    is_range = low.isdecimal() and high.isdecimal() and len(low + high) < 12
    if not is_range or not 1 <= int(low) <= int(high) <= 1_000_000:
        raise click.BadParameter(f"{text!r} is not MIN:MAX.", param_hint="--trainer-nodes")
    return int(low), int(high)
