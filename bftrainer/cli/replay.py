"""``bftrainer replay``: repeat the decisions and rescales of a journal and compare.

Shows that a daemon's plans and orders to workers follow from their recorded input, and that this
release acts like the one that wrote the journal. Reads only; the daemon may be running.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bftrainer.cli.common import json_option, print_json
from bftrainer.model.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from bftrainer.journal.projection import JournalEntry


@dataclass(slots=True)
class _Compared:
    """The result of repeating the entries of one kind."""

    name: str  # in the plural
    total: int = 0
    of_another_release: int = 0  # entries that this one cannot repeat
    differing: list[dict[str, Any]] = field(default_factory=list)

    @property
    def equal(self) -> int:
        return self.total - len(self.differing)


@click.command()
@click.argument("journal", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option(
    "--rescale", "shown", type=int, metavar="SEQ", help="Print this rescale step by step instead."
)
@json_option
@click.pass_context
def replay(context: click.Context, journal: Path, *, shown: int | None, as_json: bool) -> None:
    """Repeat every decision and rescale in JOURNAL (journal.db of a state directory).

    Exits with 8 if a plan, or an order to a worker, differs.
    """
    from bftrainer.journal.journal import Journal  # noqa: PLC0415 - SQLAlchemy is slow

    with Journal.open(journal, clock=time.time, is_verified=False) as opened:
        if shown is not None:
            _show(opened.entries(), shown)
            return
        plans, rescales = _compare(opened.entries())
    if as_json:
        print_json(
            {
                "decisions": plans.total,
                "equal": plans.equal,
                "differing": plans.differing,
                "rescales": rescales.total,
                "rescales_equal": rescales.equal,
                "rescales_differing": rescales.differing,
                "rescales_of_another_release": rescales.of_another_release,
            }
        )
    else:
        for compared in (plans, rescales):
            click.echo(f"{compared.equal} of {compared.total} {compared.name} are equal.")
        if rescales.of_another_release:
            click.echo(f"{rescales.of_another_release} rescales are of another release.")
        for plan in plans.differing:
            click.echo(f"entry {plan['seq']}: other {', '.join(plan['differing'])}")
        for rescale in rescales.differing:
            click.echo(
                f"entry {rescale['seq']}: step {rescale['step']} of {rescale['trainer_id']} gives"
                " other instructions"
            )
    is_same = not plans.differing and not rescales.differing
    context.exit(ExitCode.OK if is_same else ExitCode.VALIDATION_FAILED)


def _compare(entries: Iterable[JournalEntry]) -> tuple[_Compared, _Compared]:
    from bftrainer.fleet.generations import rescale_log  # noqa: PLC0415 - as below
    from bftrainer.lab.simulator import journal_replay  # noqa: PLC0415 - numpy takes 0.1 s

    plans, rescales = _Compared("plans"), _Compared("rescales")
    for entry in entries:
        if entry.kind == journal_replay.KIND:
            plans.total += 1
            plans.differing += [
                asdict(a) for a in journal_replay.take_again([entry]) if not a.is_equal
            ]
        elif entry.kind == rescale_log.KIND:
            record = entry.payload_if(rescale_log.RescaleRecord)
            if record is None:  # its machine had other fields
                rescales.of_another_release += 1
                continue
            rescales.total += 1
            for number, one in enumerate(rescale_log.repeat(record), 1):
                if not one.is_equal:
                    what = {"seq": entry.seq, "trainer_id": record.trainer_id, "step": number}
                    rescales.differing.append(what)
                    break
    return plans, rescales


def _show(entries: Iterable[JournalEntry], seq: int) -> None:
    from bftrainer.fleet.generations import rescale_log  # noqa: PLC0415 - as above

    found = [e for e in entries if e.kind == rescale_log.KIND]
    for entry in found:
        if entry.seq == seq:
            record = entry.payload_as(rescale_log.RescaleRecord)
            click.echo(f"Trainer {record.trainer_id}; seconds since the first step.")
            for line in rescale_log.timeline(list(rescale_log.repeat(record))):
                click.echo(line)
            return
    which = ", ".join(str(e.seq) for e in found[-10:])
    raise UsageError(
        "BFT-1042",
        f"Entry {seq} of the journal is not a rescale.",
        f"Use one of {which}." if which else "The journal has no rescale.",
    )
