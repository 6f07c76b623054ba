"""``bftrainer policy test``: the effect that a change of the policy would have had yesterday.

Replays the daemon's journal, or a trace, by the simulator with both policies. Needs no daemon.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bftrainer.cli.common import duration, json_option, print_json, print_table
from bftrainer.cli.daemon import default_state_dir
from bftrainer.cli.trace import LateProgress, load, reading_options
from bftrainer.model.columns import shown

if TYPE_CHECKING:
    from bftrainer.batch.traces.fragments import Fragments
    from bftrainer.lab.workloads.submission import TrainerWorkload
    from bftrainer.lab.yesterday.comparison import Figures

_PATH = click.Path(path_type=Path)


@click.command(name="test")
@click.argument("old", type=_PATH)
@click.argument("new", type=_PATH)
@click.option("--journal", "journal_file", type=click.Path(path_type=Path, dir_okay=False),
              help="Of a daemon, which may be running.  [default: in its state directory]",
              )  # fmt: skip
@click.option("--trace", "trace_file", type=_PATH, metavar="FILE",
              help="Replay this instead, in any format of 'bftrainer trace'.")  # fmt: skip
@click.option("--workload", default="hpo-shufflenet", show_default=True,
              help="Trainers for the trace: a name or a JSON file (docs/reference/traces.md).",
              )  # fmt: skip
@click.option("--hours", type=click.FloatRange(min=0, min_open=True), default=24.0,
              show_default=True, help="How much: the journal's last, or the trace's first.",
              )  # fmt: skip
@reading_options
@json_option
def test(
    old: Path,
    new: Path,
    journal_file: Path | None,
    trace_file: Path | None,
    workload: str,
    hours: float,
    *,
    as_json: bool,
    **reading: Any,
) -> None:
    """Say what the policy NEW would have done instead of OLD, by the simulator."""
    from bftrainer.lab.yesterday.comparison import UNKNOWN, figures  # noqa: PLC0415
    from bftrainer.site.policy import load_policy_file  # noqa: PLC0415 - pydantic is slow

    if journal_file and trace_file:
        raise click.UsageError("Give --journal or --trace, not both.")
    policies = [load_policy_file(path).policy for path in (old, new)]
    if trace_file:
        trace, trainers = _of_trace(trace_file, workload, hours, reading)
    else:
        trace, trainers = _of_journal(journal_file or default_state_dir() / "journal.db", hours)
    with LateProgress("replaying") as progress:
        found = []
        for done, policy in enumerate(policies):
            progress.report(done / len(policies))
            found.append(figures(trace, trainers, policy))
    if as_json:
        print_json(
            {
                "schema": "bftrainer/policy-test/1",
                "hours": trace.duration_s / 3600.0,
                "trainers": len(trainers),
                "old": {"file": str(old), **asdict(found[0])},
                "new": {"file": str(new), **asdict(found[1])},
                "not_known": list(UNKNOWN),
            }
        )
        return
    click.echo(f"{trace.duration_s / 3600.0:.1f} h, {len(trainers)} trainers, replayed twice")
    print_table(("", ">OLD", ">NEW"), _rows(*found))
    for sentence in UNKNOWN:
        click.echo(f"note: {sentence}")


def _of_trace(
    file: Path, name: str, hours: float, reading: dict[str, Any]
) -> tuple[Fragments, TrainerWorkload]:
    from bftrainer.lab.workloads import by_name, read_workload  # noqa: PLC0415 - numpy

    whole = load(file, **reading)
    trace = whole.restrict(hours=min(hours, whole.duration_s / 3600.0))
    path = Path(name)
    return trace, read_workload(path) if path.is_file() else by_name(name, seed=1)


def _of_journal(file: Path, hours: float) -> tuple[Fragments, TrainerWorkload]:
    from bftrainer.journal.journal import Journal  # noqa: PLC0415 - SQLAlchemy is slow
    from bftrainer.lab.yesterday.journal import past_of  # noqa: PLC0415 - numpy

    if not file.is_file():
        raise click.UsageError(f"There is no journal {file}; give --journal or --trace.")
    with Journal.open(file, clock=time.time, is_verified=False) as opened:
        past = past_of(opened, hours)
    if past.unread:
        click.echo(f"{past.unread} decisions of another release are left out", err=True)
    return past.trace, past.workload


def _rows(old: Figures, new: Figures) -> list[tuple[str, str, str]]:
    def row(what: str, name: str, form: str) -> tuple[str, str, str]:
        return what, format(getattr(old, name), form), format(getattr(new, name), form)

    rows = [
        row("node-hours idle or ours", "offered_node_h", ",.1f"),
        row("node-hours harvested", "harvested_node_h", ",.1f"),
        row("node-hours held", "held_node_h", ",.1f"),
        row("U", "utilization", ".3f"),
        row("rescales", "rescales", ",d"),
        row("nodes taken from trainers", "nodes_taken", ",d"),
        row("trainers finished", "finished", ",d"),
    ]
    for before, after in zip(old.waits, new.waits, strict=True):
        who = f"wait of {shown(before.user)}" if before.user else "wait"
        rows.append((f"{who}, mean", duration(before.mean_s), duration(after.mean_s)))
        rows.append((f"{who}, longest", duration(before.longest_s), duration(after.longest_s)))
        rows.append((f"{who}, never started", f"{before.never:,d}", f"{after.never:,d}"))
    return rows
