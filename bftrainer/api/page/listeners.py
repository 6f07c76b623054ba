"""The sockets at which the page listens: loopback in both families, or one in a directory.

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
from pathlib import Path
from typing import Final

from bftrainer.model.errors import BftError, ExitCode, UsageError

LOOPBACK: Final = "127.0.0.1"
_LOOPBACK_6: Final = "::1"
_BOTH: Final = (LOOPBACK, _LOOPBACK_6)
_EVERYWHERE: Final = "0.0.0.0"  # noqa: S104 - the user may say so
_TRIES: Final = 50  # of a port that is free in one family
_OTHERS: Final = 0o077  # what others than the owner may do
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
    if is_behind_proxy:
        hosts = [host]
    elif host in {LOOPBACK, _EVERYWHERE}:
        hosts = [_LOOPBACK_6, host]
    else:
        hosts = [*_BOTH, host]
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


@contextlib.contextmanager
def listening_at(path: Path) -> Iterator[Listeners]:
    """Listen on a Unix socket while the context lasts; its directory is made if there is none.

    Raises:
        BftError: BFT-1089, nobody can listen there, or not without others.
    """
    from bftrainer.api import server  # noqa: PLC0415 - loads the daemon's routes

    _make_directory(path.parent)
    try:
        listener = server.bind(path, 0o600)
    except BftError as problem:
        raise _refusal(problem.cause) from problem
    info = path.lstat()
    try:
        yield Listeners(sockets=(listener,))
    finally:
        listener.close()
        with contextlib.suppress(OSError):
            if os.path.samestat(info, path.lstat()):  # else it is a successor's
                path.unlink()


def _make_directory(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = directory.stat().st_mode
    except OSError as problem:
        raise _refusal(f"{directory} cannot be made or read ({problem.strerror}).") from problem
    if mode & _OTHERS:
        raise _refusal(f"The directory {directory} is open to others.")


def _refusal(cause: str) -> BftError:
    return UsageError(
        "BFT-1089",
        f"The page cannot listen there: {cause}",
        "Give --page-socket a path of at most 100 characters in a directory of mode 0700 that is "
        "yours, on a local file system; a directory that does not exist is made.",
    )
