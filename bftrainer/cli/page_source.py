"""The data that ``web`` and ``top`` show: a daemon's, or a journal's."""

from __future__ import annotations

import socket
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bftrainer.cli.common import FollowingClient, connect
from bftrainer.cli.logs import tail
from bftrainer.cli.output import print_lines

if TYPE_CHECKING:
    from bftrainer.api.page.source import PageSource


def page_source(socket_name: str | None, replay: Path | None) -> PageSource:
    """Return what ``web`` and ``top`` show: a daemon, which answers now, or a journal.

    Raises:
        BftError: no daemon answers; BFT-1112, there is no decision in the journal.
    """
    from bftrainer.api.page.source import LiveSource  # noqa: PLC0415 - -h does not need it

    if replay is not None:
        from bftrainer.daemon.journal_page import JournalSource  # noqa: PLC0415 - SQLAlchemy is slow

        print_lines(f"Reading {replay} ...", err=True)  # a minute where it has 10,000 decisions
        return JournalSource(replay)
    connect(socket_name).status()  # says why no daemon answers
    client = FollowingClient(socket_name)
    return LiveSource(client, f"bftrainer on {socket.gethostname()}", partial(tail, client))
