"""``python -m lsf_adapters.csm``: records idle nodes of a machine like Summit, and shows them.

``record`` polls, ``show`` prints what the last polls say, ``trace`` writes the project's traces.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

from bftrainer.errors import BftError
from bftrainer.simulate.traces import Fragments, write_trace
from bftrainer.simulate.traces.errors import unreadable
from lsf_adapters.commands import LsfCommands
from lsf_adapters.csm.idle import EVERY_S, confirmed, gaps
from lsf_adapters.csm.polls import bad_recording, read_polls
from lsf_adapters.csm.record import Machine, record
from lsf_adapters.csm.trace import fragments

Result = TypeVar("Result")
_EVERY = click.option(
    "--every",
    "every_s",
    type=click.FloatRange(min=0.1),
    default=EVERY_S,
    show_default=True,
    help="Seconds between two polls.",
)
_FILE = click.argument("file", type=click.Path(path_type=Path, dir_okay=False))


@click.group()
def main() -> None:
    """Record which compute nodes are idle (BFTrainer paper, section 2.1)."""


def _reporting(work: Callable[[], Result]) -> Result:
    """Do the work; print its error as other verbs do."""
    try:
        return work()
    except BftError as problem:
        click.echo(f"{problem.code}: {problem.cause}\n{problem.next_step}", err=True)
        raise SystemExit(int(problem.exit_code)) from None


@main.command(name="record")
@_FILE
@_EVERY
@click.option("--polls", "n_polls", type=click.IntRange(1), help="Stop after so many.")
@click.option("--slots-per-node", type=click.IntRange(1), default=42, show_default=True)
@click.option("--resource", default="CN", show_default=True, help="Of compute nodes.")
@click.option("--jobstat", default="jobstat", show_default=True, help="OLCF's command.")
@click.option("--bindir", type=click.Path(path_type=Path), help="Of LSF's commands.")
def record_(
    file: Path,
    every_s: float,
    n_polls: int | None,
    slots_per_node: int,
    resource: str,
    jobstat: str,
    bindir: Path | None,
) -> None:
    """Append polls to FILE until stopped."""
    machine = Machine(slots_per_node=slots_per_node, resource=resource, jobstat=jobstat)
    lsf = LsfCommands(bindir=bindir)

    def recorded() -> int:
        try:
            return record(lsf, machine, file, every_s=every_s, n_polls=n_polls)
        except OSError as problem:
            raise unreadable(file, problem) from problem

    n_failed = _reporting(recorded)
    if n_failed:
        click.echo(f"{n_failed} polls failed", err=True)


@main.command()
@_FILE
@_EVERY
def show(file: Path, every_s: float) -> None:
    """Print the nodes that were idle in the last poll of FILE and in the one before."""
    polls = _reporting(lambda: read_polls(file))
    for gap in gaps(confirmed(polls[-3:], every_s)[-1]) if polls else ():
        length = "without limit" if math.isinf(gap.for_s) else f"for {gap.for_s:.0f} s"
        click.echo(f"{gap.node} {length}{', unfillable' if gap.is_unfillable else ''}")


@main.command()
@_FILE
@click.argument("out", type=click.Path(path_type=Path, dir_okay=False))
@_EVERY
def trace(file: Path, out: Path, every_s: float) -> None:
    """Write the idle fragments of FILE to OUT (.npz, .csv, .csv.gz, .parquet)."""
    made = _reporting(lambda: _traced(file, out, every_s))
    click.echo(f"{out}: {len(made):,} fragments of {len(made.names):,} nodes")
    for note in made.notes:
        click.echo(f"note: {note}")


def _traced(file: Path, out: Path, every_s: float) -> Fragments:
    try:
        made = fragments(read_polls(file), every_s)
    except ValueError as problem:
        raise bad_recording(file, str(problem)) from problem
    write_trace(out, made)
    return made


if __name__ == "__main__":
    main()
