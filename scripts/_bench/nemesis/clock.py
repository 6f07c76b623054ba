"""A wall clock of the login host that is set while its processes run.

Hosts of one machine share its clock. The daemon, its user's verbs and their sbatch read this one,
whose file is on the disk of the login host; agents, workers and Slurm keep the machine's.
"""

from __future__ import annotations

from typing import Final

from _bench.nemesis.schedule import Fault
from _bench.targets import ROOT
from tests.support.clocks import SHIFTED, SHIFTED_SBATCH
from tests.support.hosts import Cluster
from tests.support.hosts.plan import LOGIN
from tests.support.hosts.rack import PATH

PLACE: Final = "/var/lib/nemesis"
FILE: Final = f"{PLACE}/ahead"
AHEAD_S: Final = {"ahead": 3600, "behind": -3600}


class Clock:
    """The clock of one cluster's login host."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        cluster.does(LOGIN, "install", "-d", PLACE)
        sbatch = cluster.does(LOGIN, "which", "sbatch").strip()
        for name, text in (("sitecustomize.py", SHIFTED), ("sbatch", SHIFTED_SBATCH)):
            install = f"cat > {PLACE}/{name}; chmod 755 {PLACE}/{name}"
            program = text.format(file=FILE, sbatch=sbatch)
            cluster.does(LOGIN, "sh", "-ec", install, stdin=program)
        self._set(0)

    @staticmethod
    def environment() -> dict[str, str]:
        """Return the environment in which a process has this clock."""
        return {"PYTHONPATH": PLACE, "PATH": f"{PLACE}:{ROOT}/.venv/bin:{PATH}"}

    def begin(self, fault: Fault) -> None:
        """Set it ahead, or behind."""
        self._set(AHEAD_S[fault.target])

    def end(self, _: Fault) -> None:
        """Set it right."""
        self._set(0)

    def _set(self, seconds: int) -> None:
        write = f"echo {seconds:+d}s > {FILE}.new; mv {FILE}.new {FILE}"
        self._cluster.does(LOGIN, "sh", "-ec", write)
