"""A user's own daemon on the login host, used as its user does; and what its trainers recorded.

Only what a user can see is looked at: verbs, their documents, the records of samples.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from bftrainer.batch import process
from bftrainer.lab.try_records import EpochUse, Line, epochs
from tests.support.hosts.cluster import Cluster
from tests.support.hosts.plan import LOGIN
from tests.support.waiting import wait_for

RECORDS = "/var/tmp/records"  # on each host's own disk: a file is named after a process
VERB_S = 120.0

# Each worker works as long as its samples say, so size is worth its while; all hurry when told to.
TRAIN = """\
import os, sys, time
import torch
from torch.utils.data import DataLoader, TensorDataset
from bftrainer import elastic

epochs, sample_s, hurry = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
data = TensorDataset(torch.randn(240, 4), torch.randn(240, 1))
run = elastic.Run(model, optimizer, DataLoader(data, batch_size=24, shuffle=True), epochs=epochs)
for epoch in run.epochs():
    for x, y in run.batches():
        if not os.path.exists(hurry):
            time.sleep(sample_s * len(x))
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        run.step()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """A committed update of a trainer, as a worker wrote it down."""

    at_s: float  # since the epoch
    step: int
    generation: int
    size: int  # in workers


class OwnDaemon:
    """The daemon of a user; a context manager that ends it."""

    def __init__(
        self,
        cluster: Cluster,
        user: str = "ada",
        host: str = LOGIN,
        env: Mapping[str, str] = {},  # of its verbs
    ) -> None:
        self.cluster, self.user, self.host, self.env = cluster, user, host, env
        self.directory = cluster.home / user / "first"
        self._records: dict[tuple[str, str], list[Line]] = {}
        self._read_bytes: dict[Path, int] = {}
        for node in cluster.plan.nodes:
            cluster.does(node, "install", "-d", "-m", "1777", RECORDS)
        cluster.does(host, "mkdir", "-p", self.work, user=user)

    @property
    def work(self) -> str:
        """The directory of its trainers, as hosts name it."""
        return f"/home/{self.user}/first"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.says("down", "--now")

    def says(self, *words: str, host: str = "") -> process.Completed:
        """Run a verb to its end."""
        argv = (sys.executable, "-m", "bftrainer", *words)
        return self.cluster.run(
            *(host or self.host, *argv),
            user=self.user,
            cwd=self.work,
            env=self.env,
            timeout_s=VERB_S,
        )

    def does(self, *words: str) -> str:
        """Run a verb that must succeed; its output."""
        done = self.says(*words)
        assert done.is_ok, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def submit(self, text: str = TRAIN, *options: str, args: Sequence[str] = ()) -> str:
        """Submit a script that records its samples; the trainer's id."""
        (self.directory / "train.py").write_text(text)
        export = ("--export", f"BFT_RECORD_SAMPLES={RECORDS}", "--export", "OMP_NUM_THREADS=1")
        return self.does("submit", "--parsable", *export, *options, "train.py", *args).strip()

    def submit_train(self, nodes: str, *, epochs: int = 1_000_000, sample_s: float = 0.008) -> str:
        """Submit ``TRAIN``; ``hurry`` ends its waits."""
        args = (str(epochs), str(sample_s), f"{self.work}/hurry")
        return self.submit(TRAIN, "--nodes", nodes, "--epochs", str(epochs), args=args)

    def hurry(self) -> None:
        """Let ``TRAIN`` wait no longer."""
        (self.directory / "hurry").touch()

    def status(self) -> dict[str, Any]:
        """Return what ``status --json`` shows, asked from here; {}: the daemon does not answer.

        A verb needs a second of processor time to start, and this is asked all the time.
        """
        return self._answer("/v1/status")

    def nodes(self) -> list[dict[str, Any]]:
        """Return the nodes of ``nodes --json``, likewise; none: the daemon does not answer."""
        found: list[dict[str, Any]] = self._answer("/v1/nodes").get("nodes", [])
        return found

    def _answer(self, document: str) -> dict[str, Any]:
        for path in self.cluster.home.glob(f"{self.user}/.bftrainer/*/daemon.sock"):
            with contextlib.suppress(OSError, http.client.HTTPException):
                return _get(path, document)
        return {}

    def trainer(self, trainer_id: str) -> dict[str, Any]:
        """Return a trainer of that document; {}: unknown."""
        every = self.status().get("trainers", [])
        return next((t for t in every if t["record"]["trainer_id"] == trainer_id), {})

    def trains_at(self, trainer_id: str, *sizes: int) -> None:
        """Wait until the daemon says so, of a whole generation."""

        def size() -> bool:
            found = self.trainer(trainer_id)
            return bool(found) and found["record"]["progress"]["size"] in sizes

        wait_for(size, interval_s=0.2, what=f"{trainer_id} trains at {sizes}")

    def ends(self, trainer_id: str, state: str = "finished") -> None:
        """Wait for a state."""

        def reached() -> bool:
            found = self.trainer(trainer_id)
            return bool(found) and found["record"]["state"] == state

        wait_for(reached, interval_s=0.2, what=f"{trainer_id} is {state}")

    def polls_each(self, interval_s: float) -> None:
        """Let it ask Slurm more often than is polite on a real site."""
        (path,) = self.cluster.home.glob(f"{self.user}/.bftrainer/*/policy.yaml")
        text = re.sub(r"(?m)^(poll_interval_s|requests_per_minute): .*\n", "", path.read_text())
        path.write_text(f"{text}poll_interval_s: {interval_s}\nrequests_per_minute: 1000\n")
        self.does("policy", "reload")

    def records(self) -> dict[tuple[str, str], list[Line]]:
        """Return the lines of each worker so far, by host and file. A killed one's last may be cut.

        Reads what is new since the last call.
        """
        for node in self.cluster.plan.nodes:
            for path in sorted(self.cluster.disk(node, RECORDS).glob("samples-*.jsonl")):
                with path.open("rb") as stream:
                    stream.seek(self._read_bytes.get(path, 0))
                    whole = stream.read().rpartition(b"\n")[0]
                if whole:
                    self._read_bytes[path] = self._read_bytes.get(path, 0) + len(whole) + 1
                    lines = self._records.setdefault((node, path.stem), [])
                    lines += [json.loads(line) for line in whole.split(b"\n")]
        return self._records


def _get(socket_path: Path, path: str) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX) as connected:
        connected.settimeout(VERB_S)
        connected.connect(str(socket_path))
        connection = http.client.HTTPConnection("localhost")
        connection.sock = connected
        connection.request("GET", path)
        found: dict[str, Any] = json.loads(connection.getresponse().read())
        return found


def uses(records: Mapping[tuple[str, str], list[Line]]) -> list[EpochUse]:
    """Return how often each sample was used, by epoch."""
    return epochs({" ".join(key): lines for key, lines in records.items()})


def updates(records: Mapping[tuple[str, str], list[Line]]) -> list[Update]:
    """Return the updates in order of time; of each step of a generation the first note of it."""
    first: dict[tuple[int, int], Update] = {}
    for lines in records.values():
        for line in lines:
            if line["kind"] == "committed":
                key = line["generation"], line["step"]
                one = Update(**{name: line[name] for name in Update.__slots__})
                if key not in first or one.at_s < first[key].at_s:
                    first[key] = one
    return sorted(first.values(), key=lambda one: one.at_s)
