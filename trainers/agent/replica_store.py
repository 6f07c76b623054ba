"""Holds copies of the state of other nodes' trainers in this agent's memory.

The daemon assigns trainers and keys; workers send and fetch copies
(``bftrainer.elastic.replica_transfer``). The newest complete copy of a trainer is kept, older
generations are refused. Separate threads receive, so that the event loop can leave at any
moment. Nothing outlives the process, except a copy that was written to disk because its trainer
had lost its node.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

from bftrainer.elastic import fence, replica_transfer
from bftrainer.elastic.fence import Fence
from bftrainer.elastic.replica_transfer import Asker, CopyError, CopyFacts
from bftrainer.wire.refused_messages import RefusedMessages

LOG = logging.getLogger("bftrainer.agent")
HANDSHAKE_S = 5.0
MAX_TALKS = 32
SHARE_OF_FREE = 0.25  # of the node's free memory
MAX_HELD_BYTES = 16 << 30


@dataclass(slots=True, kw_only=True)
class _Place:
    """The assignment and the copy of one trainer."""

    key: str
    floor: int = 0  # copies of earlier generations are refused
    facts: CopyFacts | None = None
    data: bytearray | None = None
    since_s: float = 0.0  # when it was complete, monotonic
    incoming_bytes: int = 0


def free_bytes() -> int:
    """Return the node's available memory, as the kernel estimates it."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


