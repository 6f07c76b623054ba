"""Generations of a trainer that is resized by restart: all workers stop, then all start anew.

Stimuli and instructions are those of ``GenerationMachine``, but no process survives a change of
size. A planned change, or the loss of a member, stops every member (``Commit`` without members:
write a checkpoint and end; with ``abandon``: end at once, because the state of a broken group is
not worth saving). When the last process is gone, the next generation forms from new workers, so
nothing of the previous one can still be running. Created by ``fleet.trainers.creation``. No I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bftrainer.fleet.generations.generation import GenerationMachine, since_when_warm
from bftrainer.fleet.generations.members import (
    Instruction,
    Parked,
    Rescaled,
    Worker,
)
from bftrainer.fleet.generations.state import LOST, START
from bftrainer.fleet.lifecycle import WorkerPhase
from bftrainer.ground import protocol

KILL_MARGIN_S = 10.0  # added to the worker's own grace, for its last messages
FRESH_START_S = 5.0  # wait for new workers on the former nodes
MAX_WINDOW_S = 30.0  # longest wait of a grow for further joiners


@dataclass(slots=True, kw_only=True)
class Stopped:
    """A stop, under way or complete, until the next generation runs."""

    since_s: float  # when all were asked to stop or the last was lost
    size_before: int
    reason: str
    gone_s: float = 0.0  # when the last process had ended
    is_saved: bool = False
    unsaved: str = ""


@dataclass(kw_only=True, eq=False)
class RestartMachine(GenerationMachine):
    """State machine of one trainer whose programs cannot change size."""

    stopped: Stopped | None = None
    unsaved: str = ""
    last_pause_s: float = 0.0

    @property
    def is_idle(self) -> bool:
        """True if time alone changes nothing; a stopped machine waits to be started again."""
        return super().is_idle and self.stopped is None

    def _on_message(
        self, worker_id: str, body: protocol.Message, now_s: float
    ) -> list[Instruction]:
        """``Interrupted`` while stopping means that no checkpoint was written."""
        if isinstance(body, protocol.Interrupted) and self.course.is_parking:
            self.unsaved = body.reason
        return super()._on_message(worker_id, body, now_s)

    # ---- formation -----------------------------------------------------------------

    def _on_entered(
        self, worker: Worker, body: protocol.Entered, now_s: float
    ) -> list[Instruction]:
        if not body.step and not body.samples:  # it has not reported its progress
            mark = self.mark
            body = replace(body, step=mark.step, epoch=mark.epoch, samples=mark.samples)
        out = super()._on_entered(worker, body, now_s)
        for place, instruction in enumerate(out):
            if isinstance(instruction, Rescaled):
                out[place] = self._restarted(instruction, now_s)
        return out

    def _restarted(self, done: Rescaled, now_s: float) -> Rescaled:
        stopped, self.stopped = self.stopped, None
        if stopped is None:
            return replace(done, is_restart=True)
        self.last_pause_s = now_s - stopped.since_s
        return replace(
            done,
            is_restart=True,
            size_before=stopped.size_before,
            reason=stopped.reason,
            pause_s=self.last_pause_s,
            stop_s=stopped.gone_s - stopped.since_s,
            unsaved=stopped.unsaved,
        )

    def _may_go_on(self, worker: Worker) -> bool:
        """Return whether it is a program of the last generation: they need not say anything."""
        return worker.worker_id in (*self.crew.members, *self.forming_roster)

    def _maybe_form(self, now_s: float) -> list[Instruction]:
        members = self.crew.members
        running = [worker for worker in self.crew.member_workers() if worker.is_alive]
        if len(running) < len(members) and not self.course.is_parking:
            self.trouble.is_broken = True
        if members and not running:
            return self._all_stopped(now_s)
        if self.course.is_parking or self.crew.is_finishing:
            return []
        if members:
            return self._maybe_stop(running, now_s)
        if self.stopped is not None and self._are_too_few():
            return self._parked(self.stopped)
        return self._maybe_start(now_s)

    def _maybe_stop(self, running: Sequence[Worker], now_s: float) -> list[Instruction]:
        members = self.crew.members
        n_staying = sum(worker.node in self.plan.targets for worker in running)
        roster = self.size_range.cut_down([*members, *self._joiners(now_s)])
        is_growing = len(roster) > len(members)
        if not (self.trouble.is_broken or n_staying < len(members) or is_growing):
            return []
        self.stopped = Stopped(since_s=now_s, size_before=len(members), reason=self.trouble.reason)
        self.unsaved = ""
        return self._park(now_s)

    def _all_stopped(self, now_s: float) -> list[Instruction]:
        stopped = self.stopped
        if stopped is None:  # no member was left to ask
            stopped = Stopped(since_s=now_s, size_before=len(self.crew.members), reason=LOST)
        stopped.gone_s = now_s
        stopped.is_saved = self.checkpoints.is_saved and not self.unsaved
        stopped.unsaved = self.unsaved
        self.stopped = stopped
        self.checkpoints.is_saved = False
        self._disband()
        if self._are_too_few():
            return self._parked(stopped)
        return self._match_workers_to_targets(now_s)

    def _are_too_few(self) -> bool:
        return not self.size_range.fits_within(len(self.plan.targets))

    def _parked(self, stopped: Stopped) -> list[Instruction]:
        self.stopped = None
        return [
            Parked(
                generation=self.numbers.generation,
                size_before=stopped.size_before,
                is_saved=stopped.is_saved,
                reason=stopped.reason,
            )
        ]

    def _maybe_start(self, now_s: float) -> list[Instruction]:
        if not self.failures.may_start(now_s):  # back-off: all nodes get new workers after it
            return []
        roster = self.size_range.cut_down(self._joiners(now_s))
        if not self.size_range.is_enough(len(roster)):
            return []
        return self._prepare(roster, self.stopped.reason if self.stopped else START, now_s)

    def _joiners(self, now_s: float) -> list[str]:
        """Warm workers by node, after waiting for further ones.

        A grow restarts everything, so it waits for others about as long as a restart takes. A start
        waits for the new workers on the nodes the trainer had before.
        """
        candidates: dict[WorkerPhase, list[Worker]] = {}
        for worker in self.crew.alive():
            is_member = worker.worker_id in self.crew.members
            if worker.node in self.plan.targets and not is_member:
                candidates.setdefault(worker.phase, []).append(worker)
        warm = candidates.get(WorkerPhase.WARM, [])
        if not warm:
            return []
        first = min(warm, key=since_when_warm)
        is_early, waited_s = False, now_s - (first.warm_since_s or 0.0)
        if self.crew.members:
            window_s = max(self.patience.join_window_s, min(MAX_WINDOW_S, self.last_pause_s))
            is_early = waited_s < window_s
        elif WorkerPhase.STARTING in candidates:
            if self.stopped is not None:
                waited_s = min(waited_s, now_s - self.stopped.gone_s)
            is_early = waited_s < max(self.patience.join_window_s, FRESH_START_S)
        if is_early:
            return []
        warm.sort(key=_by_node)
        return [worker.worker_id for worker in warm]


def _by_node(worker: Worker) -> tuple[str, str]:
    return worker.node, worker.worker_id
