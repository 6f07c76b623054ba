"""``bftrainer journal``: check all of a journal, or remove what is old."""

from __future__ import annotations

import time
from pathlib import Path

import click

from bftrainer.cli.daemon import default_state_dir


@click.group()
def journal() -> None:
    """Look after the journal of a daemon."""


@journal.command()
@click.argument("journal", type=click.Path(path_type=Path, exists=True, dir_okay=False))
def verify(journal: Path) -> None:
    """Check JOURNAL (journal.db of a state directory) from its first entry to its last.

    A daemon that starts checks what follows from the last checkpoint. Reads only; the daemon
    may be running.
    """
    from bftrainer.journal.journal import Journal  # noqa: PLC0415 - SQLAlchemy is slow

    with Journal.open(journal, clock=time.time, is_verified=False) as opened:
        click.echo(f"Entries checked: {opened.verify()}; all are as they were written.")


@journal.command()
@click.option(
    "--state-dir",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    default=None,
    help="Of a daemon that does not run.  [default: $BFTRAINER_STATE_DIR]",
)
@click.option("--journal", "journal_url", default="", help="Database URL instead of SQLite.")
@click.option(
    "--days",
    type=click.IntRange(min=0),
    required=True,
    help="Keep what is younger: entries, and trainers that have ended.",
)
def compact(state_dir: Path | None, journal_url: str, days: int) -> None:
    """Remove what is older and give its space back to the file system.

    A daemon that runs removes old entries by itself (journal_days of the policy), but the
    file does not get smaller.
    """
    from bftrainer.journal import InstanceLock, Journal  # noqa: PLC0415
    from bftrainer.journal.acknowledged import MARK_NAME  # noqa: PLC0415

    directory = (state_dir or default_state_dir()).absolute()
    url = journal_url or str(directory / "journal.db")
    with (
        InstanceLock.acquire(directory),
        Journal.open(url, clock=time.time, mark_file=directory / MARK_NAME) as opened,
    ):
        removed = opened.compact(86_400.0 * days)
    click.echo(f"{removed} entries were removed.")
