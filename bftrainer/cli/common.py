"""Shared by the verbs: options, trainer ids, and output as JSON or columns.

Columns become a rich table on a terminal; in a pipe they are plain and never truncated.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from bftrainer.api import address
from bftrainer.api.address import SOCKET_NAME, socket_path
from bftrainer.api.client import Client
from bftrainer.api.documents import document
from bftrainer.model.columns import columns, shown
from bftrainer.model.errors import BftError, ExitCode, UsageError
from bftrainer.model.trainer import TrainerRecord

if TYPE_CHECKING:
    from bftrainer.journal.journal import Journal

Answer = TypeVar("Answer")
COMPLETION_TIMEOUT_S = 0.2
AWAY = (ExitCode.DAEMON_UNREACHABLE, ExitCode.TIMEOUT)  # of a daemon that may come back
_ID = re.compile(r"t[1-9][0-9]*")
PATH = click.Path(path_type=Path)
FILE = click.Path(path_type=Path, dir_okay=False)
EXISTING_FILE = click.Path(path_type=Path, dir_okay=False, exists=True)


def option(
    usage: str, text: str | None = None, kind: Any = None, default: Any = None, **more: Any
) -> click.Option:
    """Return an option as its help shows it.

    Args:
        usage: its names, then the metavar of its value: ``-d, --delay SECONDS``.
        text: its help.
        kind: type of the value. Without metavar, type and default the option is a flag.
        default: shown in the help if it is not empty.
        more: as for ``click.Option``; ``name`` is that of the parameter.
    """
    *names, last = usage.split(", ")
    last, _, metavar = last.partition(" ")
    declared = [*names, last, *([more.pop("name")] if "name" in more else [])]
    if default is not None:
        more = {"default": default, "show_default": default not in ("", 0), **more}
    elif not metavar and kind is None:
        more["is_flag"] = True
    return click.Option(declared, type=kind, metavar=metavar or None, help=text, **more)


def verb(
    *params: click.Parameter, name: str | None = None, group: click.Group | None = None, **more: Any
) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a function the command of these parameters, in a group if there is one."""
    command = click.command if group is None else group.command
    return command(name, params=list(params), **more)


JSON = option("--json", "Print one JSON document for programs.", name="as_json")
SOCKET = option(
    "--socket PATH",
    "Socket of the daemon  [default: $BFTRAINER_SOCKET, "
    "$BFTRAINER_STATE_DIR/daemon.sock, ~/.bftrainer/daemon.sock, /run/bftrainer/daemon.sock]",
    name="socket_name",
    is_eager=True,  # names of trainers are looked up there
)
JOURNAL = option(
    "--journal",
    "Read this journal (journal.db of a state directory) instead of asking the daemon.",
    EXISTING_FILE,
)
POLICY = option("--policy", "With --journal: policy YAML.", PATH, name="policy_file")
PROCESSES = os.cpu_count() or 1


def argument(name: str, kind: Any = None, **more: Any) -> click.Argument:
    """Return an argument; ``more`` as for ``click.Argument``."""
    return click.Argument([name], type=kind, **more)


def trainer_ids(*, nargs: int = 1, is_required: bool = True) -> click.Argument:
    """Return the argument ID, completed from the daemon's trainers; a name will do, too."""
    return click.Argument(
        ["trainer_ids" if nargs == -1 else "trainer_id"],
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


def read_journal(path: Path | str) -> Journal:
    """Open a journal, whose daemon may be running, to read it."""
    from bftrainer.journal.journal import Journal  # noqa: PLC0415 - SQLAlchemy is slow

    return Journal.open(path, clock=time.time, is_verified=False)


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


def answer(
    found: Answer,
    name: str,
    say: Callable[[Answer], object],
    *,
    as_json: bool,
    is_compact: bool = False,
) -> None:
    """Print a view: as the document of this name, or what ``say`` prints of it."""
    if as_json:
        print_json(document(name, found), is_compact=is_compact)
    else:
        say(found)


def print_pairs(pairs: Iterable[tuple[str, object]], width: int) -> None:
    """Print names and values in two columns."""
    for name, value in pairs:
        click.echo(f"{shown(name):<{width}} {shown(str(value))}")


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
