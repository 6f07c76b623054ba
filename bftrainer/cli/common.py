"""Shared by the verbs: common options, trainer ids, and output as JSON or columns.

Columns become a rich table on a terminal; in a pipe they are plain and never truncated.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from bftrainer.api import address
from bftrainer.api.address import SOCKET_NAME, socket_path
from bftrainer.api.client import Client
from bftrainer.model.columns import columns, shown
from bftrainer.model.errors import BftError, UsageError
from bftrainer.model.trainer import TrainerRecord

Command = TypeVar("Command", bound=Callable[..., Any])
COMPLETION_TIMEOUT_S = 0.2
_ID = re.compile(r"t[1-9][0-9]*")


def socket_option(command: Command) -> Command:
    """Add ``--socket``."""
    return click.option(
        "--socket",
        "socket_name",
        metavar="PATH",
        is_eager=True,  # names of trainers are looked up there
        help="Socket of the daemon  [default: $BFTRAINER_SOCKET, "
        "$BFTRAINER_STATE_DIR/daemon.sock, ~/.bftrainer/daemon.sock, /run/bftrainer/daemon.sock]",
    )(command)


def json_option(command: Command) -> Command:
    """Add ``--json``."""
    return click.option(
        "--json", "as_json", is_flag=True, help="Print one JSON document for programs."
    )(command)


def trainer_id_argument(
    *, nargs: int = 1, is_required: bool = True
) -> Callable[[Command], Command]:
    """Add the argument ID, completed from the daemon's trainers; a name will do, too."""
    return click.argument(
        "trainer_ids" if nargs == -1 else "trainer_id",
        metavar="ID...",
        nargs=nargs,
        required=is_required,
        shell_complete=_complete_trainer_id,
        callback=_ids,
    )


def _ids(
    ctx: click.Context, _: click.Parameter, said: str | tuple[str, ...] | None
) -> str | tuple[str, ...] | None:
    """Return ids for what may be names."""
    texts = said if isinstance(said, tuple) else (said,) if said else ()
    if ctx.resilient_parsing or all(_ID.fullmatch(text) for text in texts):
        return said
    client = connect(ctx.params.get("socket_name"))
    try:
        records = [view.record for view in client.trainers()]
    except BftError:
        return said  # the verb says it
    found = tuple(text if _ID.fullmatch(text) else _id_of(text, records) for text in texts)
    return found if isinstance(said, tuple) else found[0]


def _id_of(name: str, records: Sequence[TrainerRecord]) -> str:
    """Return the id of the trainer with a name, of ended ones the last; unknown names as they are.

    Raises:
        UsageError: BFT-1333 if several that have not ended are called so.
    """
    named = [record for record in records if record.spec.name == name]
    ids = [record.trainer_id for record in named if not record.state.is_final]
    if len(ids) > 1:
        raise UsageError(
            "BFT-1333",
            f"Several trainers are called {shown(name)}: {', '.join(ids)}.",
            "Name one of them by its id.",
        )
    return (ids or [record.trainer_id for record in named[-1:]] or [name])[0]


def _complete_trainer_id(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    client = connect(ctx.params.get("socket_name"), timeout_s=COMPLETION_TIMEOUT_S)
    try:
        views = client.trainers()
    except BftError:
        return []  # completion cannot report errors
    return [v.record.trainer_id for v in views if v.record.trainer_id.startswith(incomplete)]


def connect(socket_name: str | None, **more: Any) -> Client:
    """Return a client of the daemon selected by option and environment.

    One's own daemon may be on another host (``bftrainer up``); then the state directory says where.
    """
    path = socket_path(socket_name, os.environ)
    found = address.read(path.parent) if path.name == SOCKET_NAME else None
    if found is None or found.is_here:
        return Client(path, **more)
    from bftrainer.api.remote_client import FarClient  # noqa: PLC0415 - loads zmq

    return FarClient(path.parent, found, **more)


class FollowingClient(Client):
    """Looks anew with each call where the daemon is: one's own may come back on another host."""

    def __init__(self, socket_name: str | None) -> None:
        super().__init__(socket_path(socket_name, os.environ))
        self._name = socket_name

    def _exchange(self, method: str, path: str, body: Any) -> tuple[int, bytes]:
        return connect(self._name)._exchange(method, path, body)  # noqa: SLF001 - its own class


def print_json(document: dict[str, Any], *, is_compact: bool = False) -> None:
    """Write one document to standard output."""
    if is_compact:
        click.echo(json.dumps(document, separators=(",", ":"), allow_nan=False))
    else:
        click.echo(json.dumps(document, indent=2, allow_nan=False))


def duration(seconds: float | None) -> str:
    """Return seconds as people write them: 5s, 3m10s, 2h05m, 4d03h."""
    if seconds is None:
        return "-"
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def clock(at_s: float | None) -> str:
    """Return a time stamp in local time."""
    return "-" if at_s is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_s))


def is_terminal() -> bool:
    """Return whether standard output is a terminal that can draw."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def print_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows: a table that fits the terminal, plain columns elsewhere."""
    if not rows:
        return
    if not is_terminal():
        click.echo(columns(headers, rows))
        return
    from rich.console import Console  # noqa: PLC0415 - takes 0.1 s

    Console().print(table(headers, rows))


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> Any:
    """Return the rows as a rich table."""
    from rich import box  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    result = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in headers:
        result.add_column(
            Text(name.removeprefix(">")), justify="right" if name.startswith(">") else "left"
        )
    for row in rows:
        result.add_row(*(Text(shown(cell)) for cell in row))  # Text: names are not markup
    return result
