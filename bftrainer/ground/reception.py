"""A listener at a port that anybody can reach: what strangers cost there is bounded.

A connection is a stranger's until its peer has proved that it belongs to the trainer. Strangers
have a time limit, however slowly they send, and only so many are kept: one more ends the oldest.
So neither idle nor half-closed connections, nor a flood of them, keep a member away or use up
descriptors. Used by the store of a generation and by Horovod's front. Standard library only.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import threading
from typing import Generic, TypeVar

P = TypeVar("P")
PROOF_S = 10.0  # generous: a member may learn the token before the server does
PAUSE_S = 0.05
_NO_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Reception(Generic[P]):
    """Serves a listening socket in a thread of its own. Subclasses say to whom and what."""

    most_strangers = 64  # connections at once

    def __init__(self, listener: socket.socket, name: str) -> None:
        listener.settimeout(0.0)
        self._listener = listener
        self.port = int(listener.getsockname()[1])
        self._strangers: dict[socket.socket, asyncio.Task[None]] = {}  # unproven, oldest first
        self._loop = asyncio.new_event_loop()
        self._service = self._loop.create_task(self._serve())
        threading.Thread(target=self._run, name=name, daemon=True).start()

    async def _proof(self, connection: socket.socket) -> P | None:
        """Return a proof that the peer belongs to the trainer, None: it does not; has a limit."""
        raise NotImplementedError

    async def _attend(self, connection: socket.socket, proof: P) -> None:
        """Serve a peer that has proved itself; its connection is closed after it."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop serving and close all connections."""
        with contextlib.suppress(RuntimeError):  # closed already
            self._loop.call_soon_threadsafe(self._service.cancel)

    def _run(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._service)
        self._listener.close()  # if it was closed before it began
        self._loop.close()

    async def _serve(self) -> None:
        self._listen()
        try:
            await asyncio.Event().wait()  # until it is closed
        finally:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            peers = asyncio.all_tasks() - {self._service}
            for peer in peers:
                peer.cancel()
            await asyncio.gather(*peers, return_exceptions=True)
            for connection in self._strangers:  # whose tasks did not begin
                connection.close()

    def _listen(self) -> None:
        if self._listener.fileno() >= 0:
            self._loop.add_reader(self._listener, self._welcome)

    def _welcome(self) -> None:
        """Accept one connection, then let the others have a turn.

        ``sock_accept`` may lose a connection when it is cancelled.
        """
        try:
            connection, _ = self._listener.accept()
        except OSError as problem:
            if problem.errno in _NO_DESCRIPTORS:  # the listener stays readable: do not spin
                self._loop.remove_reader(self._listener)
                self._loop.call_later(PAUSE_S, self._listen)
            return  # else the connection is gone again
        self._strangers[connection] = self._loop.create_task(self._receive(connection))
        for stranger in list(self._strangers.values())[: -self.most_strangers]:
            stranger.cancel()

    async def _receive(self, connection: socket.socket) -> None:
        # Python 3.10 has no asyncio.timeout, and its wait_for may lose a cancellation.
        itself = self._strangers[connection]
        limit = self._loop.call_at(self._loop.time() + PROOF_S, itself.cancel)
        try:
            connection.settimeout(0.0)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            proof = await self._proof(connection)
            limit.cancel()
            if proof is not None:
                del self._strangers[connection]
                await self._attend(connection, proof)
        except OSError:
            return
        finally:
            limit.cancel()
            self._strangers.pop(connection, None)
            connection.close()

    async def _read(self, connection: socket.socket, length: int) -> bytes:
        data = bytearray()
        while len(data) < length:
            data += await self._some(connection, length - len(data))
        return bytes(data)

    async def _some(self, connection: socket.socket, most: int) -> bytes:
        if part := await self._loop.sock_recv(connection, most):
            return part
        raise ConnectionError("it was closed")
