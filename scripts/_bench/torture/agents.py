"""An admitted agent that lies: it has a pilot's key and speaks for trainers that are not its own.

The key is that of a pilot on which a trainer of the attacker runs; what it says is about the
others'. Its own trainer may suffer from it.
"""

from __future__ import annotations

import contextlib
import json
import random
from pathlib import Path
from typing import Any

import zmq

from bftrainer.errors import BftError
from bftrainer.wire.keys import load_pair
from trainers.agent.config import AgentConfig

LINGER_MS = 200


class Liar:
    """Says something as the agent of whatever pilot ``own_pilot`` finds."""

    def __init__(self, pilots: Path, victim: str) -> None:
        self._pilots = pilots  # the daemon's folder of pilots
        self._victim = victim  # id of the trainer it lies about
        self.own_pilot = ""

    def lie(self, chance: random.Random) -> str:
        """Connect, say hello and one lie."""
        try:
            config = AgentConfig.load(self._pilots / self.own_pilot / "agent.json")
            keys = load_pair(config.key_file)
        except BftError:
            return "no pilot to speak for"
        with contextlib.ExitStack() as stack:
            context = stack.enter_context(zmq.Context())
            dealer = stack.enter_context(context.socket(zmq.DEALER))
            dealer.set(zmq.LINGER, LINGER_MS)
            dealer.set(zmq.CURVE_SERVERKEY, config.daemon_public_key.encode())
            dealer.set(zmq.CURVE_PUBLICKEY, keys.public.encode())
            dealer.set(zmq.CURVE_SECRETKEY, keys.secret.encode())
            dealer.connect(config.daemon_endpoint)
            dealer.send(json.dumps(self._hello(config, chance)).encode())
            what, lie = self._some_lie(chance)
            dealer.send(lie if isinstance(lie, bytes) else json.dumps(lie).encode())
        return what

    def _hello(self, config: AgentConfig, chance: random.Random) -> dict[str, Any]:
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
