"""The Horovod context of this process, with a rendezvous of our own.

Horovod connects over the loopback device; its values are kept in the generation's store, as
those of PyTorch's back end are. A GET is answered when the value is set: Horovod's own server
answers 404, and its client then sleeps 10 ms, several times in every rescale. Paths begin with
a random word, so that other requests are refused (Horovod 0.28.1,
``horovod/common/gloo/http_store.cc``).

Horovod waits in C++ for a silent member until its timeout (30 s). Its connections are those
opened while a context formed; when shut down, they fail at once, on both sides. Linux: reads
``/proc/self/fd``.

Members first meet at a gate in the generation's store. A worker waiting there can leave for a
newer commit; inside Horovod it cannot (an exception while a context forms ends the process;
Horovod 0.28.1, ``BackgroundThreadLoop`` in ``horovod/common/operations.cc``). Called by
``session``.
"""

from __future__ import annotations

import hmac
import os
import secrets
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple

from bftrainer.elastic.loop.state_transfer import overtaken
from bftrainer.elastic.network.collective import GROUP_TIMEOUT_S, AbandonableCall, Broken
from bftrainer.elastic.process.control import Control, Key, end_as_loss, key_of
from bftrainer.elastic.process.store import StoreClient
from bftrainer.ground.protocol import Commit
from bftrainer.ground.reception import Reception

HOST = "127.0.0.1"
PATIENCE_S = 30.0  # for an answer to be taken
MAX_HEAD_BYTES, MAX_BODY_BYTES = 8192, 1 << 20
END = b"\r\n\r\n"  # of a head
RANK_AND_SIZE = "rank_and_size"  # the scope of horovod/common/gloo/gloo_context.h
FORMING_PATIENCE_S = 1.0  # for a context that still forms after the loss of a member


class SingleStore:
    """The store of a single member."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}

    def set(self, key: str, value: bytes | str) -> None:
        """Store it."""
        self._values[key] = value.encode() if isinstance(value, str) else value

    def get(self, key: str) -> bytes:
        """Return it; no other process can set it."""
        try:
            return self._values[key]
        except KeyError:
            raise RuntimeError(f"{key} was never set") from None


class Asked(NamedTuple):
    """A request of Horovod's client."""

    method: str
    key: str
    body_bytes: int


def asked_of(head: bytes, token: str) -> Asked | None:
    """Return the request of a head; None if it is not for the front with this token.

    A web page may be made to send requests to this host (DNS rebinding). They name another host,
    or their origin.

    Raises:
        ValueError: it is no HTTP.
    """
    first, *lines = head.decode("latin-1").split("\r\n")
    method, path, _ = first.split(" ")
    headers = {name.strip().lower(): text.strip() for name, _, text in map(_parted, lines)}
    body_bytes = int(headers.get("content-length", "0"))
    start = f"/{token}:0/"  # Horovod appends the port to our token
    is_here = headers.get("host", HOST).partition(":")[0] == HOST and "origin" not in headers
    is_ours = hmac.compare_digest(path[: len(start)].encode(), start.encode())
    if not (is_here and is_ours and 0 <= body_bytes <= MAX_BODY_BYTES):
        return None
    return Asked(method, path.removeprefix(start), body_bytes)


def _parted(line: str) -> tuple[str, str, str]:
    return line.partition(":")


