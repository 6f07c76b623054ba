"""``bftrainer web``: the page of a daemon or of a journal, for this user's browser."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bftrainer.cli.options import FILE, REPLAY, SOCKET, option, verb
from bftrainer.cli.output import print_as_it_is, print_lines
from bftrainer.cli.page_source import page_source
from bftrainer.model.errors import UsageError

if TYPE_CHECKING:
    from bftrainer.api.page.listeners import Listeners

_LOOPBACK = "127.0.0.1"


@verb(
    option("--port", "TCP port, for a proxy that expects one; with --page-socket that of your own "
           "machine.  [default: any free one]", click.IntRange(1, 65535)),
    option("--host ADDRESS", "Listen on this address, for a proxy on another host.",
           default=_LOOPBACK, show_default=True),
    option("--public-url URL", "Where a proxy shows the page: its address in browsers.",
           default=""),
    option("--page-socket PATH", "Listen on a Unix socket that only you can reach, and on no TCP "
           "port of this host.", FILE),
    REPLAY, SOCKET,
    example="bftrainer web",
)  # fmt: skip
def web(
    port: int | None,
    host: str,
    public_url: str,
    page_socket: Path | None,
    replay: Path | None,
    socket_name: str | None,
) -> None:
    """Serve a page of nodes and trainers to your browser, until Ctrl-C.

    What ordinary jobs noticed and who used how many node-hours is on it, too. It shows what your
    account may see, and changes nothing. Each start has an address of its own, which Chromium and
    Firefox find by themselves. BFTRAINER_WEB_TOKEN is the token of the first link, for a portal
    that shows the link.
    """
    from bftrainer.api.page.door import Door, PageAddress  # noqa: PLC0415 - -h needs none of these
    from bftrainer.api.page.server import app, serve  # noqa: PLC0415

    _check_url(public_url)
    token = _first_token()
    source = page_source(socket_name, replay)
    with _listening(host, port, page_socket, is_behind_proxy=bool(public_url)) as listeners:
        address = PageAddress(
            port=listeners.port or port or _port_of_user(),
            public_url=public_url,
            hosts=(socket.gethostname(), socket.getfqdn()),
        )
        door = Door(address, lambda link: print_lines(f"Open {link}"))
        if not public_url:
            _tell_way(address.port, page_socket)
        door.offer(token)
        asyncio.run(serve(app(source, door), listeners))


def _check_url(public_url: str) -> None:
    if public_url and not public_url.startswith(("http://", "https://")):
        raise UsageError(
            "BFT-1111",
            f"{public_url[:80]!r} is not an address of a browser.",
            "Begin it with https:// or http://.",
        )


def _first_token() -> str:
    from bftrainer.api.page.door import TOKEN  # noqa: PLC0415 - as above

    token = os.environ.pop("BFTRAINER_WEB_TOKEN", "")
    if token and not TOKEN.fullmatch(token):
        raise UsageError(
            "BFT-1113",
            "BFTRAINER_WEB_TOKEN is no token of a link.",
            "Give it 32 to 200 random letters, digits, - and _.",
        )
    return token


def _listening(
    host: str, port: int | None, page_socket: Path | None, *, is_behind_proxy: bool
) -> AbstractContextManager[Listeners]:
    from bftrainer.api.page.listeners import listening, listening_at  # noqa: PLC0415 - as above

    if page_socket is None:
        return listening(host, port or 0, is_behind_proxy=is_behind_proxy)
    if host != _LOOPBACK:
        raise UsageError(
            "BFT-1089",
            "--host names an address to listen on, --page-socket says to listen on none.",
            "Give one of them.",
        )
    return listening_at(page_socket.absolute())


def _port_of_user() -> int:
    """Return a port of the machine with the browser, below those that systems give away."""
    return secrets.choice(range(20_000, 32_000))


def _tell_way(port: int, page_socket: Path | None) -> None:
    from bftrainer.api.page.door import tunnel  # noqa: PLC0415 - as above

    sentence, command = tunnel(port, page_socket)
    print_lines(sentence)
    print_as_it_is(command)  # a command to copy is not wrapped
    print_lines(
        "The link is good for one browser; then another one is printed. Ctrl-C ends it.",
    )
