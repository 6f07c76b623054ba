#!/usr/bin/env python3
"""The time to a first step in a container beside the same without one, on this machine.

Each start is what an agent does for a node's first worker: a warm template is started, in the image
or beside it, and a worker is forked from it that trains one step. *cold* is from the start of the
template to the end of the first step; *warm* is the same for a second worker, which is what a
rescale costs on a node that the trainer has. Both kinds take turns. The image is a directory whose
programs are those of the host, unless --image names one that has torch.
"""

from __future__ import annotations

import argparse
import json
import shutil
import socket
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))  # the tests' images

from _bench.benchmark import Benchmark, Measured, note
from _bench.waiting import BenchError

from bftrainer.batch.containers.choice import BY_NAME
from bftrainer.ground.protocol import WorkerConfig, to_body
from bftrainer.model.container import AUTO, RUNTIMES
from tests.support.containers import host_image, host_mounts
from trainers.agent.preambles import placed
from trainers.agent.start import Started, start_template

STARTS, QUICK_STARTS = 20, 3
PATIENCE_S = 120.0  # for one packet of a template
MAX_PACKET_BYTES = 1 << 16
MOST_FACTOR = 1.5  # cold, in a container: times what it takes without; 1 s at least is allowed
MOST_WARM_S = 0.05  # warm, in a container: what it may take more
LEAST_ALLOWED_S = 1.0
STEP = """\
import sys, torch
model = torch.nn.Linear(32, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(8, 32)).sum().backward()
optimizer.step()
open(sys.argv[1], "w").write("stepped")
"""
BENCHMARK = Benchmark(
    name="containers",
    title="Containers",
    about=__doc__,
    quick=f"{QUICK_STARTS} starts instead of {STARTS}",
    options={
        "--runtime": {"choices": [AUTO, *RUNTIMES], "default": AUTO},
        "--image": {"help": "an image with torch, as for submit --container"},
        "--mounts": {"default": "", "help": "as for submit --container-mounts"},
        "--interpreter": {"default": sys.executable, "help": "the image's Python"},
    },
)


class Arm:
    """Starts in a container, or without one."""

    def __init__(self, name: str, interpreter: str, config: dict[str, Any], scratch: Path) -> None:
        self.name, self._interpreter, self._scratch = name, interpreter, scratch
        self._config = config
        self.cold_s: list[float] = []
        self.warm_s: list[float] = []

    def start(self, number: int) -> None:
        """Start a template, and two workers one after the other."""
        worker = self._worker(f"{number}a")
        rest, preamble = placed(worker, self._scratch)
        began_s = time.monotonic()
        template = start_template(
            self._interpreter,
            dict(preamble.environment),
            self._scratch / f"{self.name}.log",
            preamble=preamble.path,
            cwd=preamble.cwd,
        )
        try:
            self._step(template, rest)
            self.cold_s.append(time.monotonic() - began_s)
            again_s = time.monotonic()
            self._step(template, placed(self._worker(f"{number}b"), self._scratch)[0])
            self.warm_s.append(time.monotonic() - again_s)
        finally:
            template.channel.close()
            template.kill()
            template.reap()

    def _worker(self, name: str) -> WorkerConfig:
        return WorkerConfig(
            trainer_id="t1",
            worker_id=f"{self.name}-{name}",
            node="n1",
            script=str(self._scratch / "step.py"),
            args=(str(self._scratch / f"{self.name}-{name}"),),
            cwd=str(self._scratch),
            log_path=str(self._scratch / f"{self.name}-worker.log"),
            **self._config,
        )

    def _step(self, template: Started, worker: WorkerConfig) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            packet = json.dumps({"fork": to_body(worker)}).encode()
            template.channel.settimeout(PATIENCE_S)
            socket.send_fds(template.channel, [packet], [theirs.fileno()])
            theirs.close()
            while True:
                try:
                    data = template.channel.recv(MAX_PACKET_BYTES)
                except OSError as problem:
                    raise BenchError(f"{self.name}: no answer of the template") from problem
                if not data:
                    raise BenchError(f"{self.name}: see {self._scratch}/{self.name}.log")
                [(kind, body)] = json.loads(data).items()
                if kind == "exited":
                    break
        if not Path(worker.args[0]).exists():
            raise BenchError(f"{self.name}: the worker ended with {body}")


def measure(arguments: argparse.Namespace, measured: Measured) -> None:
    """Take turns, and compare the medians."""
    count = QUICK_STARTS if arguments.quick else STARTS
    scratch = Path(tempfile.mkdtemp(prefix="bft-bench-containers-"))
    try:
        arms = _arms(arguments, scratch)
        for number in range(count):
            for arm in arms:
                arm.start(number)
            note(" ".join(f"{arm.name} {arm.cold_s[-1]:.2f} s" for arm in arms))
        _report(measured, arms, count)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _arms(arguments: argparse.Namespace, scratch: Path) -> list[Arm]:
    (scratch / "step.py").write_text(STEP)
    image, mounts = arguments.image, arguments.mounts
    if image is None:
        image, mounts = str(host_image(scratch / "image")), host_mounts()
    names = [arguments.runtime]
    if arguments.runtime == AUTO:
        names = [name for name in ("bwrap", "charliecloud") if BY_NAME[name].detect(shutil.which)]
    if not names:
        raise BenchError("this machine has neither bwrap nor ch-run; name a --runtime")
    arms = [Arm("none", sys.executable, {}, scratch)]
    for name in names:
        container = {
            "container": image, "container_runtime": name, "container_mounts": mounts
        }  # fmt: skip
        arms.append(Arm(name, arguments.interpreter, container, scratch))
    return arms


def _report(measured: Measured, arms: list[Arm], count: int) -> None:
    without, *within = arms
    rows = []
    for arm in arms:
        figures = (median(arm.cold_s), max(arm.cold_s), median(arm.warm_s), max(arm.warm_s))
        rows.append([arm.name, *(f"{figure:.3f} s" for figure in figures)])
        measured.results[arm.name] = {"cold_s": arm.cold_s, "warm_s": arm.warm_s}
    heads = ["container", "cold, median", "most", "warm, median", "most"]
    measured.table(f"Time to the first step ({count} starts each)", heads, rows)
    for arm in within:
        cold_s, usual_s = median(arm.cold_s), median(without.cold_s)
        measured.at_most(
            f"{arm.name}: cold start to the first step",
            cold_s,
            max(MOST_FACTOR * usual_s, usual_s + LEAST_ALLOWED_S),
            note=f"without {usual_s:.2f} s",
        )
        more_s = median(arm.warm_s) - median(without.warm_s)
        measured.at_most(f"{arm.name}: warm start, more than without", more_s, MOST_WARM_S)


if __name__ == "__main__":
    sys.exit(BENCHMARK.main(measure))
