"""Generations of a trainer that is resized by restart: all workers stop, then all start anew.

Stimuli and instructions are those of ``GenerationMachine``, but no process survives a change of
size. A planned change, or the loss of a member, stops every member (``Commit`` without members:
write a checkpoint and end; with ``abandon``: end at once, because the state of a broken group is
not worth saving). When the last process is gone, the next generation forms from new workers, so
nothing of the previous one can still be running. Created by ``fleet.trainers.creation``. No I/O.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from bftrainer.elastic import protocol
from bftrainer.fleet.generations.generation import LOST, GenerationMachine
from bftrainer.fleet.generations.members import (
    Instruction,
    Parked,
    Rescaled,
    Worker,
)
from bftrainer.fleet.lifecycle import WorkerPhase
from milp.problem import largest_size

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
        if isinstance(body, protocol.Interrupted) and self.is_parking:
            self.unsaved = body.reason
        return super()._on_message(worker_id, body, now_s)

    # ---- formation -----------------------------------------------------------------

    def _on_entered(
        self, worker: Worker, body: protocol.Entered, now_s: float
    ) -> list[Instruction]:
        if not body.step and not body.samples:  # it has not reported its progress
            body = replace(body, step=self.step, epoch=self.epoch, samples=self.samples)
        out = super()._on_entered(worker, body, now_s)
        return [self._restarted(one, now_s) if isinstance(one, Rescaled) else one for one in out]

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
        roster = self.forming.roster if self.forming else ()
        return worker.worker_id in (*self.members, *roster)

    def _maybe_form(self, now_s: float) -> list[Instruction]:
        running = [m for m in self.members if m in self.workers and self.workers[m].is_alive]
        if len(running) < len(self.members) and not self.is_parking:
            self.is_broken = True
        if self.members and not running:
            return self._all_stopped(now_s)
        if self.is_parking or self._is_finishing():
            return []
        if self.members:
            return self._maybe_stop(running, now_s)
        if self.stopped is not None and self._are_too_few():
            return self._parked(self.stopped)
        return self._maybe_start(now_s)

    def _maybe_stop(self, running: list[str], now_s: float) -> list[Instruction]:
        kept = [m for m in running if self.workers[m].node in self.targets]
        is_growing = len(self._cut_down([*self.members, *self._joiners(now_s)])) > len(self.members)
        if not (self.is_broken or len(kept) < len(self.members) or is_growing):
            return []
        self.stopped = Stopped(
            since_s=now_s,
            size_before=len(self.members),
            reason=self.cut or LOST if self.is_broken else "planned",
        )
        self.unsaved = ""
        return self._park(now_s)

    def _all_stopped(self, now_s: float) -> list[Instruction]:
        stopped = self.stopped
        if stopped is None:  # no member was left to ask
            stopped = Stopped(since_s=now_s, size_before=len(self.members), reason=LOST)
        stopped.gone_s = now_s
        stopped.is_saved = self.is_saved and not self.unsaved
        stopped.unsaved = self.unsaved
        self.stopped = stopped
        self.members, self.size_before = (), 0
        self.is_parking = self.is_saved = self.is_broken = False
        self.interrupted_s, self.cut, self.passed_over = None, "", ""
        if self._are_too_few():
            return self._parked(stopped)
        return self._match_workers_to_targets(now_s)

    def _are_too_few(self) -> bool:
        return not largest_size(len(self.targets), self.n_min, self.n_max, self.sizes)

    def _parked(self, stopped: Stopped) -> list[Instruction]:
        self.stopped = None
        return [
            Parked(
                generation=self.generation,
                size_before=stopped.size_before,
                is_saved=stopped.is_saved,
                reason=stopped.reason,
            )
        ]

    def _maybe_start(self, now_s: float) -> list[Instruction]:
        if not self.failures.may_start(now_s):  # back-off: all nodes get new workers after it
            return []
        roster = self._cut_down(self._joiners(now_s))
        if len(roster) < max(1, self.n_min):
            return []
        return self._prepare(roster, self.stopped.reason if self.stopped else "start", now_s)

    def _joiners(self, now_s: float) -> list[str]:
        """Warm workers by node, after waiting for further ones.

        A grow restarts everything, so it waits for others about as long as a restart takes. A start
        waits for the new workers on the nodes the trainer had before.
        """
        free = [
            w for w in self._live() if w.node in self.targets and w.worker_id not in self.members
        ]
        warm = [w for w in free if w.phase is WorkerPhase.WARM]
        if not warm:
            return []
        first_s = min(w.warm_since_s or 0.0 for w in warm)
        if self.members:
            window_s = max(self.join_window_s, min(MAX_WINDOW_S, self.last_pause_s))
            if now_s - first_s < window_s:
                return []
        elif any(w.phase is WorkerPhase.STARTING for w in free):
            since_s = max(first_s, self.stopped.gone_s if self.stopped else 0.0)
            if now_s - since_s < max(self.join_window_s, FRESH_START_S):
                return []
        return [w.worker_id for w in sorted(warm, key=lambda w: (w.node, w.worker_id))]
