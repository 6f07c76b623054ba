"""Faults of the batch system: its controller is stopped, jobs come, pilots are cancelled."""

from __future__ import annotations

from typing import Final

from _bench.nemesis.bed import Bed
from _bench.nemesis.keeper import PARTITION
from _bench.nemesis.schedule import EVERYWHERE, Fault, Kind
from tests.support.hosts.plan import CONTROLLER, LOGIN

LIMIT_MIN: Final = 10  # of ordinary jobs, of which each ends long before


class Scheduler:
    """Does what administrators and other users do."""

    def __init__(self, bed: Bed) -> None:
        self._bed = bed

    def begin(self, fault: Fault) -> None:
        """Make it; no command is waited for: the controller may not answer."""
        match fault.kind:
            case Kind.CONTROLLER:
                self._bed.cluster.stop_slurm(CONTROLLER)
            case Kind.JOB:
                size = (f"-N{fault.target}", "--exclusive", f"-t{LIMIT_MIN}", "-o/dev/null")
                job = ("sbatch", "-pbatch", *size, f"--wrap=sleep {fault.duration_s}")
                self._start(*job, user="bob")
            case _:
                where = () if fault.target == EVERYWHERE else (f"--nodelist={fault.target}",)
                self._start("scancel", f"--partition={PARTITION}", *where, user="ada")

    def end(self, fault: Fault) -> None:
        """Start the controller again; jobs end by themselves."""
        if fault.kind is Kind.CONTROLLER:
            self._bed.cluster.start_slurm(CONTROLLER)

    def _start(self, *argv: str, user: str) -> None:
        host = self._bed.on(CONTROLLER, LOGIN)
        self._bed.cluster.popen(host, *argv, user=user, cwd="/")
