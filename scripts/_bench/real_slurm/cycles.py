"""When a test cluster's backfill scheduler begins its cycles, and when jobs start.

To the millisecond, read from slurmctld's log at level debug: ``sdiag`` and ``squeue`` tell
whole seconds, cost a request each time, and say nothing of a cycle that found no job.
Called by what runs on a test cluster.
"""

from __future__ import annotations

from pathlib import Path

from _bench.real_slurm.slurm_log import cycles_s
from _bench.waiting import BenchError, wait_until
from slurm_plugins.testcluster import SlurmTestCluster

PATIENCE_S = 90.0


def read(log: Path) -> tuple[float, ...]:
    """Return the begin of every cycle so far (epoch)."""
    return cycles_s(log.read_text(encoding="utf-8", errors="replace"))


def note(cluster: SlurmTestCluster) -> Path:
    """Make slurmctld write down its cycles; return its log."""
    answer = cluster.command("scontrol", "setdebug", "debug")
    if not answer.is_ok:
        raise BenchError(f"scontrol setdebug: {answer.stderr.strip()}")
    return cluster.directory / "log" / "slurmctld.log"


def at_phase(cluster: SlurmTestCluster, log: Path, phase: float) -> float:
    """Wait until a cycle begins; return when that much of it will be over (epoch)."""
    return wait_for_next(cluster, log) + phase * cluster.config.bf_interval_s


def wait_for_next(cluster: SlurmTestCluster, log: Path) -> float:
    """Wait until a cycle begins; return when it did (epoch).

    Backfill rests while nothing changes, so something is changed first; a cycle that was
    due runs at once, and the one awaited is then a whole interval after it.
    """
    n_before = len(read(log))

    def begun() -> tuple[float, ...]:
        cluster.command("scontrol", "update", "PartitionName=batch", "State=UP")
        return read(log)[n_before:]

    return wait_until(begun, "a backfill cycle", patience_s=PATIENCE_S, interval_s=0.25)[-1]
