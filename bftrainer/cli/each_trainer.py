"""Asks the daemon for the same for several trainers: every id is tried.

The exit code is that of the first failure. Used by cancel, hold, release, update and requeue.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import click

from bftrainer.api.documents import listing
from bftrainer.cli.common import print_json
from bftrainer.cli.main import print_error
from bftrainer.model.columns import shown
from bftrainer.model.errors import BftError, ExitCode
from bftrainer.model.views import TrainerView


def for_each(
    trainer_ids: Sequence[str],
    ask: Callable[[str], TrainerView],
    say: Callable[[str, TrainerView], str],
    *,
    as_json: bool,
) -> int:
    """Ask for each trainer and print what ``say`` makes of the answers, or all as JSON."""
    first, views = ExitCode.OK, []
    for trainer_id in dict.fromkeys(trainer_ids):
        try:
            view = ask(trainer_id)
        except BftError as error:
            print_error(error)
            first = first or error.exit_code
            if error.exit_code == ExitCode.DAEMON_UNREACHABLE:
                break  # the others would fail, too
        else:
            views.append(view)
            if not as_json:
                click.echo(shown(say(trainer_id, view)))
    if as_json:
        print_json(listing("trainers", views))
    return int(first)
