"""A user whose trainer writes metrics or log lines without end, and who asks without end.

What they do is allowed, one by one. What is measured is what another user notices of it.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ASKERS: Final = 12  # questions under way
ASKED_S: Final = 0.5  # between two looks whether she is to stop
PATHS: Final = ("/v1/status", "/v1/trainers", "/v1/nodes", "/v1/timeline")
TRAINING: Final = """\
import sys, torch
from torch.utils.data import DataLoader, TensorDataset
from bftrainer import elastic
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=float((*sys.argv, 0.01)[1]))
data = TensorDataset(torch.randn({samples}, 4), torch.randn({samples}, 1))
run = elastic.Run(model, optimizer, DataLoader(data, batch_size=24), epochs={epochs})
for _ in run.epochs():
    for x, y in run.batches():
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        run.step()
"""
LOOP: Final = TRAINING.format(samples=4800, epochs=10**6)
REPORTS: Final = LOOP + "        run.report(float(y[0]))\n"
LINES: Final = f"""{LOOP}\
        print("x" * 4000, flush=True)
        sys.stderr.write("y" * 4000)
"""


class Talker:
    """Submits a trainer that talks, and cancels it in the end."""

    def __init__(self, socket_path: str, name: str, script: str) -> None:
        self._env = {**os.environ, "BFTRAINER_SOCKET": socket_path}
        self._name = name
        self._path = Path.home() / f"{name}.py"
        self._script = script
        self._trainer_id = ""

    def talk(self, _chance: random.Random) -> str:
        """Submit it once, then return whether it trains, by what has been written of it."""
        if not self._trainer_id:
            self._path.write_text(self._script)
            words = ("submit", "--parsable", "-J", self._name, str(self._path))
            self._trainer_id = self._verb(words)
            return "submitted"
        status = json.loads(self._verb(("status", self._trainer_id, "--json")))
        return str(status["record"]["state"])

    def end(self) -> None:
        """Cancel it."""
        if self._trainer_id:
            self._verb(("cancel", "--now", self._trainer_id))
            self._trainer_id = ""

    def _verb(self, words: Sequence[str]) -> str:
        argv = (sys.executable, "-m", "bftrainer", *words)
        return subprocess.run(
            argv, env=self._env, stdout=subprocess.PIPE, text=True, check=True
        ).stdout.strip()


class Asker:
    """Asks for everything that a user may see, always ``ASKERS`` questions at once."""

    def __init__(self, socket_path: str) -> None:
        self._socket_path = socket_path

    def ask(self, chance: random.Random) -> str:
        """Ask for ``ASKED_S``; return how the last question was answered."""
        end_s = time.monotonic() + ASKED_S
        answer = "no answer"
        while time.monotonic() < end_s:
            under_way = [self._begin(chance.choice(PATHS)) for _ in range(ASKERS)]
            for connection in under_way:
                answer = _end(connection)
        return answer

    def _begin(self, path: str) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("localhost", timeout=10.0)
        with contextlib.suppress(OSError):  # turned away: told at the end
            connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.sock.settimeout(10.0)
            connection.sock.connect(self._socket_path)
            connection.request("GET", path)
        return connection


def _end(connection: http.client.HTTPConnection) -> str:
    try:
        answer = connection.getresponse()
        answer.read()
    except (OSError, http.client.HTTPException):
        return "turned away"
    finally:
        connection.close()
    return f"GET {answer.status}"
