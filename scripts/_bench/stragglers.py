"""One training on a local batch system, with a node that becomes slow, or none.

Called by ``bench_stragglers``: a real daemon, real agents, real workers that wait instead
of computing (``workloads/uneven.py``), so that one machine can play several nodes.
"""

from __future__ import annotations

import getpass
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from _bench.waiting import BenchError
from bftrainer.batch.local.client import start_server
from bftrainer.lab.demo.sidecar import DaemonProcess
from bftrainer.model.trainer import TrainerSpec
from bftrainer.model.views import TrainerView
from milp.problem import Curve

SIZE = 4  # nodes of the trainer: one straggler to three others, as in the paper
STEP_MS, BATCH = 80, 4  # of each worker; BATCH as in workloads/uneven.py
SCRIPT = Path(__file__).parents[1] / "workloads" / "uneven.py"
POLICY = """\
poll_interval_s: 0.2
reserve_nodes_per_type: 0
min_gap_s: 2
gap_margin_s: 1
hold_idle_s: 2
explore_budget: 0
straggler_threshold: {threshold}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """What a training goes through."""

    slowdown: float  # of one node; 1: of none
    is_replaced: bool
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What came of it; times since the node became slow."""

    slowdown: float
    is_replaced: bool
    steps: int
    completion_s: float  # of so many steps, from the first
    found_s: float | None = None
    replaced_s: float | None = None
    pause_s: float | None = None
    load: float = 0.0  # of the machine, one minute, at the end


def usual_s(steps: int) -> float:
    """What so many steps take with nobody slow."""
    return steps * STEP_MS / 1000.0


def train(arm: Arm) -> Training:
    """Run one training to its end.

    Raises:
        BenchError: it failed, or takes far too long.
    """
    with tempfile.TemporaryDirectory(prefix="bft-bench-") as scratch:
        base = Path(scratch)
        server = start_server(base / "local", n_nodes=SIZE + 1, cycle_s=0.5)
        sidecar = DaemonProcess(
            base / "state",
            batch_system="local",
            batch_options={"socket": str(server.socket_path)},
            policy=POLICY.format(threshold=0.8 if arm.is_replaced else 0),
        )
        try:
            sidecar.start()
            return _train(sidecar, base, arm)
        finally:
            try:
                sidecar.stop()
            finally:
                server.stop()


def _train(sidecar: DaemonProcess, base: Path, arm: Arm) -> Training:
    slow = base / "slow.json"
    slow.write_text("{}")
    trainer_id = sidecar.client.submit(_spec(base, slow, arm.steps)).record.trainer_id

    def view() -> TrainerView:
        return sidecar.client.trainer(trainer_id)

    running = _until(view, lambda v: len(v.observed_nodes) == SIZE, 120.0)
    began_s = time.time()
    if arm.slowdown > 1.0:
        slow.write_text(json.dumps({running.observed_nodes[1]: arm.slowdown}))
    limit_s = 60.0 + 2.0 * arm.slowdown * usual_s(arm.steps)
    ended = _until(view, lambda v: v.record.state.is_final, limit_s).record
    if ended.state.value != "finished" or ended.failures or ended.started_s is None:
        raise BenchError(f"the training is {ended.state.value}: {ended.reason}")
    found = [e.at_s - began_s for e in sidecar.entries("straggler") if e.payload["what"]["is_slow"]]
    replaced = sidecar.entries("straggler-replaced")
    return Training(
        slowdown=arm.slowdown,
        is_replaced=arm.is_replaced,
        steps=arm.steps,
        completion_s=(ended.ended_s or 0.0) - ended.started_s,
        found_s=found[0] if found else None,
        replaced_s=replaced[0].at_s - began_s if replaced else None,
        pause_s=replaced[0].payload["what"]["pause_s"] if replaced else None,
        load=_load(),
    )


def _spec(base: Path, slow: Path, steps: int) -> TrainerSpec:
    return TrainerSpec(
        name="uneven",
        user=getpass.getuser(),
        script=str(SCRIPT),
        args=(str(STEP_MS), str(steps * BATCH * SIZE), str(slow)),
        cwd=str(base),
        interpreter=sys.executable,
        n_min=SIZE,
        n_max=SIZE,
        checkpoint_dir=str(base / "checkpoints"),
        checkpoint_interval_s=3600.0,
        curve=Curve(sizes=(1, SIZE), samples_per_s=(100.0, 100.0 * SIZE)),
        environment=(("OMP_NUM_THREADS", "1"),),
    )


def _until(
    view: Callable[[], TrainerView], is_so: Callable[[TrainerView], bool], limit_s: float
) -> TrainerView:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if is_so(seen := view()):
            return seen
        time.sleep(0.1)
    raise BenchError(f"not within {limit_s:.0f} s: {view().record.state.value}")


def _load() -> float:
    return float(Path("/proc/loadavg").read_text(encoding="utf-8").split()[0])
