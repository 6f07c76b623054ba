"""``bftrainer compare``: policies side by side on the same workloads, with confidence intervals."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bftrainer.cli.common import json_option, print_json, print_table
from bftrainer.cli.simulate import SHIPPED, command_line
from bftrainer.cli.trace import LateProgress, load, reading_options
from bftrainer.model.errors import UsageError

if TYPE_CHECKING:
    from bftrainer.lab.compare.arenas import Arena
    from bftrainer.lab.workloads import TrainerWorkload

ALL = "all"
IDLE, SPOT, DEDICATED, SITE = ARENAS = ("idle", "spot", "dedicated", "site")
DATA_VARIABLE = "BFTRAINER_DATA"
TRAINERS = 40  # most of them end within the span
SITE_NODES, SITE_HOURS = 64, 2.0
QUICK_SEEDS, QUICK_HOURS = 2, 6.0


@click.command()
@click.option("--policies", default=ALL, show_default=True, metavar="NAME[,NAME...]",
              help="Policies; the others are held to the first.")  # fmt: skip
@click.option("--arena", "arenas", multiple=True, type=click.Choice(ARENAS),
              help="What is played; repeat for more.  [default: all that can be]")  # fmt: skip
@click.option("--seeds", type=click.IntRange(1, 1000), default=5, show_default=True,
              help="How often, each time with other nodes, times and orders.")  # fmt: skip
@click.option("--trace", "file", default=SHIPPED, show_default=True,
              help="Trace of the arena idle, as for simulate.")  # fmt: skip
@reading_options
@click.option("--workload", default="diverse", show_default=True,
              help="Name or JSON file, as for simulate.")  # fmt: skip
@click.option("--trainers", "n_trainers", type=click.IntRange(1), default=TRAINERS,
              show_default=True, help="So many of the workload, at most.")  # fmt: skip
@click.option("--nodes", "n_nodes", type=click.IntRange(1), default=256, show_default=True,
              help="Of the trace.")  # fmt: skip
@click.option("--hours", type=click.FloatRange(0.1), default=24.0, show_default=True,
              help="Of the trace.")  # fmt: skip
@click.option("--quick", is_flag=True,
              help=f"At most {QUICK_SEEDS} seeds, {QUICK_HOURS:g} h.")  # fmt: skip
@click.option("--p-jmax", type=click.IntRange(1), default=10, show_default=True,
              help="How many trainers run at once.")  # fmt: skip
@click.option("--physical", is_flag=True,
              help="Physical costs of rescales instead of the paper's.")  # fmt: skip
@click.option("--report", "report_file", type=click.Path(path_type=Path), metavar="FILE.html",
              help="Also write a page with figures.")  # fmt: skip
@click.option("--processes", type=click.IntRange(1, 256), default=os.cpu_count() or 1,
              show_default="number of cores", help="Plays at a time.")  # fmt: skip
@json_option
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
    from bftrainer.lab.compare import table  # noqa: PLC0415 - numpy takes 0.1 s
    from bftrainer.lab.compare.arenas import play_all  # noqa: PLC0415

    names = _policies(policies)
    if quick:
        seeds = min(seeds, QUICK_SEEDS)
        options["hours"] = min(options["hours"], QUICK_HOURS)
    if report_file is not None:
        table.check_pictures()
    arenas = _arenas(**options)
    numbers = range(1, seeds + 1)
    with LateProgress(f"playing {len(names)} policies") as progress:
        plays = play_all(arenas, names, numbers, processes=processes, on_progress=progress.report)
    if report_file is not None:
        table.write_page(report_file, plays, arenas, names, numbers, command_line(context))
    if as_json:
        print_json(table.document(plays, arenas, names, numbers))
        return
    for arena in arenas:
        click.echo(f"{arena.name}: {arena.about}")
        rows = table.rows_of(plays, arena.name, names, numbers)
        print_table(table.HEADERS, [table.cells(row) for row in rows])
        click.echo()


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
    from bftrainer.batch.traces import SAMPLE  # noqa: PLC0415
    from bftrainer.lab.compare.arenas import POOL, Dedicated, IdleNodes  # noqa: PLC0415
    from bftrainer.lab.simulator.costs import PhysicalCosts  # noqa: PLC0415
    from bftrainer.lab.simulator.session import Choices  # noqa: PLC0415
    from bftrainer.lab.workloads import by_name, read_workload  # noqa: PLC0415

    path = Path(workload)
    trainers = read_workload(path) if path.is_file() else by_name(workload, seed=1)
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
    data = Path(os.environ.get(DATA_VARIABLE, "")) / "adaptdl-osdi21"
    found: list[Arena] = []
    for name in dict.fromkeys(arenas or ARENAS):
        if name == IDLE:
            trace = load(SAMPLE if file == SHIPPED else Path(file), **reading)
            found.append(replace(idle, trace=trace))
        elif name == SPOT:
            about = (
                f"A generated pool of {POOL.n_nodes} nodes that come and go within minutes,"
                f" {min(hours, POOL.hours):g} h, {played}."
            )
            found.append(replace(idle, name=SPOT, about=about))
        elif name == SITE:
            found.append(_site(trainers, n_trainers, p_jmax, hours))
        elif arenas or data.is_dir():
            found.append(
                Dedicated(
                    name=DEDICATED,
                    about="AdaptDL's 16 nodes of 4 GPUs and its workloads of 160 jobs; a node"
                    " of a decision is a GPU.",
                    folder=data,
                )
            )
    return found


def _site(workload: TrainerWorkload, n_trainers: int, p_jmax: int, hours: float) -> Arena:
    from bftrainer.lab.compare.arenas import LOAD, WORK, Site  # noqa: PLC0415

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
