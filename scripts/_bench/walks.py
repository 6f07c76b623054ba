"""The three walks of ARCHITECTURE.md on this machine, recorded; called by ``trace_walks``."""

from __future__ import annotations

import asyncio
import getpass
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from _bench.plane import Plane
from _bench.traced import ROOT, Recorder, first_s, read, wrapper
from _bench.waiting import wait_until
from bftrainer.batch.local.client import LocalServer, start_server
from bftrainer.lab.demo.sidecar import DaemonProcess
from bftrainer.model.trainer import TrainerSpec

WORKLOADS: Final = ROOT / "scripts" / "workloads"
PATIENCE_S: Final = 300.0
JOB_S: Final = 15.0
POLICY = "reserve_nodes_per_type: 0\nmin_gap_s: 60\ngap_margin_s: 5\n"
Walk = dict[str, int]  # module -> lines executed


@contextmanager
def interpreter(path: str) -> Iterator[None]:
    """Have processes started with another interpreter."""
    usual, sys.executable = sys.executable, path
    try:
        yield
    finally:
        sys.executable = usual


def on_local_site(directory: Path) -> dict[str, Walk]:
    """Trace the walks of an idle node and of a job on the local batch system."""
    records, notes = directory / "records", directory / "notes"
    records.mkdir()
    notes.mkdir()
    own = wrapper(records)
    with (
        start_server(directory / "local", n_nodes=1, cycle_s=0.5) as server,
        interpreter(own),
    ):
        daemon = DaemonProcess(
            directory / "state",
            batch_system="local",
            batch_options={"socket": str(server.socket_path)},
            policy=POLICY,
        )
        spec = _spec(directory, notes)
        try:
            daemon.start()
            first = server.client.submit(n_nodes=1, limit_s=2 * JOB_S, duration_s=JOB_S)
            _wait(lambda: _state(server, first) == "running", "a job runs")
            daemon.client.submit(spec)
            _wait(lambda: _state(server, first) != "running", "the job ends")
            began_s = time.monotonic()
            _wait(lambda: any(notes.iterdir()), "a first step")
            trained_s = time.monotonic()
            time.sleep(5.0)  # what the claim left to do
            announced_s = time.monotonic()
            second = server.client.submit(n_nodes=1, limit_s=60.0, duration_s=JOB_S)
            _wait(lambda: _state(server, second) == "running", "the job gets the node")
            gone_s = time.monotonic()
            time.sleep(1.0)  # records are written with a delay
        finally:
            daemon.stop()
    spans = {
        "idle node": (began_s, trained_s),
        "idle node, to its pilot": (began_s, first_s(records, "trainers/agent", began_s)),
        "announced job": (announced_s, gone_s),
    }
    return {name: _walk(records, *span) for name, span in spans.items()}


def _spec(directory: Path, notes: Path) -> TrainerSpec:
    return TrainerSpec(
        name="walk",
        user=getpass.getuser(),
        script=str(WORKLOADS / "claim_small.py"),
        cwd=str(directory),
        interpreter=sys.executable,
        n_min=1,
        n_max=1,
        checkpoint_dir=str(directory / "checkpoints"),
        environment=(("BENCH_CLAIMS", str(notes)), ("SLURMD_NODENAME", "n0")),
    )


def _state(server: LocalServer, job_id: str) -> str:
    jobs = server.client.request("snapshot")["jobs"]
    return next((job["state"] for job in jobs if job["job_id"] == job_id), "")


def _wait(condition: Callable[[], bool], what: str) -> None:
    wait_until(lambda: condition() or None, what, patience_s=PATIENCE_S)


async def on_plane(directory: Path) -> Walk:
    """Trace a rescale from one worker to two."""
    records, steps = directory / "records", directory / "steps"
    records.mkdir(parents=True)
    steps.mkdir()
    own = Recorder(records)
    with interpreter(wrapper(records)):
        plane = Plane(
            directory,
            agents=2,
            script=WORKLOADS / "rescale_elastic.py",
            model="small",
            environment={"BENCH_RECORDS": str(steps)},
        )
        async with plane:
            plane.set_nodes(["n0"])
            await plane.until(lambda: any(steps.iterdir()), "it trains", PATIENCE_S)
            began_s = time.monotonic()
            own.start()
            plane.set_nodes(["n0", "n1"])
            await plane.until(lambda: len(plane.members()) > 1, "two train", PATIENCE_S)
            own.stop()
            ended_s = time.monotonic()
            await asyncio.sleep(1.0)  # records are written with a delay
    return _walk(records, began_s, ended_s)


def _walk(records: Path, began_s: float, ended_s: float) -> Walk:
    found = read(records, began_s, ended_s)
    return {name: len(executed) for name, executed in sorted(found.items())}