class CopyHolder:
    """The copies in this agent's memory. Thread-safe.

    Args:
        limit_bytes: of all copies including those being received; called for every copy.
    """

    def __init__(self, limit_bytes: Callable[[], int] | None = None) -> None:
        self._limit_bytes = limit_bytes or (
            lambda: min(MAX_HELD_BYTES, int(SHARE_OF_FREE * free_bytes()))
        )
        self._refusals = RefusedMessages(LOG)
        self._lock = threading.Lock()
        self._places: dict[str, _Place] = {}
        self._talks = threading.BoundedSemaphore(MAX_TALKS)
        self._listener: socket.socket | None = None

    def start(self, address: str) -> int:
        """Listen on a free port of this address and return it; 0 if that is impossible."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            self._listener = socket.create_server((address, 0), family=family)
        except OSError as problem:
            LOG.warning("cannot hold copies of other trainers' state: %s", problem)
            return 0
        threading.Thread(target=self._serve, name="bft-holder", daemon=True).start()
        return int(self._listener.getsockname()[1])

    def close(self) -> None:
        """Stop listening; open connections end by themselves."""
        listener, self._listener = self._listener, None
        if listener is not None:
            # close() alone does not wake the thread in accept().
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()

    # ---- orders of the daemon ----------------------------------------------------------

    def hold(self, trainer_id: str, key: str, generation: int) -> None:
        """Accept copies of this trainer from now on, none of an earlier generation."""
        with self._lock:
            place = self._places.setdefault(trainer_id, _Place(key=key))
            place.key = key
            place.floor = max(place.floor, generation)

    def drop(self, trainer_id: str) -> None:
        """Forget this trainer and its copy."""
        with self._lock:
            self._places.pop(trainer_id, None)

    def settle(self, trainer_id: str, directory: Path) -> str:
        """Write a trainer's copy to disk as a checkpoint; return "" or why not.

        The copy stays in memory until ``drop``.
        """
        with self._lock:
            place = self._places.get(trainer_id)
            facts, data = (place.facts, place.data) if place else (None, None)
        if facts is None or data is None:
            return "no copy is held"
        writer = Fence(
            incarnation=facts.incarnation,
            generation=facts.generation,
            token=facts.token,
            trainer_id=facts.trainer_id,
        )
        path = fence.path_for(directory, facts.step, facts.generation)
        try:
            if not fence.claim(directory, writer):
                return "a later generation owns the checkpoint directory"
            fence.write_whole(path, [memoryview(data)])
        except OSError as problem:
            return f"it cannot be written: {problem}"
        LOG.info("put the copy of %s, step %d, on disk: %s", trainer_id, facts.step, path)
        return ""

    def held(self) -> list[tuple[CopyFacts, float]]:
        """Return the facts of every complete copy, and its age in seconds."""
        now_s = time.monotonic()
        with self._lock:
            places = list(self._places.values())
            return [(p.facts, now_s - p.since_s) for p in places if p.facts is not None]

    # ---- workers -----------------------------------------------------------------------

    def _serve(self) -> None:
        listener = self._listener
        while listener is not None:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            if self._talks.acquire(blocking=False):
                threading.Thread(target=self._talk, args=(connection,), daemon=True).start()
            else:
                connection.close()

    def _talk(self, connection: socket.socket) -> None:
        try:
            with connection, connection.makefile("rb") as file:
                connection.settimeout(HANDSHAKE_S)
                self._answer(connection, file)
        except Exception as problem:  # noqa: BLE001  # any process can connect and send anything
            why = f"a copy was not taken or given: {type(problem).__name__}: {problem}"
            self._refusals.refuse("connection", "somebody", why, level=logging.INFO)
        finally:
            self._talks.release()

    def _answer(self, connection: socket.socket, file: BufferedReader) -> None:
        nonce = replica_transfer.new_nonce()
        replica_transfer.send_line(connection, {"nonce": nonce})
        line = replica_transfer.read_line(file)
        try:
            place, verb, what = self._proven(line, nonce)
            talk = _Talk(connection, file, place.key, str(line.get("nonce")))
            if verb == "put":
                self._take(talk, place, _facts_of(what))
            else:
                self._give(talk, place, Asker(**what))
        except TypeError:
            replica_transfer.send_line(connection, {"refused": "the request is malformed"})
        except _RefusedError as refusal:
            self._refusals.refuse("copy", "a worker", refusal, level=logging.INFO)
            replica_transfer.send_line(connection, {"refused": str(refusal)})

    def _proven(self, line: dict[str, Any], nonce: str) -> tuple[_Place, str, dict[str, Any]]:
        asked = {name: line.get(name) for name in ("verb", "what", "nonce")}
        verb, what = asked["verb"], asked["what"]
        if verb not in {"put", "get"} or not isinstance(what, dict):
            raise _RefusedError("the request is malformed")
        with self._lock:
            place = self._places.get(str(what.get("trainer_id")))
        if place is None or not replica_transfer.is_proven(
            line.get("proof"), place.key, nonce, asked
        ):
            raise _RefusedError("this agent holds no copies for this trainer")
        return place, str(verb), what

    def _take(self, talk: _Talk, place: _Place, facts: CopyFacts) -> None:
        with self._lock:
            self._check(place, facts)
            used = sum(_bytes_held(p) for p in self._places.values())
            if used + facts.size_bytes > (limit := self._limit_bytes()):
                raise _RefusedError(
                    f"its {facts.size_bytes >> 20} MiB, with {used >> 20} MiB in use, exceed"
                    f" the agent's limit of {limit >> 20} MiB"
                )
            place.incoming_bytes += facts.size_bytes
        try:
            talk.say({"go": True})
            data = talk.receive(facts.size_bytes)
        finally:
            with self._lock:
                place.incoming_bytes -= facts.size_bytes
        with self._lock:
            self._check(place, facts)  # time has passed
            place.facts, place.data, place.since_s = facts, data, time.monotonic()
        talk.say({"kept": facts.digest})

    def _check(self, place: _Place, facts: CopyFacts) -> None:
        newest = place.facts.order if place.facts else (0, 0)
        if self._places.get(facts.trainer_id) is not place:
            raise _RefusedError("this agent holds no copies for this trainer")
        if facts.generation < place.floor or facts.order < newest:
            raise _RefusedError("a later generation's copy is held here")

    def _give(self, talk: _Talk, place: _Place, asker: Asker) -> None:
        with self._lock:
            place.floor = max(place.floor, asker.generation)
            facts, data = place.facts, place.data
        if facts is None or data is None:
            raise _RefusedError("no complete copy is held")
        talk.say(asdict(facts))
        talk.connection.sendall(data)


class _RefusedError(Exception):
    """A refusal; its text is sent to the worker."""


def _facts_of(what: dict[str, Any]) -> CopyFacts:
    try:
        return replica_transfer.facts_of(what)
    except CopyError as problem:
        raise _RefusedError(str(problem)) from None


@dataclass(frozen=True, slots=True)
class _Talk:
    """A connection whose peer has proven that it knows the key."""

    connection: socket.socket
    file: BufferedReader
    key: str
    nonce: str

    def __post_init__(self) -> None:
        self.connection.settimeout(replica_transfer.PATIENCE_S)

    def say(self, answer: dict[str, Any]) -> None:
        """Send an authenticated answer."""
        line = {"answer": answer, "proof": replica_transfer.proof(self.key, self.nonce, answer)}
        replica_transfer.send_line(self.connection, line)

    def receive(self, size_bytes: int) -> bytearray:
        """Receive ``size_bytes`` bytes; raise ``CopyError`` if there are fewer."""
        data = bytearray(size_bytes)
        view = memoryview(data)
        done = 0
        while done < size_bytes:
            count = self.file.readinto1(view[done : done + replica_transfer.PIECE_BYTES])
            if count == 0:
                raise CopyError("it was cut short")
            done += count
        return data


def _bytes_held(place: _Place) -> int:
    return (len(place.data) if place.data is not None else 0) + place.incoming_bytes
