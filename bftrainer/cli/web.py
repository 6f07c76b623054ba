"""``bftrainer web``: the page of a daemon or of a journal, for this user's browser."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import click

from bftrainer.cli.common import page_source
from bftrainer.cli.options import REPLAY, SOCKET, option, verb
from bftrainer.cli.output import print_as_it_is, print_lines
from bftrainer.model.errors import UsageError


@verb(
    option("--port", "TCP port.  [default: any free one]", click.IntRange(1, 65535)),
    option("--host ADDRESS", "Listen on this address, for a proxy on another host.",
           default="127.0.0.1", show_default=True),
    option("--public-url URL", "Where a proxy shows the page: its address in browsers.",
           default=""),
    REPLAY, SOCKET,
    example="bftrainer web --port 8899",
)  # fmt: skip
def web(
    port: int | None, host: str, public_url: str, replay: Path | None, socket_name: str | None
) -> None:
    """Serve a page of nodes and trainers to your browser, until Ctrl-C.

    What ordinary jobs noticed and who used how many node-hours is on it, too. It shows what your
    account may see, and changes nothing. BFTRAINER_WEB_TOKEN is the token of the first link, for a
    portal that shows the link.
    """
    from bftrainer.api.page.door import TOKEN, Door, PageAddress, tunnel  # noqa: PLC0415 - -h needs none of these
    from bftrainer.api.page.listeners import listening  # noqa: PLC0415
    from bftrainer.api.page.server import app, serve  # noqa: PLC0415

    if public_url and not public_url.startswith(("http://", "https://")):
        raise UsageError(
            "BFT-1111",
            f"{public_url[:80]!r} is not an address of a browser.",
            "Begin it with https:// or http://.",
        )
    token = os.environ.pop("BFTRAINER_WEB_TOKEN", "")
    if token and not TOKEN.fullmatch(token):
        raise UsageError(
            "BFT-1113",
            "BFTRAINER_WEB_TOKEN is no token of a link.",
            "Give it 32 to 200 random letters, digits, - and _.",
        )
    source = page_source(socket_name, replay)
    with listening(host, port or 0, is_behind_proxy=bool(public_url)) as listeners:
        address = PageAddress(
            port=listeners.port,
            public_url=public_url,
            hosts=(socket.gethostname(), socket.getfqdn()),
        )
        door = Door(address, lambda link: print_lines(f"Open {link}"))
        if not public_url:
            sentence, command = tunnel(address.port)
            print_lines(sentence)
            print_as_it_is(command)  # a command to copy is not wrapped
            print_lines(
                "The link is good for one browser; then another one is printed. Ctrl-C ends it.",
            )
        door.offer(token)
        asyncio.run(serve(app(source, door), listeners))
