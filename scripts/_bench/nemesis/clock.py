"""A wall clock of the login host's Python processes that is set while they run.

Hosts of one machine share its clock. The daemon and its user's verbs read this one, whose file is
on the disk of the login host; agents, workers and Slurm keep the machine's.
"""

from __future__ import annotations

from typing import Final

from _bench.nemesis.schedule import Fault
from tests.support.clocks import SHIFTED
from tests.support.hosts import Cluster
from tests.support.hosts.plan import LOGIN

PLACE: Final = "/var/lib/nemesis"
FILE: Final = f"{PLACE}/ahead"
AHEAD_S: Final = {"ahead": 3600, "behind": -3600}


class Clock:
    """The clock of one cluster's login host."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        install = f"install -d {PLACE}; cat > {PLACE}/sitecustomize.py"
        cluster.does(LOGIN, "sh", "-ec", install, stdin=SHIFTED.format(file=FILE))
        self._set(0)

    @staticmethod
    def environment() -> dict[str, str]:
        """Return the environment in which a process has this clock."""
        return {"PYTHONPATH": PLACE}

    def begin(self, fault: Fault) -> None:
        """Set it ahead, or behind."""
        self._set(AHEAD_S[fault.target])

    def end(self, _: Fault) -> None:
        """Set it right."""
        self._set(0)

    def _set(self, seconds: int) -> None:
        write = f"echo {seconds:+d}s > {FILE}.new; mv {FILE}.new {FILE}"
        self._cluster.does(LOGIN, "sh", "-ec", write)
