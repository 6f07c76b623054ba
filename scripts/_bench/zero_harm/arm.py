"""One run: a fresh cluster, perhaps with bftrainer, the workload, what came of it.

Called by ``bench_zero_harm``. The moment at which the workload starts has a fixed phase
after a backfill cycle, so that each job of every arm meets the scheduler as its twins do.
Leaves no process and no directory behind.
"""

from __future__ import annotations

import getpass
import os
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from _bench.waiting import BenchError, wait_until
from _bench.zero_harm import cycles, idle, journal
from _bench.zero_harm.cells import Cell, Settings
from _bench.zero_harm.runs import Run
from _bench.zero_harm.submit import Submitter
from _bench.zero_harm.workload import PlannedJob
from bftrainer.lab.demo.sidecar import DaemonProcess
from bftrainer.model.trainer import TrainerSpec
from milp.problem import Curve
from slurm_plugins.testcluster import SlurmTestCluster

PHASE = 0.4  # of a bf_interval, after the begin of a cycle
RESERVE = 1
MIN_GAP_S = 60.0
GAP_MARGIN_S = 10.0
HARM_QUIET_S = 60.0
SETTLE_PATIENCE_S = 180.0
N_TRAINERS = 2
# Defaults but for those that are minutes on a machine where jobs run for hours.
POLICY = f"""\
reserve_nodes_per_type: {RESERVE}
min_gap_s: {MIN_GAP_S:g}
gap_margin_s: {GAP_MARGIN_S:g}
harm_quiet_s: {HARM_QUIET_S:g}
"""
LIGHT = Path(__file__).resolve().parents[2] / "workloads" / "light_interpreter.py"
Say = Callable[[str], None]


def _is_alone() -> None:
    """Nobody to wait for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What all runs of one call share."""

    jobs: tuple[PlannedJob, ...]
    n_nodes: int
    deadline_s: float  # after the start of a run
    ticks: str  # of the main scheduler: parameters of all clusters
    keep: Path  # where the journals and logs of runs with bftrainer go
    say: Say
    is_set: Callable[[], None] = _is_alone  # returns when all runs side by side are set up


def play(stage: Stage, settings: Settings, name: str, cell: Cell | None) -> Run:
    """Run the workload once; ``cell``: with bftrainer as this cell has it.

    Raises:
        BenchError, BftError: the run did not come to its end.
    """
    directory = Path(tempfile.mkdtemp(prefix="bft-zero-", dir="/tmp"))
    directory.chmod(0o755)  # ordinary users' jobs must reach the cluster's directory
    config = settings.cluster(directory / "c", stage.n_nodes, stage.ticks)
    try:
        with SlurmTestCluster(config) as cluster:
            log = cycles.note(cluster)
            if cell is None:
                return _run(stage, cluster, log, name)[0]
            with _sidecar(directory, cluster, cell, stage) as sidecar:
                run, origin_s = _run(stage, cluster, log, name)
                sidecar.stop()
                _keep(sidecar, log, stage.keep / name.replace(" ", "-"))
                return _with_journal(run, sidecar, origin_s, cycles.starts(log))
    finally:
        # A step that ends late may still write here: that is no reason to lose the run.
        shutil.rmtree(directory, ignore_errors=True)


def _run(stage: Stage, cluster: SlurmTestCluster, log: Path, name: str) -> tuple[Run, float]:
    """Run the workload; also when it started (epoch)."""
    stage.is_set()
    origin_s = cycles.at_phase(cluster, log, PHASE)
    stage.say(f"{name}: {len(stage.jobs)} jobs, last one submitted {stage.jobs[-1].at_s:.0f} s in")
    began_s, busy_before_s = time.time(), _busy_s()
    outcomes, problem = Submitter(cluster, stage.jobs, origin_s).run(stage.deadline_s)
    wall_s = time.time() - began_s
    busy_s = _busy_s() - busy_before_s
    run = Run(
        name=name,
        nodes=cluster.config.node_names,
        bf_interval_s=cluster.config.bf_interval_s,
        jobs=outcomes,
        cycles_s=tuple(at_s - origin_s for at_s in cycles.read(log)),
        cpu_share=busy_s / (wall_s * (os.cpu_count() or 1)),
        problem=problem,
    )
    return run, origin_s


@contextmanager
def _sidecar(
    directory: Path, cluster: SlurmTestCluster, cell: Cell, stage: Stage
) -> Iterator[DaemonProcess]:
    """A daemon whose trainers already hold every node but the reserve."""
    sidecar = DaemonProcess(
        directory / "state",
        batch_system="slurm",
        batch_options=cluster.config.batch_options(is_told=cell.is_told),
        policy=POLICY,
    )
    try:
        sidecar.start()
        for trainer in light_trainers(directory, N_TRAINERS, stage.n_nodes):
            sidecar.client.submit(trainer)
        wait_for_nodes(sidecar, stage.n_nodes - RESERVE)
        yield sidecar
    finally:
        sidecar.stop()


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

    what = f"{n_nodes} nodes train; see {sidecar.log}"
    wait_until(train, what, patience_s=SETTLE_PATIENCE_S, interval_s=0.5)


def _keep(sidecar: DaemonProcess, log: Path, directory: Path) -> None:
    """Keep what explains a run: the journal, the daemon's log, slurmctld's log."""
    directory.mkdir(parents=True, exist_ok=True)
    for path in (*sidecar.state_dir.glob("journal*"), sidecar.log, log):
        shutil.copy(path, directory)


def _with_journal(
    run: Run, sidecar: DaemonProcess, origin_s: float, begun_s: Mapping[str, float]
) -> Run:
    read = journal.read(sidecar.entries(), origin_s, origin_s + run.makespan_s, begun_s)
    busy = idle.busy_spans(run)
    return replace(
        run,
        sidecar=replace(
            read, held=idle.without(read.held, busy), training=idle.without(read.training, busy)
        ),
    )


def _busy_s() -> float:
    """Processor time this machine has spent so far on anything but idling."""
    words: Sequence[str] = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()
    ticks = [int(word) for word in words[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")
