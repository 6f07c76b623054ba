"""The simulated machine as the daemon's batch system, and a journal that keeps nothing.

With these two the daemon's own book of pilots works in the time of the machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from bftrainer.batch.batch_system import BatchSystem, PilotObservation, PilotRequest
from bftrainer.batch.commands import SHORTEST_LIMIT_S
from bftrainer.journal.projection import PilotRecord
from bftrainer.lab.site.looks import MachineLooks, job_id_of, node_number, pilot_id_of
from bftrainer.lab.site.machine import Machine, Preemptable
from bftrainer.lab.site.sharing import Share
from bftrainer.model.cluster import EndedBy, Presence, Snapshot
from bftrainer.model.errors import BatchSystemError
from bftrainer.model.parts import NodePart
from slurm_plugins.launcher import PilotLauncher

MINUTE_S = 60.0
_FAULT, _SHORT, *_ = PilotLauncher.codes


class SimulatedSlurm(BatchSystem):
    """A machine as a batch system that answers and obeys at once: the caller adds the time."""

    name = "simulated-slurm"
    idle_confirmations = 1
    lends_parts = True

    def __init__(self, machine: Machine, looks: MachineLooks) -> None:
        self._machine, self._looks = machine, looks
        self.cycle_s = machine.settings.bf_interval_s
        self.cycle: tuple[float, float] | None = None  # the last whole one, as sdiag tells
        self._counts = Counter[str]()
        self._ended_by: dict[str, EndedBy] = {}  # by pilot

    def snapshot(self, *, wants_cycle: bool = True) -> Snapshot:
        """Return what a look shows now."""
        del wants_cycle  # it costs nothing here
        self._counts["look"] += 1
        return self._looks.look(self.cycle)

    def request_counts(self) -> Mapping[str, int]:
        """Return the number of looks and orders so far."""
        return self._counts

    def launch_pilot(self, request: PilotRequest) -> str:
        """Submit a pilot; its limit is in whole minutes, as Slurm has it.

        Raises:
            BatchSystemError: as of Slurm's adapter, its limit is shorter than the shortest.
        """
        if request.time_limit_s < SHORTEST_LIMIT_S:
            cause = f"Slurm has no job of {request.time_limit_s:.0f} s."
            raise BatchSystemError(_SHORT, cause, "Claim nodes for longer.")
        share: Share | None = None
        if request.part is not None:
            share = share_of(request.part)
        mine = Preemptable(
            name=request.pilot_id,
            limit_s=request.time_limit_s // MINUTE_S * MINUTE_S,
            node=1 << node_number(request.node),
            share=share,
        )
        self._counts["submit"] += 1
        self._machine.submit_preemptable(mine)
        return job_id_of(request.pilot_id)

    def cancel_pilots(self, job_ids: Sequence[str], *, force: bool = False) -> None:
        """Cancel pilots; those that are gone are no error."""
        del force  # nobody here takes a while to leave
        self._counts["cancel"] += 1
        for job_id in job_ids:
            mine = self._machine.preemptable.get(pilot_id_of(job_id))
            if mine is not None:
                self._machine.cancel_preemptable(mine)

    def pilot_states(self, job_ids: Sequence[str]) -> Mapping[str, PilotObservation]:
        """Return whether each is in the queue, and how those ended that are not."""
        self._counts["state"] += 1
        states: dict[str, PilotObservation] = {}
        for job_id in job_ids:
            pilot_id = pilot_id_of(job_id)
            if pilot_id in self._machine.preemptable:
                states[job_id] = PilotObservation(presence=Presence.PRESENT)
                continue
            ended_by = self._ended_by.get(pilot_id, EndedBy.UNKNOWN)
            states[job_id] = PilotObservation(presence=Presence.ABSENT, ended_by=ended_by)
        return states

    def has_ended(self, mine: Preemptable) -> None:
        """Keep how a pilot has ended at this moment."""
        ended_by = EndedBy.CANCELLED
        if mine.is_preempted:
            ended_by = EndedBy.PREEMPTED
        elif mine.start_s is not None and self._machine.now_s >= mine.start_s + mine.limit_s:
            ended_by = EndedBy.TIME_LIMIT
        self._ended_by[mine.name] = ended_by


class NoJournal:
    """A journal for one run, after which nobody asks what it was told."""

    def pilots(self, *, active_only: bool = False) -> Sequence[PilotRecord]:
        """Return the pilots of an earlier daemon: there was none."""
        del active_only
        return ()

    def append(self, kind: str, payload: object, *, pilots: Sequence[PilotRecord] = ()) -> None:
        """Write nothing."""

    def note(self, kind: str, payload: object, *, pilots: Sequence[PilotRecord] = ()) -> None:
        """Write nothing."""


def share_of(part: NodePart) -> Share:
    """Return what a pilot with this part asks of its node."""
    _, _, gpu_type = part.gpu_type.partition(":")
    return Share(cpus=part.cores, memory_mb=part.memory_mb, gpus=part.gpus, gpu_type=gpu_type)
