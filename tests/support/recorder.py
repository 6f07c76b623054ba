"""A relay between clients and a TCP server, which keeps what each of them said.

Strangers replay it: what passes over a network can be read and said again by others.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Final

CLIENT, SERVER = "client", "server"
PATIENCE_S: Final = 20.0


class Recorder:
    """Relays one connection after the other from a port of its own."""

    def __init__(self, host: str, port: int) -> None:
        self._to = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.sessions: list[list[tuple[str, bytes]]] = []  # who said what, in order
        self._lock = threading.Lock()
        threading.Thread(target=self._serve, name="recorder", daemon=True).start()

    def close(self) -> None:
        """Take no more connections."""
        self._listener.close()

    def said(self, who: str) -> list[bytes]:
        """What clients, or the server, said in the longest session, piece by piece."""
        with self._lock:
            longest = max(self.sessions, key=len, default=[])
            return [piece for speaker, piece in longest if speaker == who]

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                session: list[tuple[str, bytes]] = []
                self.sessions.append(session)
                server = socket.create_connection(self._to, PATIENCE_S)
                for speaker, here, there in ((CLIENT, client, server), (SERVER, server, client)):
                    aim = (session, speaker, here, there)
                    threading.Thread(target=self._relay, args=aim, daemon=True).start()

    def _relay(
        self,
        session: list[tuple[str, bytes]],
        speaker: str,
        here: socket.socket,
        there: socket.socket,
    ) -> None:
        here.settimeout(PATIENCE_S)
        with contextlib.suppress(OSError), here:
            while piece := here.recv(1 << 16):
                with self._lock:
                    session.append((speaker, piece))
                there.sendall(piece)
            there.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def recording(host: str, port: int) -> Iterator[Recorder]:
    """Relay while the context lasts."""
    recorder = Recorder(host, port)
    try:
        yield recorder
    finally:
        recorder.close()
