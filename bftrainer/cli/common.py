"""Ways to the daemon and to its journal."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bftrainer.api import address
from bftrainer.api.address import SOCKET_NAME, socket_path
from bftrainer.api.client import Client
from bftrainer.ground.regular_file import open_stream
from bftrainer.model.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from bftrainer.journal.journal import Journal


_SQLITE_HEAD = b"SQLite format 3\x00"  # sqlite.org/fileformat.html, 1.3
AWAY = (ExitCode.DAEMON_UNREACHABLE, ExitCode.TIMEOUT)  # of a daemon that may come back


def connect(socket_name: str | None, **more: Any) -> Client:
    """Return a client of the daemon selected by option and environment.

    One's own daemon may be on another host (``bftrainer up``); then the state directory says where.
    """
    path = socket_path(socket_name, os.environ)
    place = None
    if path.name == SOCKET_NAME:
        place = address.read(path.parent)
    if place is None or place.is_here:
        return Client(path, **more)
    from bftrainer.api.remote_client import FarClient  # noqa: PLC0415 - loads zmq

    return FarClient(path.parent, place, **more)


def read_journal(path: Path | str, *, is_verified: bool = True) -> Journal:
    """Open a journal, whose daemon may be running, to read it.

    Args:
        path: file, or database URL.
        is_verified: its trainers and pilots are read; an entry that is damaged is found anyway.

    Raises:
        BftError: BFT-2127, the file is something else; 22xx, it cannot be read.
    """
    if "://" not in str(path):
        _check_kind(Path(path))
    from bftrainer.journal.journal import Journal  # noqa: PLC0415 - SQLAlchemy is slow

    return Journal.open(path, clock=time.time, is_verified=is_verified)


def _check_kind(path: Path) -> None:
    """Refuse a file that never was a journal; of a damaged one the head is what is left."""
    try:
        with open_stream(path, is_typed=True) as file:
            head = file.read(len(_SQLITE_HEAD))
    except OSError:
        return  # the journal says it
    if head and not _SQLITE_HEAD.startswith(head):
        raise UsageError(
            "BFT-2127",
            f"{path} is no journal: it does not begin like an SQLite database.",
            "Name journal.db of a daemon's state directory. If this was one, its disk or another "
            "program has overwritten it: restore a backup (bftrainer journal restore).",
            exit_code=ExitCode.VALIDATION_FAILED,
        )


class FollowingClient(Client):
    """Looks anew with each call where the daemon is: one's own may come back on another host."""

    def __init__(self, socket_name: str | None) -> None:
        super().__init__(socket_path(socket_name, os.environ))
        self._name = socket_name

    def _exchange(self, method: str, path: str, body: Any) -> tuple[int, bytes]:
        return connect(self._name)._exchange(method, path, body)  # noqa: SLF001 - its own class