class Front(Reception[tuple[Asked, bytes]]):
    """Serves the Horovod of this process while it forms one context.

    Every process of this host can connect. Horovod alone knows the path.
    """

    def __init__(self, store: StoreClient | SingleStore, *, prefix: str, place: str) -> None:
        self._store, self._prefix, self._place = store, prefix, place
        self._token = secrets.token_hex(16)
        super().__init__(socket.create_server((HOST, 0), backlog=1024), "bft-horovod-front")
        self.address = f"{HOST}:{self.port}/{self._token}"

    async def _proof(self, connection: socket.socket) -> tuple[Asked, bytes] | None:
        """Return the request and what came of its body."""
        data = b""
        while END not in data:
            if len(data) > MAX_HEAD_BYTES:
                return None
            data += await self._some(connection, MAX_HEAD_BYTES)
        head, _, body = data.partition(END)
        try:
            request = asked_of(head, self._token)
        except ValueError:
            return None
        if request is None:
            await self._loop.sock_sendall(connection, _answer(HTTPStatus.FORBIDDEN))
            return None
        return request, body

    async def _attend(self, connection: socket.socket, proof: tuple[Asked, bytes]) -> None:
        request, body = proof
        body += await self._read(connection, max(0, request.body_bytes - len(body)))
        ours = connection.dup()  # a value may be set late, and by then this may be closed
        ours.settimeout(PATIENCE_S)
        threading.Thread(
            target=self._serve_one, args=(ours, request, body), name="bft-horovod-one", daemon=True
        ).start()

    def _serve_one(self, connection: socket.socket, request: Asked, body: bytes) -> None:
        """Answer; DELETE, when this rank is done, needs nothing more."""
        value = b""
        with connection, suppress(OSError, RuntimeError):  # Horovod asks again, or fails
            if request.method == "PUT":
                self._store.set(f"{self._prefix}/{request.key}", body)
            elif request.method == "GET" and request.key.startswith(f"{RANK_AND_SIZE}/"):
                value = self._place.encode()
            elif request.method == "GET":
                value = self._store.get(f"{self._prefix}/{request.key}")
            connection.sendall(_answer(HTTPStatus.OK, value))


def _answer(status: HTTPStatus, value: bytes = b"") -> bytes:
    head = f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Length: {len(value)}\r\n"
    return f"{head}Connection: close\r\n\r\n".encode() + value


def connections() -> dict[int, str]:
    """Return descriptor → identity of all TCP connections over IP."""
    identities: dict[int, str] = {}
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # closed meanwhile, or listening
            identity = str(link.readlink())
            if identity.startswith("socket:") and _is_connected(int(link.name)):
                identities[int(link.name)] = identity
    return identities


def _is_connected(fd: int) -> bool:
    with socket.socket(fileno=os.dup(fd)) as copy:
        if copy.family not in {socket.AF_INET, socket.AF_INET6}:
            return False
        copy.getpeername()
        return copy.type == socket.SOCK_STREAM


def cut(theirs: dict[int, str]) -> None:
    """Shut these connections down if they are still the same."""
    for fd, identity in theirs.items():
        with suppress(OSError):
            if str(Path(f"/proc/self/fd/{fd}").readlink()) == identity:
                with socket.socket(fileno=os.dup(fd)) as copy:
                    copy.shutdown(socket.SHUT_RDWR)


