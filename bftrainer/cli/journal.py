"""``bftrainer journal`` and ``replay``: check, compact, copy and restore a journal; repeat it.

``replay`` shows that a daemon's plans and orders to workers follow from their recorded input, and
that this release acts like the one that wrote the journal. It reads only, beside a daemon.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bftrainer.cli.common import read_journal
from bftrainer.cli.daemon import default_state_dir
from bftrainer.cli.options import (
    EXISTING_FILE,
    FILE,
    JSON,
    VerbGroup,
    argument,
    option,
    shown_example,
    verb,
)
from bftrainer.cli.output import print_json, print_lines
from bftrainer.ground.collector import collect_rarely
from bftrainer.model.columns import counted
from bftrainer.model.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from bftrainer.journal.projection import JournalEntry


_STATE_DIR = option(
    "--state-dir",
    "Of the daemon.  [default: $BFTRAINER_STATE_DIR]",
    click.Path(file_okay=False, exists=True, path_type=Path),
)


@click.group(cls=VerbGroup, epilog=shown_example("bftrainer journal verify journal.db"))
def journal() -> None:
    """Look after the journal of a daemon."""


def _existing(context: click.Context, option: click.Parameter, value: str) -> str:
    """Take a database URL, or a file that is there."""
    if "://" in value:
        return value
    return str(click.Path(exists=True, dir_okay=False).convert(value, option, context))


@verb(
    argument("journal", callback=_existing),
    group=journal,
    example="bftrainer journal verify /var/lib/bftrainer/journal.db",
)
def verify(journal: str) -> None:
    """Check JOURNAL (journal.db of a state directory, or a database URL) from its first entry on.

    A daemon that starts checks what follows from the last checkpoint. Reads only; the daemon
    may be running.
    """
    with read_journal(journal, is_verified=False) as opened:
        print_lines(f"Entries checked: {opened.verify()}; all are as they were written.")
        if opened.acknowledged is None:
            print_lines(
                "There is no journal.mark: nothing tells whether the last ones are missing."
            )


@verb(
    option("--state-dir", "Of a daemon that does not run.  [default: $BFTRAINER_STATE_DIR]",
           click.Path(file_okay=False, exists=True, path_type=Path)),
    option("--journal", "Database URL instead of SQLite.", default="", name="journal_url"),
    option("--days", "Keep what is younger: entries, and trainers that have ended.",
           click.IntRange(min=0), required=True),
    group=journal,
    example="bftrainer journal compact --state-dir /var/lib/bftrainer --days 90",
)  # fmt: skip
def compact(state_dir: Path | None, journal_url: str, days: int) -> None:
    """Remove what is older and give its space back to the file system.

    A daemon that runs removes old entries by itself (journal_days of the policy), but the
    file does not get smaller.
    """
    from bftrainer.batch.clock import CLOCK_NAME, STEADY  # noqa: PLC0415
    from bftrainer.daemon.accounts import sum_up  # noqa: PLC0415
    from bftrainer.journal import InstanceLock, Journal  # noqa: PLC0415
    from bftrainer.journal.mark import MARK_NAME  # noqa: PLC0415

    directory = (state_dir or default_state_dir()).absolute()
    url = journal_url or str(directory / "journal.db")
    with (
        InstanceLock.acquire(directory),
        Journal.open(url, clock=STEADY, mark_file=directory / MARK_NAME) as opened,
    ):
        STEADY.keep_in(directory / CLOCK_NAME)  # what is old is told by the daemon's time
        sum_up(opened)
        n_removed = opened.compact(86_400.0 * days)
    print_lines(f"{counted(n_removed, 'entry was', 'entries were')} removed.")


@verb(
    argument("file", FILE),
    _STATE_DIR,
    group=journal,
    example="bftrainer journal backup /backup/journal.db",
)
def backup(file: Path, state_dir: Path | None) -> None:
    """Copy the journal to FILE, a new one, and its mark to FILE.mark.

    The daemon may be running. The copy is checked, as at a start.
    """
    from bftrainer.journal import backup as copies  # noqa: PLC0415 - SQLAlchemy is slow
    from bftrainer.journal.mark import JOURNAL_NAME  # noqa: PLC0415

    directory = (state_dir or default_state_dir()).absolute()
    copied = copies.back_up(directory / JOURNAL_NAME, file)
    print_lines(f"Copied up to entry {copied.mark.seq}, {_utc(copied.at_s)}.")


@verb(
    argument("file", FILE),
    _STATE_DIR,
    group=journal,
    example="bftrainer journal restore /backup/journal.db",
)
def restore(file: Path, state_dir: Path | None) -> None:
    """Put the copy FILE in place of the journal of a daemon that does not run.

    The present journal is renamed. Says what was acknowledged after the copy, and how the daemon
    is started without it.
    """
    from bftrainer.journal import InstanceLock  # noqa: PLC0415
    from bftrainer.journal import backup as copies  # noqa: PLC0415

    directory = (state_dir or default_state_dir()).absolute()
    with InstanceLock.acquire(directory):
        outcome = copies.restore(file, directory)
    print_lines(f"Restored up to entry {outcome.copied.mark.seq}, {_utc(outcome.copied.at_s)}.")
    if outcome.replaced is not None:
        print_lines(f"The journal that was there is {outcome.replaced} now.")
    if outcome.missing is not None:
        print_lines(outcome.missing.cause, outcome.missing.next_step)
    elif not outcome.has_known_mark:
        print_lines(
            "There was no journal.mark: whatever was acknowledged after that time is missing, and "
            "nothing tells what."
        )


def _utc(at_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at_s))


@verb(
    argument("journal", EXISTING_FILE),
    option("--rescale SEQ", "Print this rescale step by step instead.", int, name="shown"),
    JSON,
    example="bftrainer replay journal.db --rescale 120",
)
@click.pass_context
def replay(context: click.Context, journal: Path, *, shown: int | None, as_json: bool) -> None:
    """Repeat every decision and rescale in JOURNAL (journal.db of a state directory).

    Exits with 8 if a plan, or an order to a worker, differs.
    """
    with read_journal(journal, is_verified=False) as opened:
        if shown is not None:
            _show(opened.entries(), shown)
            return
        comparison = _repeated(opened.entries())
    if as_json:
        print_json(comparison)
    else:
        _print_comparison(comparison)
    if comparison["differing"] or comparison["rescales_differing"]:
        context.exit(ExitCode.VALIDATION_FAILED)


def _print_comparison(comparison: dict[str, Any]) -> None:
    plans = counted(comparison["decisions"], "plan is", "plans are")
    rescales = counted(comparison["rescales"], "rescale is", "rescales are")
    print_lines(f"{comparison['equal']} of {plans} equal.")
    print_lines(f"{comparison['rescales_equal']} of {rescales} equal.")
    if n_foreign := comparison["rescales_of_another_release"]:
        print_lines(f"{n_foreign} rescales are of another release.")
    for plan in comparison["differing"]:
        print_lines(f"entry {plan['seq']}: other {', '.join(plan['differing'])}")
    for rescale in comparison["rescales_differing"]:
        step = f"step {rescale['step']} of {rescale['trainer_id']}"
        print_lines(f"entry {rescale['seq']}: {step} gives other instructions")


def _repeated(entries: Iterable[JournalEntry]) -> dict[str, Any]:
    """Return the document of ``--json``: how many entries there are, and which differ."""
    from bftrainer.daemon import journal_replay  # noqa: PLC0415 - numpy takes 0.1 s
    from bftrainer.fleet.generations import rescale_log  # noqa: PLC0415 - as below

    collect_rarely()
    repeater = journal_replay.Repeater()
    plans, rescales = list[dict[str, Any]](), list[dict[str, Any]]()
    n_plans = n_rescales = n_foreign = 0
    for entry in entries:
        if entry.kind == journal_replay.KIND:
            n_plans += 1
            again = repeater.repeat(entry)
            if not again.is_equal:
                plans.append(asdict(again))
        elif entry.kind == rescale_log.KIND:
            record = entry.payload_if(rescale_log.RescaleRecord)
            if record is None:  # its machine had other fields
                n_foreign += 1
                continue
            n_rescales += 1
            steps = enumerate(rescale_log.repeat(record), 1)
            differing = next((number for number, step in steps if not step.is_equal), None)
            if differing is not None:
                rescales.append(
                    {"seq": entry.seq, "trainer_id": record.trainer_id, "step": differing}
                )
    return {
        "decisions": n_plans,
        "equal": n_plans - len(plans),
        "differing": plans,
        "rescales": n_rescales,
        "rescales_equal": n_rescales - len(rescales),
        "rescales_differing": rescales,
        "rescales_of_another_release": n_foreign,
    }


def _show(entries: Iterable[JournalEntry], seq: int) -> None:
    from bftrainer.fleet.generations import rescale_log  # noqa: PLC0415 - as above

    rescales = [entry for entry in entries if entry.kind == rescale_log.KIND]
    for entry in rescales:
        if entry.seq == seq:
            record = entry.payload_as(rescale_log.RescaleRecord)
            print_lines(f"Trainer {record.trainer_id}; seconds since the first step.")
            for line in rescale_log.timeline(list(rescale_log.repeat(record))):
                print_lines(line)
            return
    which = ", ".join(str(entry.seq) for entry in rescales[-10:])
    raise UsageError(
        "BFT-1042",
        f"Entry {seq} of the journal is not a rescale.",
        f"Use one of {which}." if which else "The journal has no rescale.",
    )
