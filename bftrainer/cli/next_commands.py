"""The commands that come next, told where something has begun."""

from __future__ import annotations

import shlex

from bftrainer.cli.output import print_lines


def print_next(*pairs: tuple[str, str], socket_name: str | None = None) -> None:
    """Print commands with what they do, to standard error: scripts read the other output.

    ``socket_name``: as the user named the daemon; the commands have to name it, too.
    """
    suffix = ""
    if socket_name:
        suffix = f" --socket {shlex.quote(socket_name)}"
    width = max(len(command) for command, _ in pairs) + len(suffix)
    for command, purpose in pairs:
        print_lines(f"next: {command + suffix:<{width}}  {purpose}", err=True)


def print_next_of_trainers(trainer_ids: list[str], socket_name: str | None) -> None:
    """Print what is usually asked of trainers that were just submitted."""
    first = trainer_ids[0]
    of_all = ("bftrainer web", "all of them in a browser")
    if len(trainer_ids) < 4:
        of_all = (f"bftrainer cancel {' '.join(trainer_ids)}", "end it after a checkpoint")
    print_next(
        (f"bftrainer status {first}", "where it trains, how far it is"),
        (f"bftrainer explain {first}", "why it waits, or has its size"),
        (f"bftrainer logs {first} --follow", "what it prints"),
        of_all,
        socket_name=socket_name,
    )
