"""Trainers that sleep, for clusters on which only ordinary jobs are measured."""

from __future__ import annotations

import getpass
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from _bench.waiting import BenchError, wait_until
from bftrainer.lab.demo.sidecar import DaemonProcess
from bftrainer.model.trainer import TrainerSpec
from milp.problem import Curve

SETTLE_PATIENCE_S = 180.0
LIGHT = Path(__file__).resolve().parents[2] / "workloads" / "light_interpreter.py"


def light_trainers(directory: Path, count: int, n_nodes: int) -> Iterator[TrainerSpec]:
    """Trainers that sleep: what they would compute has no bearing on ordinary jobs."""
    interpreter = directory / "interpreter"
    interpreter.write_text(
        f'#!/bin/sh\nexec {shlex.join((sys.executable, "-I", "-S", str(LIGHT)))} "$@"\n'
    )
    interpreter.chmod(0o755)
    sizes = tuple(sorted({1, n_nodes}))
    for number in range(count):
        yield TrainerSpec(
            name=f"light{number}",
            user=getpass.getuser(),
            script="/dev/null",
            cwd=str(directory),
            interpreter=str(interpreter),
            n_min=1,
            n_max=n_nodes,
            checkpoint_dir=str(directory / f"light{number}"),
            curve=Curve(sizes=sizes, samples_per_s=tuple(100.0 * n for n in sizes)),
        )


def wait_for_nodes(sidecar: DaemonProcess, n_nodes: int) -> None:
    """Wait until trainers train on so many nodes."""

    def train() -> bool:
        if not sidecar.is_running():
            tail = sidecar.log.read_text(errors="replace")[-1000:]
            raise BenchError(f"the daemon has ended; its log ends:\n{tail}")
        return sum(len(t.observed_nodes) for t in sidecar.client.trainers()) >= n_nodes

    goal = f"{n_nodes} nodes train; see {sidecar.log}"
    wait_until(train, goal, patience_s=SETTLE_PATIENCE_S, interval_s=0.5)
