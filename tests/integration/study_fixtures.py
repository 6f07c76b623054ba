"""Studies on a local pool for tests: a script, documents, and loops that may be killed."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol
from unittest import mock

from bftrainer.api.client import Client
from bftrainer.batch import process
from bftrainer.batch.process import Completed
from bftrainer.cli.main import main
from bftrainer.lab.demo.sidecar import DaemonProcess
from tests.support.waiting import wait_for

LOOP, DAEMON, BOTH = "loop", "daemon", "both"  # what is killed

POLICY = """\
poll_interval_s: 0.2
min_gap_s: 2
gap_margin_s: 1
join_window_s: 0.2
agent_timeout_s: 4
hold_idle_s: 20
failure_budget: 2
"""
# Every trained epoch is a line in the trial's file: nothing may be trained twice.
TRAINS = """\
import os, sys, time
from pathlib import Path
import torch
from torch.utils.data import DataLoader, TensorDataset
from bftrainer import elastic

p, number = elastic.params(), os.environ["BFT_TRIAL"]
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=p["lr"], momentum=0.5)
x = torch.randn(48, 4)
data = TensorDataset(x, x.sum(1, keepdim=True))
run = elastic.Run(model, optimizer, DataLoader(data, batch_size=24, shuffle=True), epochs=1)
for epoch in run.epochs():
    for a, b in run.batches():
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(a), b).backward()
        run.step()
        time.sleep(0.02)
    with torch.no_grad():
        value = torch.nn.functional.mse_loss(model(x), data.tensors[1]).item()
    if run.rank == 0:
        with Path(os.environ["BFT_EPOCHS_LOG"]).open("a") as log:
            log.write(f"{number} {epoch}\\n")
    run.report(value)
"""
# Successive halving of six trials: 6 + 3 + 2 epochs in all.
HALVING = {
    "rule": {"name": "sha", "trials": 6, "least": 1, "most": 4, "eta": 2},
    "parallel": 3,
}
HALVING_EPOCHS = 11
BFTRAINER = (sys.executable, "-m", "bftrainer")


class HasDaemon(Protocol):
    """A site, or a daemon on another cluster."""

    @property
    def client(self) -> Client:
        """Return the daemon's."""

    @property
    def sidecar(self) -> DaemonProcess:
        """Return its process."""


class StudyUser:
    """Somebody who runs studies from a directory of his own."""

    def __init__(self, site: HasDaemon, home: Path, script: str = TRAINS) -> None:
        self.site, self.home = site, home
        home.mkdir(parents=True)
        self.epochs_log = home / "epochs.log"
        (home / "train.py").write_text(script)
        self.env = {**os.environ, "BFTRAINER_SOCKET": str(site.client.socket_path)}
        self.env.pop("BFTRAINER_STATE_DIR", None)

    def write(self, name: str, **keys: Any) -> Path:
        """Write NAME.yaml (JSON is YAML)."""
        export = ["OMP_NUM_THREADS=1", f"BFT_EPOCHS_LOG={self.epochs_log}"]
        document = {
            "name": name,
            "parameters": {"lr": {"type": "float", "low": 0.001, "high": 0.3, "log": True}},
            "sampler": "random",
            "submit": {"export": export},
            **keys,
        }
        path = self.home / f"{name}.yaml"
        path.write_text(json.dumps(document))
        return path

    def does(self, *words: str, timeout_s: float = 120.0) -> Completed:
        """Run a verb of ``bftrainer study``."""
        argv = (*BFTRAINER, "study", *words)
        return process.run(argv, timeout_s=timeout_s, env=self.env, cwd=self.home)

    def says(self, *words: str) -> str:
        """Return what a verb of ``bftrainer study`` prints, called in this process."""
        with contextlib.redirect_stdout(io.StringIO()) as said:
            assert self.calls(*words) == 0
        return said.getvalue()

    def calls(self, *words: str) -> int:
        """Call a verb of ``bftrainer study`` in this process; return its exit code."""
        with contextlib.chdir(self.home), mock.patch.dict(os.environ, self.env, clear=True):
            return main(["study", *words])

    def summary(self, name: str) -> dict[str, Any]:
        """Return what ``study status --json`` says."""
        found: dict[str, Any] = json.loads(self.says("status", name, "--json"))
        return found

    def began_s(self, name: str) -> float:
        """Return when a study began."""
        return (self.home / f"{name}.study" / "study.json").stat().st_mtime

    def start(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        """Start the loop of a study."""
        with (self.home / f"{name}.out").open("ab") as out:
            return process.spawn(
                (*BFTRAINER, "study", "run", *words), env=self.env, cwd=self.home,
                stdout=out, stderr=out,
            )  # fmt: skip

    def trained(self) -> Counter[tuple[int, int]]:
        """Return how often each epoch of each trial was trained."""
        lines = self.epochs_log.read_text().splitlines() if self.epochs_log.exists() else []
        return Counter((int(n), int(epoch)) for n, epoch in (line.split() for line in lines))


Kill = tuple[Callable[[StudyUser], bool], str]  # when, and what


class Victim:
    """A study whose loop and daemon are killed and started again."""

    def __init__(self, user: StudyUser, name: str) -> None:
        self.user, self.name = user, name
        self.loop = self._start()
        wait_for((user.home / f"{name}.study" / "study.json").exists, interval_s=0.01)

    def _start(self) -> subprocess.Popen[bytes]:
        return self.user.start(self.name, f"{self.name}.yaml", "train.py")

    def run(self, kills: Sequence[Kill]) -> None:
        """Kill when it is time, start again, and wait for the study's end."""
        try:
            for is_time, kind in kills:
                while not is_time(self.user) and self.loop.poll() is None:
                    time.sleep(0.005)
                self._kill(kind)
            assert self.loop.wait(120) == 0, (self.user.home / f"{self.name}.out").read_text()
        finally:
            end(self.loop)

    def _kill(self, kind: str) -> None:
        if kind in (LOOP, BOTH):
            end(self.loop)
        if kind in (DAEMON, BOTH):
            self.user.site.sidecar.kill()
            self.user.site.sidecar.start()
        if kind in (LOOP, BOTH):
            self.loop = self._start()


def end(loop: subprocess.Popen[bytes]) -> None:
    """Kill a loop."""
    process.kill_group(loop.pid)
    loop.wait()


def outcome(summary: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Return what two runs of one study must agree on."""
    return [
        (t["number"], t["stage"], t["budget"], t["parameters"], t["values"])
        for t in summary["trials"]
    ]
