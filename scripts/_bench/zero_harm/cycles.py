"""When the backfill scheduler of a test cluster begins its cycles, to the millisecond.

Read from slurmctld's log at level debug: ``sdiag`` tells whole seconds, costs a request
each time, and says nothing of a cycle that found no job. Called by ``arm``.
"""

from __future__ import annotations

import re
import time
from datetime import datetime
from pathlib import Path

from slurm_plugins.testcluster import SlurmTestCluster

_BEGIN = re.compile(r"^\[([0-9T:.-]+)\] .*backfill: beginning$", re.MULTILINE)
PATIENCE_S = 90.0


class CycleError(Exception):
    """The scheduler does not do what phase-locking needs."""


def read(log: Path) -> tuple[float, ...]:
    """Return the begin of every cycle so far (epoch)."""
    text = log.read_text(encoding="utf-8", errors="replace")
    return tuple(datetime.fromisoformat(found).timestamp() for found in _BEGIN.findall(text))


def note(cluster: SlurmTestCluster) -> Path:
    """Make slurmctld write down its cycles; return its log."""
    done = cluster.command("scontrol", "setdebug", "debug")
    if not done.is_ok:
        raise CycleError(f"scontrol setdebug: {done.stderr.strip()}")
    return cluster.directory / "log" / "slurmctld.log"


def wait_for_next(cluster: SlurmTestCluster, log: Path) -> float:
    """Wait until a cycle begins; return when it did (epoch).

    Backfill rests while nothing changes, so something is changed first; a cycle that was
    due runs at once, and the one awaited is then a whole interval after it.
    """
    n_before = len(read(log))
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        cluster.command("scontrol", "update", "PartitionName=batch", "State=UP")
        begun = read(log)
        if len(begun) > n_before:
            return begun[-1]
        time.sleep(0.25)
    raise CycleError(f"no backfill cycle within {PATIENCE_S:.0f} s")
