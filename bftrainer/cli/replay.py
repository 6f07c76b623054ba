"""``bftrainer replay``: repeat every decision of a journal and compare.

Shows that a daemon's decisions follow from their recorded input, and that this release decides
like the one that wrote the journal. Reads only; the daemon may be running.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path

import click

from bftrainer.cli.common import json_option, print_json
from bftrainer.errors import ExitCode


@click.command()
@click.argument("journal", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@json_option
@click.pass_context
def replay(context: click.Context, journal: Path, *, as_json: bool) -> None:
    """Repeat every decision in JOURNAL (journal.db of a state directory).

    Exits with 8 if a plan differs.
    """
    from bftrainer.journal.journal import Journal  # noqa: PLC0415 - SQLAlchemy is slow
    from bftrainer.simulate.recorded import take_again  # noqa: PLC0415 - numpy takes 0.1 s

    with Journal.open(journal, clock=time.time, is_verified=False) as opened:
        again = list(take_again(opened.entries()))
    differing = [a for a in again if not a.is_equal]
    if as_json:
        print_json(
            {
                "decisions": len(again),
                "equal": len(again) - len(differing),
                "differing": [asdict(a) for a in differing],
            }
        )
    else:
        click.echo(f"{len(again) - len(differing)} of {len(again)} plans are equal to the hash.")
        for a in differing:
            click.echo(f"entry {a.seq}: other {', '.join(a.differing)}")
    context.exit(ExitCode.VALIDATION_FAILED if differing else ExitCode.OK)
