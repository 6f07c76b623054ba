"""The daemon's HTTP API on a Unix socket.

Serves a ``Service`` through ``routes`` until ``stop``. Started by the daemon in its event loop.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

from bftrainer.api import address
from bftrainer.api.http_protocol import EmbeddedServer
from bftrainer.api.routes import Routes
from bftrainer.api.service import Service
from bftrainer.ground.process import own_name
from bftrainer.model.errors import BftError, ExitCode, exit_code_of
from bftrainer.site.policy.keys import Visibility

BACKLOG = 1024  # a burst of connections waits here for ``doorman``


class ApiServer:
    """Serves one ``Service`` on one socket."""

    def __init__(
        self,
        service: Service,
        socket_path: Path,
        *,
        mode: int = 0o600,
        visibility: Callable[[], Visibility] = lambda: Visibility.ALL,
    ) -> None:
        self.socket_path = socket_path.absolute()
        self._mode = mode
        self._routes = Routes(service, visibility)
        self.app = self._routes.app()
        self._server: EmbeddedServer | None = None
        self._task: asyncio.Task[None] | None = None
        self._inode: tuple[int, int] | None = None

    async def start(self) -> None:
        """Start listening; when this returns, requests are answered.

        Raises:
            BftError: BFT-1102, another daemon answers there; BFT-1104, the path is not safe.
        """
        listener = bind(self.socket_path, self._mode)
        info = self.socket_path.stat()
        self._inode = (info.st_dev, info.st_ino)
        self._server = EmbeddedServer(self.app)
        self._task = asyncio.create_task(self._server.serve(sockets=[listener]))
        serving = asyncio.create_task(self._server.is_ready.wait())
        await asyncio.wait({self._task, serving}, return_when=asyncio.FIRST_COMPLETED)
        if self._task.done():
            serving.cancel()
            self._task.result()  # raises its error

    async def stop(self) -> None:
        """Finish the answers under way and remove the socket."""
        if self._server is None or self._task is None:
            return
        self._remove_socket()  # first: new clients learn at once that there is no daemon
        self._server.leave()
        await self._task
        self._routes.close()
        self._server = self._task = None

    def _remove_socket(self) -> None:
        # A successor may already have created its own socket there.
        try:
            info = self.socket_path.lstat()
        except FileNotFoundError:
            return
        if (info.st_dev, info.st_ino) == self._inode:
            self.socket_path.unlink()


def bind(path: Path, mode: int) -> socket.socket:
    """Return a listening socket at ``path``, replacing one of a dead daemon.

    The socket is created under another name and renamed once it listens with its final mode, so
    it is usable when it appears and never accessible with a wider mode. That name is shorter than
    the socket's, whose path may be as long as a path can be.
    """
    staging = path.with_name(f".{crc32(own_name().encode()):x}")
    address.check_length(path)
    address.check_length(staging)
    address.check_directory(path.parent)
    _refuse_live(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        staging.unlink(missing_ok=True)
        listener.bind(str(staging))
        staging.chmod(mode)
        listener.listen(BACKLOG)
        listener.settimeout(0)
        staging.rename(path)
    except OSError as problem:
        listener.close()
        staging.unlink(missing_ok=True)
        raise BftError(
            "BFT-1104",
            f"The socket {path} cannot be created: {problem.strerror}.",
            "Use a local directory that you can write to as BFTRAINER_STATE_DIR.",
            exit_code=exit_code_of(problem),
        ) from problem
    return listener


def _refuse_live(path: Path) -> None:
    try:
        address.check_socket(path)
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(2.0)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return  # its owner is dead
        except OSError as problem:
            # Full backlog or no answer: it is in use, if busy.
            cause = f"The socket {path} is in use ({problem})."
        else:
            cause = f"Another daemon answers on {path}."
    raise BftError(
        "BFT-1102",
        cause,
        "Use that daemon, stop it first, or start this one with another BFTRAINER_STATE_DIR.",
        exit_code=ExitCode.ALREADY_RUNNING,
    )
