"""One run of each arm of ``bench_own``: the elastic trainer, and the same script requeued."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from _bench.own.people import SCRIPT, Researcher, offered_node_s
from _bench.waiting import wait_until
from bftrainer.api.client import Client
from bftrainer.fleet.generations.members import Rescaled
from bftrainer.lab import try_records
from bftrainer.lab.demo.sidecar import DaemonProcess
from bftrainer.model.canonical import from_plain
from slurm_plugins.testcluster.workload import WorkloadItem, WorkloadRun

PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What an arm trained of what it was offered."""

    arm: str
    samples: int  # that were not lost again
    offered_node_s: float
    begun_s: float  # from the first command to the first committed step
    waits_s: tuple[float, ...]  # of the other users' jobs, from submission to start

    @property
    def samples_per_node_s(self) -> float:
        """Samples per second of a node that others left."""
        return self.samples / self.offered_node_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Elastic:
    """The elastic arm, and what was seen of it."""

    trained: Trained
    preemptions: int
    failures: int
    restarts: int  # generations that began from a checkpoint
    pauses_s: tuple[float, ...]
    epochs: tuple[try_records.EpochUse, ...]
    away_s: float  # without a daemon, which was killed


def elastic(one: Researcher, jobs: Sequence[WorkloadItem], seconds: float) -> Elastic:
    """Start a daemon and a trainer; kill the daemon half-way; end both."""
    began_s = time.time()
    one.bftrainer("up")
    noted = one.home / "samples"
    one.run("mkdir", str(noted))
    trainer = one.bftrainer(
        *("submit", "--parsable", "--nodes", "1:4", "--export", f"BFT_RECORD_SAMPLES={noted}"),
        *("--interpreter", sys.executable, str(SCRIPT), "elastic", "100000"),
    )
    client = Client(one.state / "daemon.sock")

    def steps() -> int:
        return client.trainer(trainer).record.progress.step

    wait_until(steps, "the first step", patience_s=PATIENCE_S)
    begun_s = time.time() - began_s
    with WorkloadRun(one.cluster, jobs) as run:
        time.sleep(seconds / 2)
        away_s = _kill(one, client)
        time.sleep(max(0.0, seconds / 2 - away_s))
        view, end_s = client.trainer(trainer), time.time()
        records = run.records()
    one.bftrainer("down", "--now")
    daemon = DaemonProcess(one.state, batch_system="slurm", batch_options={})
    rescales = [from_plain(e.payload["what"], Rescaled) for e in daemon.entries("rescaled")]
    daemon_log = (one.state / "daemon.log").read_text()
    noted_lines = try_records.Records(noted)
    noted_lines.look()
    return Elastic(
        trained=Trained(
            arm="bftrainer up",
            samples=view.record.progress.samples,
            offered_node_s=offered_node_s(records, began_s, end_s),
            begun_s=begun_s,
            waits_s=tuple(r.wait_s for r in records if r.wait_s is not None),
        ),
        preemptions=daemon_log.count(" left: signal") + daemon_log.count(" is preempted in "),
        failures=view.record.failures,
        restarts=sum(1 for r in rescales[1:] if r.resumed_from),
        pauses_s=tuple(r.pause_s for r in rescales if r.size_before and r.size),
        epochs=tuple(try_records.epochs(noted_lines.processes)),
        away_s=away_s,
    )


def _kill(one: Researcher, client: Client) -> float:
    """SIGKILL the daemon and start it again; return how long it was away."""
    began_s = time.monotonic()
    os.kill(client.status().pid, signal.SIGKILL)
    time.sleep(5.0)
    one.bftrainer("up")
    return time.monotonic() - began_s


def requeued(one: Researcher, jobs: Sequence[WorkloadItem], seconds: float, size: int) -> Trained:
    """Submit the job and let Slurm requeue it."""
    out = one.home / f"requeue-{size}"
    one.run("mkdir", str(out))
    began_s = time.time()
    command = f"srun --nodes={size} --ntasks={size} {sys.executable} {SCRIPT} requeue {out}"
    job = one.run(
        *("sbatch", "--parsable", "--partition=scavenge", f"--nodes={size}", f"--ntasks={size}"),
        *("--exclusive", "--mem=0", "--requeue", "--time=60", "--open-mode=append"),
        *(f"--output={out}/log", f"--wrap={command}"),
    )
    done_file = out / "done"
    wait_until(done_file.exists, "its first step", patience_s=PATIENCE_S)
    begun_s = time.time() - began_s
    with WorkloadRun(one.cluster, jobs) as run:
        time.sleep(seconds)
        samples, end_s, records = int(done_file.read_text() or 0), time.time(), run.records()
    one.cluster.cancel(job)
    wait_until(lambda: not _queue(one), "the job has ended", patience_s=PATIENCE_S)
    return Trained(
        arm=f"--requeue, {size} nodes",
        samples=samples,
        offered_node_s=offered_node_s(records, began_s, end_s),
        begun_s=begun_s,
        waits_s=tuple(r.wait_s for r in records if r.wait_s is not None),
    )


def _queue(one: Researcher) -> str:
    return one.cluster.command("squeue", "-h", "-p", "scavenge", "-o", "%i").stdout
