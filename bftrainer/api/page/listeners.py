"""The sockets at which the page listens: loopback in both families.

A browser takes ``NAME.localhost`` for ``::1`` as well as for ``127.0.0.1``, and asks either first.
So the page takes the port of both: else another user of the host could take the one that is left,
and be sent the link's token.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from bftrainer.model.errors import BftError, ExitCode

LOOPBACK: Final = "127.0.0.1"
_LOOPBACK_6: Final = "::1"
_BOTH: Final = (LOOPBACK, _LOOPBACK_6)
_EVERYWHERE: Final = "0.0.0.0"  # noqa: S104 - the user may say so
_TRIES: Final = 50  # of a port that is free in one family
_NO_IPV6: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
BACKLOG: Final = 1024  # a burst of connections waits here for the doorman


@dataclass(frozen=True, slots=True, kw_only=True)
class Listeners:
    """Listening sockets; ``port`` is that of all of them, 0: one without."""

    sockets: tuple[socket.socket, ...]
    port: int = 0

    def close(self) -> None:
        """Listen no more."""
        for listener in self.sockets:
            listener.close()


@contextlib.contextmanager
def listening(
    host: str = LOOPBACK, port: int = 0, *, is_behind_proxy: bool = False
) -> Iterator[Listeners]:
    """Listen on a TCP port while the context lasts.

    Args:
        host: an address of this host.
        port: 0: any that is free.
        is_behind_proxy: browsers never come by loopback themselves.

    Raises:
        BftError: BFT-1110, the port cannot be had.
    """
    hosts = [host]
    if not is_behind_proxy:
        hosts = [_LOOPBACK_6, host] if host in {LOOPBACK, _EVERYWHERE} else [*_BOTH, host]
    listeners = _listen(hosts, port)
    try:
        yield listeners
    finally:
        listeners.close()


def _listen(hosts: Sequence[str], port: int) -> Listeners:
    for tries_left in reversed(range(_TRIES)):
        try:
            return _listen_once(hosts, port)
        except OSError as problem:
            if port or problem.errno != errno.EADDRINUSE or not tries_left:
                where = f"port {port} of " if port else ""
                raise BftError(
                    "BFT-1110",
                    f"The page cannot listen on {where}{' and '.join(hosts)}"
                    f" ({os.strerror(problem.errno or 0)}).",
                    "Choose another --port, or none: any free one is taken then.",
                    exit_code=ExitCode.USAGE,
                ) from problem
    raise AssertionError


def _listen_once(hosts: Sequence[str], port: int) -> Listeners:
    with contextlib.ExitStack() as opened:
        listeners = list[socket.socket]()
        for host in hosts:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            try:
                listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
            except OSError as problem:
                if host == _LOOPBACK_6 and problem.errno in _NO_IPV6:
                    continue  # then no browser gets there, either
                raise
            opened.callback(listener.close)
            listener.settimeout(0)
            listeners.append(listener)
            port = listener.getsockname()[1]
        opened.pop_all()
    return Listeners(sockets=tuple(listeners), port=port)
