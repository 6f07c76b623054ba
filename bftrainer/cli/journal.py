"""``bftrainer journal``: check a journal, remove what is old, copy it and put it back."""

from __future__ import annotations

import time
from pathlib import Path

import click

from bftrainer.cli.daemon import default_state_dir


@click.group()
def journal() -> None:
    """Look after the journal of a daemon."""


def _existing(context: click.Context, option: click.Parameter, value: str) -> str:
    """Take a database URL, or a file that is there."""
    if "://" in value:
        return value
    return str(click.Path(exists=True, dir_okay=False).convert(value, option, context))


@journal.command()
@click.argument("journal", callback=_existing)
def verify(journal: str) -> None:
    """Check JOURNAL (journal.db of a state directory, or a database URL) from its first entry on.

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
    from bftrainer.daemon.accounts import sum_up  # noqa: PLC0415
    from bftrainer.journal import InstanceLock, Journal  # noqa: PLC0415
    from bftrainer.journal.mark import MARK_NAME  # noqa: PLC0415

    directory = (state_dir or default_state_dir()).absolute()
    url = journal_url or str(directory / "journal.db")
    with (
        InstanceLock.acquire(directory),
        Journal.open(url, clock=time.time, mark_file=directory / MARK_NAME) as opened,
    ):
        sum_up(opened)
        removed = opened.compact(86_400.0 * days)
    click.echo(f"{removed} entries were removed.")


_STATE_DIR = click.option(
    "--state-dir",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    default=None,
    help="Of the daemon.  [default: $BFTRAINER_STATE_DIR]",
)


@journal.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@_STATE_DIR
def backup(file: Path, state_dir: Path | None) -> None:
    """Copy the journal to FILE, a new one, and its mark to FILE.mark.

    The daemon may be running. The copy is checked, as at a start.
    """
    from bftrainer.journal import backup as copies  # noqa: PLC0415 - SQLAlchemy is slow

    directory = (state_dir or default_state_dir()).absolute()
    copied = copies.back_up(directory / copies.JOURNAL_NAME, file)
    click.echo(f"Copied up to entry {copied.mark.seq}, {_utc(copied.at_s)}.")


@journal.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@_STATE_DIR
def restore(file: Path, state_dir: Path | None) -> None:
    """Put the copy FILE in place of the journal of a daemon that does not run.

    The present journal is renamed. Says what was acknowledged after the copy, and how the daemon
    is started without it.
    """
    from bftrainer.journal import InstanceLock  # noqa: PLC0415
    from bftrainer.journal import backup as copies  # noqa: PLC0415

    directory = (state_dir or default_state_dir()).absolute()
    with InstanceLock.acquire(directory):
        done = copies.restore(file, directory)
    click.echo(f"Restored up to entry {done.copied.mark.seq}, {_utc(done.copied.at_s)}.")
    if done.replaced is not None:
        click.echo(f"The journal that was there is {done.replaced} now.")
    if done.missing is not None:
        click.echo(f"{done.missing.cause}\n{done.missing.next_step}")
    elif not done.has_known_mark:
        click.echo(
            "There was no journal.mark: whatever was acknowledged after that time is missing, and "
            "nothing tells what."
        )


def _utc(at_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at_s))
