"""An admitted agent that lies: it has a pilot's key and speaks for trainers that are not its own.

The key is that of the pilot on which a trainer of the attacker ran; its agent is stopped, and
this one says hello and signs of life in its place, and lies about the others'. The agent has
removed the key, but an account can link its own files before.
"""

from __future__ import annotations

import json
import random
from functools import cached_property
from pathlib import Path
from typing import Any

import zmq

from bftrainer.fleet.wire.endpoint import AgentConfig
from bftrainer.fleet.wire.keys import load_pair

HELLO_SHARE = 0.1  # of its words; one that was refused is heard again only after it


class Liar:
    """Takes the place of the agent of one pilot.

    Args:
        stolen: directory with links to the pilot's ``agent.json`` and ``agent.key``.
        victim: id of the trainer it lies about.
    """

    def __init__(self, stolen: Path, victim: str) -> None:
        self._config = AgentConfig.load(stolen / "agent.json")
        self._victim = victim
        self._keys = load_pair(stolen / "agent.key")

    @cached_property
    def _dealer(self) -> zmq.Socket[bytes]:
        """Connected by the process that lies."""
        dealer: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        dealer.set(zmq.LINGER, 0)
        dealer.set(zmq.CURVE_SERVERKEY, self._config.daemon_public_key.encode())
        dealer.set(zmq.CURVE_PUBLICKEY, self._keys.public.encode())
        dealer.set(zmq.CURVE_SECRETKEY, self._keys.secret.encode())
        dealer.connect(self._config.daemon_endpoint)
        return dealer

    def lie(self, chance: random.Random) -> str:
        """Say hello, or a sign of life and a lie."""
        if chance.random() < HELLO_SHARE:
            self._say(self._hello(chance))
            return "hello"
        pilot_id = self._config.pilot_id
        self._say({"v": 1, "type": "heartbeat", "incarnation": 1, "pilot_id": pilot_id})
        what, lie = self._some_lie(chance)
        self._say(lie)
        return what

    def _say(self, message: Any) -> None:
        text = message if isinstance(message, bytes) else json.dumps(message).encode()
        self._dealer.send(text, flags=zmq.DONTWAIT)

    def _hello(self, chance: random.Random) -> dict[str, Any]:
        config = self._config
        claimed = [
            {"worker_id": self._worker(chance), "trainer_id": self._victim, "pid": 1,
             "latest": [{"type": "of-a-newer-release", "x": 1}]},
        ]  # fmt: skip
        return {
            "v": 1, "type": "hello", "incarnation": 10**6 if chance.random() < 0.1 else 1,
            "pilot_id": config.pilot_id, "node": config.node, "address": "127.0.0.1", "pid": 1,
            "peer_endpoint": "tcp://127.0.0.1:1", "peer_public_key": "0" * 40,
            "workers": claimed if chance.random() < 0.5 else [],
            "copies": [{"trainer_id": self._victim, "generation": 10**9, "step": 10**9,
                        "samples": 10**9, "size_bytes": 1, "age_s": 0.0}],
        }  # fmt: skip

    def _some_lie(self, chance: random.Random) -> tuple[str, Any]:
        worker, huge = self._worker(chance), chance.choice((10**9, 10**400, -1, "7", True))
        number = chance.choice((float("nan"), float("inf"), 1e308, -1.0, "1", None))
        said = {"v": 1, "type": "worker-said", "incarnation": 1, "worker_id": worker}
        progress = {
            "type": "progress",
            "generation": chance.choice((1, huge)),
            "step": huge,
            "epoch": 0,
            "samples": huge,
            "step_s": number,
            "samples_per_s": number,
        }
        lies: tuple[tuple[str, Any], ...] = (
            ("progress of another", {**said, "body": progress}),
            ("end of another", {**said, "body": {"type": "finished", "step": 1, "epoch": 1,
                                                 "samples": 1}}),
            ("failure of another", {**said, "body": {"type": "failed", "code": "BFT-1410",
                                                     "cause": "a lie", "next_step": "none"}}),
            ("exit of another", {"v": 1, "type": "worker-exited", "incarnation": 1,
                                 "worker_id": worker, "returncode": 1}),
            ("a type with a line break", {**said, "type": "x\nBFT-0000 forged\x1b[2J"}),
            ("a newer type", {**said, "body": {"type": "from-the-future", "x": [[[]]]}}),
            ("deep nesting", b'{"a":' * 100_000),
            ("no JSON", bytes(chance.randrange(256) for _ in range(500))),
            ("settled copy of another", {"v": 1, "type": "copy-settled", "incarnation": 1,
                                         "trainer_id": self._victim}),
        )  # fmt: skip
        return chance.choice(lies)

    def _worker(self, chance: random.Random) -> str:
        return f"{self._victim}-{chance.randrange(1, 12)}-{chance.randrange(1, 5)}"
