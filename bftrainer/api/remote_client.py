"""Client of a user's own daemon on another host: the same calls, over CURVE (``remote_server``)."""

from __future__ import annotations

import json
import math
import socket
import time
from pathlib import Path
from typing import Any

import zmq

from bftrainer.api.address import KEY_NAME, Address
from bftrainer.api.client import DEFAULT_TIMEOUT_S, MAX_ANSWER_BYTES, Client
from bftrainer.fleet.wire.endpoint import first_answering
from bftrainer.fleet.wire.keys import KeyPair, load_pair
from bftrainer.model.errors import BftError, ExitCode

REACH_LIMIT_S = 5.0  # for a connection to the host
LOOK_S = 1.0  # between looks whether the host still takes connections


class FarClient(Client):
    """One daemon on another host."""

    def __init__(
        self, state_dir: Path, address: Address, *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> None:
        super().__init__(state_dir / "daemon.sock", timeout_s=timeout_s)
        self._address = address
        self._key_file = state_dir / KEY_NAME
        self._endpoint = address.endpoint

    def _exchange(self, method: str, path: str, body: Any) -> tuple[int, bytes]:
        keys = load_pair(self._key_file)  # a daemon that has come back has another one
        endpoint = self._endpoint = self._found(keys)
        text = b""
        if body is not None:
            text = json.dumps(body, allow_nan=False).encode()
        head = json.dumps({"method": method, "path": path}).encode()
        with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
            dealer.set(zmq.LINGER, 0)
            dealer.set(zmq.IPV6, 1)  # as well
            dealer.set(zmq.MAXMSGSIZE, MAX_ANSWER_BYTES)
            keys.prove(dealer, self._address.public_key)
            dealer.connect(endpoint)
            dealer.send(head + b"\n" + text)
            self._wait_answer(dealer)
            status, _, answer = dealer.recv().partition(b"\n")
        return int(status), answer

    def _found(self, keys: KeyPair) -> str:
        """Return where the daemon answers; BFT-1101 if it does nowhere."""
        endpoints = (self._address.endpoint, *self._address.further)
        if len(endpoints) == 1:
            self._check_reached()
            return endpoints[0]
        endpoint = first_answering(
            endpoints,
            server_key=self._address.public_key,
            keys=keys,
            limit_s=REACH_LIMIT_S,
        )
        if not endpoint:
            where = ", ".join(tried.removeprefix("tcp://") for tried in endpoints)
            raise self._not_reached(f"none of {where} answers")
        return endpoint

    def _wait_answer(self, dealer: zmq.Socket[bytes]) -> None:
        """Wait as long as the daemon is there, which may end with a request unanswered."""
        deadline = time.monotonic() + self._timeout_s
        while (left_s := deadline - time.monotonic()) > 0:
            if dealer.poll(math.ceil(1000 * min(left_s, LOOK_S))):
                return
            self._check_reached()
        raise BftError(
            "BFT-1105",
            f"Your daemon ({self._address.where}) did not answer within {self._timeout_s:g} s.",
            "Try again; if this persists, look at daemon.log in its state directory.",
            exit_code=ExitCode.TIMEOUT,
        )

    def _check_reached(self) -> None:
        """ZeroMQ would try for ever; a refused connection says that nobody is there."""
        host, _, port = self._endpoint.removeprefix("tcp://").rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), REACH_LIMIT_S).close()
        except (OSError, ValueError) as problem:
            raise self._not_reached(f"{host}:{port}: {problem}") from problem

    def _not_reached(self, why: str) -> BftError:
        return BftError(
            "BFT-1101",
            f"Your daemon ({self._address.where}) cannot be reached: {why}.",
            "If its host or job is gone, start it again: bftrainer up. If it runs, a firewall may "
            "be between, or --bind named a wrong address.",
            exit_code=ExitCode.DAEMON_UNREACHABLE,
        )
