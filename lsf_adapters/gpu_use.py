"""GPUs in use on LSF's hosts, from what bjobs tells of the jobs on them. Pure.

``lshosts -gpu`` says which GPUs a host has, ``gpu_num`` of ``bjobs -o`` how many a job uses.
Whether that is of each host or in all is not documented: on each of its hosts a job counts with all
of them. Where it is not told, none is left. Called by ``snapshot``. Sources: bjobs(1), bsub(1),
"-gpu", of LSF 10.1; documented, not tried.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

from lsf_adapters.hosts import Hardware, Host
from lsf_adapters.requests import JobRow


@dataclass(slots=True)
class GpuUse:
    """What the jobs use, by host."""

    _slots: Counter[str] = field(default_factory=Counter)  # of jobs that are listed
    _gpus: Counter[str] = field(default_factory=Counter)
    _untold: set[str] = field(default_factory=set)  # with a job that may use any number

    @classmethod
    def of(cls, rows: Iterable[JobRow]) -> Self:
        """Count the jobs of one poll."""
        use = cls()
        for row in rows:
            if row.holds_slots:
                use._add(row)
        return use

    def _add(self, row: JobRow) -> None:
        self._slots.update(row.hosts)
        for host in set(row.hosts):
            if row.asked is None or not row.asked.is_gpu_use_told:
                self._untold.add(host)
            else:
                self._gpus[host] += row.asked.gpus

    def left(self, host: Host, hardware: Hardware) -> int:
        """Return how many GPUs of a host no job uses; 0 also if that is not told.

        LSF tells of no job's GPUs where it does not know the host's own (``gpu_model``), and of no
        job that it does not list.
        """
        n_listed = self._slots[host.name]
        is_told = hardware.gpu_model != "" and host.name not in self._untold
        if not is_told or n_listed < host.running + host.suspended:
            return 0
        return max(0, hardware.gpus - self._gpus[host.name])