class HorovodContext:
    """At most one context at a time."""

    def __init__(self, control: Control) -> None:
        self.rank, self.size = 0, 1
        self.is_up = False
        self._control = control
        self._shutdown: Callable[[], object] = lambda: None
        self.guess: tuple[int, int] | None = None  # rank and size to tell, while it is set
        self._sockets: dict[int, str] = {}
        self._key: Key = (-1, -1)  # of the context, also while it forms
        self._lock = threading.Lock()  # over key and sockets
        self._is_forming = False

    # ---- a joiner that builds its model while the others train --------------------------

    def guess_for(self, kind: Any) -> None:
        """Let a class of Horovod return the likely rank and size of a joiner.

        A joiner builds its model in a context of its own. There it would be rank 0 of 1, on
        which scripts print, download and remove files.
        """
        for name, index in (("rank", 0), ("size", 1), ("cross_rank", 0), ("cross_size", 1)):
            setattr(kind, name, self._guessing(getattr(kind, name), index))

    def _guessing(self, real: Callable[[Any], int], index: int) -> Callable[[Any], int]:
        """Return what answers with this number of the guess, while there is one."""

        def rank_or_size(basics: Any) -> int:
            if self.guess is None:
                return real(basics)
            return self.guess[index]

        return rank_or_size

    # ---- contexts ---------------------------------------------------------------------

    def form_alone(self, init: Callable[[], object], shutdown: Callable[[], object]) -> None:
        """Form a context of this process alone."""
        self._form(SingleStore(), "alone", 0, 1, init, shutdown)

    def form(
        self, commit: Commit, init: Callable[[], object], shutdown: Callable[[], object]
    ) -> Broken | None:
        """Form the context of a generation that this worker is in."""
        size = len(commit.members)
        me = self._control.config.worker_id
        rank = next(member.rank for member in commit.members if member.worker_id == me)
        prefix = f"{commit.generation}.{commit.attempt}.{commit.token}"
        store: StoreClient | SingleStore = SingleStore()
        if size > 1:
            gate = AbandonableCall(self._control, lambda: _pass_gate(commit, prefix, rank))
            passed = gate.wait(overtaken(self._control, commit))
            if isinstance(passed, Broken):
                gate.forgo(StoreClient.close)
                return passed
            store = passed
        with self._lock:
            self._key, self._sockets = key_of(commit), {}
        try:
            self._form(store, prefix, rank, size, init, shutdown)
        finally:
            if isinstance(store, StoreClient):
                store.close()
        if overtaken(self._control, commit)():
            self.cut()  # the loss was announced before there was anything to cut
        return None

    def _form(
        self,
        store: StoreClient | SingleStore,
        prefix: str,
        rank: int,
        size: int,
        init: Callable[[], object],
        shutdown: Callable[[], object],
    ) -> None:
        place = f"{rank},{size},0,1,{rank},{size}"
        front = Front(store, prefix=prefix, place=place)
        names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
        for name, value in zip(names, place.split(","), strict=True):
            os.environ[f"HOROVOD_{name}"] = value
        # Each worker counts as a host, even if several share one.
        os.environ["HOROVOD_HOSTNAME"] = self._control.config.worker_id
        os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"] = front.address
        os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"] = "0"
        before = connections()
        self._is_forming = True
        try:
            init()
        finally:
            self._is_forming = False
            front.close()
        after = connections()
        with self._lock:
            self._sockets = {fd: after[fd] for fd in after if before.get(fd) != after[fd]}
        self.rank, self.size, self.is_up, self._shutdown = rank, size, True, shutdown

    def shut_down(self) -> None:
        """End the context; while all members live, all end theirs."""
        if self.is_up:
            self._shutdown()
            # Otherwise a member still in an exchange waits for us until its timeout, 30 s.
            cut(self._sockets)
            self.is_up, self._sockets = False, {}

    def cut(self, before: Key | None = None) -> None:
        """Stop waiting for a lost member, wherever that wait is. From any thread.

        Args:
            before: keep the context of this commit or a later one. The training thread may act
                on a commit before the control thread cuts what it ends.
        """
        with self._lock:
            if before is not None and self._key >= before:
                return
            key = self._key
            cut(self._sockets)
        if self._is_forming:
            timer = threading.Timer(FORMING_PATIENCE_S, self._end_if_forming, [key])
            timer.daemon = True
            timer.start()

    def _end_if_forming(self, key: Key) -> None:
        if self._is_forming and self._key == key:
            end_as_loss("Horovod cannot be interrupted while a context comes up")


def _pass_gate(commit: Commit, prefix: str, rank: int) -> StoreClient:
    """Wait until all members have arrived."""
    client = StoreClient(commit.store_host, commit.store_port, commit.token, GROUP_TIMEOUT_S)
    try:
        client.set(f"{prefix}/gate/{rank}", b"here")
        for peer in range(len(commit.members)):
            client.get(f"{prefix}/gate/{peer}")
    except BaseException:
        client.close()
        raise
    return client
