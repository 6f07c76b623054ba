"""Carries the lines of the hook's file from a controller's host to the daemon.

``bftrainer-slurm-hook --relay`` runs it on each controller's host, as a user who may read the file.
It reads what Slurm's scripts append, so nothing here can delay a submission. Lines that cannot be
sent at once are dropped and counted, never kept: the daemon polls meanwhile, and an old line would
announce a job that it knows already.

Messages (``RelayWord``) are read by ``relay_receiver`` on the daemon's host. Keys are shown to
administrators in hexadecimal, which no shell, YAML or unit file takes for something else.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import Annotated, Literal

import zmq
from pydantic import Field, ValidationError
from zmq.utils import z85
from zmq.utils.monitor import parse_monitor_message

from bftrainer.batch.tail import MOST_BYTES, MOST_LINE_BYTES
from bftrainer.fleet.wire.keys import KeyPair
from bftrainer.fleet.wire.messages import Seconds, Strict, Words
from bftrainer.model.errors import BatchSystemError
from slurm_plugins.hook.watch import HookFile

KEY_HEX_CHARS = 64
BEAT_S = 2.0  # between two words of a relay
SILENT_S = 3.5 * BEAT_S  # then it is lost
MOST_FRAME_BYTES = 8 * MOST_BYTES  # JSON may write one byte as six

Line = Annotated[str, Field(max_length=MOST_LINE_BYTES)]
LOG = logging.getLogger("bftrainer.relay")
RECONNECT_MS = 100  # doubled after each failure, ...
RECONNECT_MAX_MS = 5000  # ... up to this
AGAIN_S = 0.05  # until a word that could not be sent is tried again
UNSENT_WORDS = 64  # the kernel's buffers come on top
HANDSHAKE_LIMIT_MS = 5000


class RelayError(Exception):
    """A frame that no relay of ours sends."""


class RelayWord(Strict):
    """One message of a relay; without lines it says that the relay is there."""

    v: Literal[1] = 1
    sent_s: Seconds  # monotonic clock of the relay's host
    lines: tuple[Line, ...] = Field(default=(), max_length=MOST_BYTES)
    is_too_much: bool = False  # some lines were skipped
    why_deaf: Words = ""  # it cannot read the hook's file ...
    is_waiting: bool = False  # ... as there is none yet: its controller was never in charge


def encode(word: RelayWord) -> bytes:
    """Return the frame."""
    return word.model_dump_json().encode("utf-8", "replace")


def decode(frame: bytes) -> RelayWord:
    """Read a frame.

    Raises:
        RelayError: it is malformed, or has more than a relay reads at once.
    """
    try:
        word = RelayWord.model_validate_json(frame)
    except ValidationError as problem:
        first = problem.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"])) or "top level"
        raise RelayError(f"{where}: {first['msg']}") from problem
    if sum(map(len, word.lines)) > MOST_BYTES:
        raise RelayError("more lines than a relay reads at once")
    return word


def shown(key: str) -> str:
    """Return a public key as administrators see it."""
    return z85.decode(key).hex()


def key_of(text: str) -> str:
    """Return the public key that an administrator gave; raises ``ValueError``: it is none."""
    if len(text) != KEY_HEX_CHARS:
        raise ValueError(f"a public key has {KEY_HEX_CHARS} hexadecimal digits")
    return z85.encode(bytes.fromhex(text)).decode("ascii")


class Relay:
    """One connection to a daemon and the file that is followed."""

    def __init__(
        self,
        *,
        endpoint: str,
        daemon_key: str,
        keys: KeyPair,
        open_file: Callable[[], HookFile],
    ) -> None:
        """Prepare the connection.

        Args:
            endpoint: of the daemon's ``hook_relay``.
            daemon_key: its public key.
            keys: our own.
            open_file: opens the hook's file; raises ``BatchSystemError``.
        """
        self._endpoint, self._open_file = endpoint, open_file
        self._own_key = keys.public
        self._file: HookFile | None = None
        self._why_deaf, self._is_waiting, self._beat_s = "", False, 0.0
        self._unsent = 0  # lines since the last word that was sent
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._dealer = self._context.socket(zmq.DEALER)
        for option, value in (
            (zmq.LINGER, 0),
            (zmq.SNDHWM, UNSENT_WORDS),
            (zmq.IMMEDIATE, 1),  # nothing waits for a connection
            (zmq.IPV6, int("[" in endpoint)),
            (zmq.RECONNECT_IVL, RECONNECT_MS),
            (zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS),
            (zmq.HANDSHAKE_IVL, HANDSHAKE_LIMIT_MS),
            (zmq.HEARTBEAT_IVL, round(1000 * BEAT_S)),
            (zmq.HEARTBEAT_TIMEOUT, round(1000 * SILENT_S)),
        ):
            self._dealer.set(option, value)
        keys.prove(self._dealer, daemon_key)
        self._monitor = self._dealer.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_AUTH
        )
        self._poller = zmq.Poller()
        self._poller.register(self._monitor, zmq.POLLIN)
        self._is_connected = self._is_refused = False

    def run(self, is_over: Callable[[], bool] = lambda: False) -> None:
        """Carry lines until ``is_over``, which is asked once per beat."""
        self._dealer.connect(self._endpoint)
        try:
            while not is_over():
                if time.monotonic() >= self._beat_s:
                    self._beat()
                rest_s = max(0.0, self._beat_s - time.monotonic())
                events = dict(self._poller.poll(math.ceil(1000 * rest_s)))
                if self._monitor in events:
                    self._note_connection()
                if self._file is not None and self._file.fileno() in events:
                    self._carry()
        finally:
            self._close_file()
            self._dealer.disable_monitor()
            self._monitor.close(linger=0)
            self._dealer.close(linger=0)
            self._context.term()

    def _beat(self) -> None:
        """Open the file if it is not open, and say how we are."""
        self._beat_s = time.monotonic() + BEAT_S
        if self._file is None:
            try:
                self._file = self._open_file()
            except BatchSystemError as problem:
                self._is_deaf(problem)
            else:
                was_deaf, self._why_deaf, self._is_waiting = self._why_deaf, "", False
                self._poller.register(self._file.fileno(), zmq.POLLIN)
                LOG.info("the hook's file is followed")
                # Its first lines were there before.
                self._say(is_too_much=bool(was_deaf))
                return
        self._say()

    def _carry(self) -> None:
        if self._file is None:
            return
        try:
            lines, is_too_much = self._file.lines()
        except BatchSystemError as problem:
            self._close_file()
            self._is_deaf(problem)
            self._say()
            return
        if lines or is_too_much:
            self._say(tuple(lines), is_too_much=is_too_much)

    def _say(self, lines: tuple[str, ...] = (), *, is_too_much: bool = False) -> None:
        word = RelayWord(
            sent_s=time.monotonic(),
            lines=lines,
            is_too_much=is_too_much or self._unsent > 0,
            why_deaf=self._why_deaf,
            is_waiting=self._is_waiting,
        )
        try:
            self._dealer.send(encode(word), flags=zmq.DONTWAIT)
        except zmq.Again:
            self._unsent += len(lines) or int(is_too_much)
            if self._is_connected:  # not quite yet, or full
                self._beat_s = time.monotonic() + AGAIN_S
        else:
            self._unsent = 0

    def _is_deaf(self, problem: BatchSystemError) -> None:
        self._is_waiting = isinstance(problem.__cause__, FileNotFoundError)
        if problem.cause != self._why_deaf:
            self._why_deaf = problem.cause
            if self._is_waiting:
                LOG.info("There is no hook's file; a controller in charge creates it.")
            else:
                LOG.warning("%s", problem)

    def _close_file(self) -> None:
        if self._file is not None:
            self._poller.unregister(self._file.fileno())
            self._file.close()
            self._file = None

    def _note_connection(self) -> None:
        event = parse_monitor_message(self._monitor.recv_multipart())["event"]
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            LOG.info("connected to %s; %d lines were not carried", self._endpoint, self._unsent)
            self._is_connected, self._is_refused = True, False
            self._beat_s = 0.0  # the daemon learns of us at once
        elif event == zmq.EVENT_DISCONNECTED:
            if self._is_connected:
                LOG.warning("the connection to %s is lost; it is tried again", self._endpoint)
            self._is_connected = False
        elif not self._is_refused:
            self._is_refused = True
            LOG.warning(
                "BFT-1514: the daemon at %s does not know this relay. Add its key to "
                "hook_relay_keys: %s",
                self._endpoint,
                shown(self._own_key),
            )
