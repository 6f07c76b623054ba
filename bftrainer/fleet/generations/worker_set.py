"""The workers on a trainer's nodes: starts them, gives them up, ends them. No I/O.

Planned nodes, workers' phases and the time come in; ``StartWorkerOn`` and ``Kill`` go out.
``generation`` builds on this and decides which workers train together.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from bftrainer.fleet.generations.failures import FailureCounts, Stall
from bftrainer.fleet.generations.members import (
    Forming,
    Instruction,
    NodeOffer,
    StartWorkerOn,
    Worker,
    WorkerFailed,
    failure_of,
    kill,
    worker_on,
)
from bftrainer.fleet.lifecycle import WorkerPhase

MOST_TIMEOUTS = 32.0  # of start_timeout_s, for a worker to start
KEPT_GONE = 200  # workers that are gone, in which a record or a user may be interested
LEAVE_PATIENCE_S = 60.0  # time for a worker to leave: a long step, a checkpoint


@dataclass(kw_only=True, eq=False)
class WorkerSet:
    """The workers of one trainer, and the nodes it may use; its fields are its whole state."""

    trainer_id: str
    n_max: int
    start_timeout_s: float
    incarnation: int
    log_directory: str = ""  # of the workers' logs
    leave_patience_s: float = LEAVE_PATIENCE_S
    workers: dict[str, Worker] = field(default_factory=dict)
    members: tuple[str, ...] = ()  # roster of the current generation
    forming: Forming | None = None
    is_parking: bool = False
    ends_by_s: float | None = None  # cancelled: when remaining workers are killed
    failures: FailureCounts = field(default_factory=FailureCounts)
    stall: Stall = field(default_factory=Stall)
    targets: dict[str, NodeOffer] = field(default_factory=dict)  # by node
    slow_start_s: float = 0.0  # the longest that a worker was given to start, in vain
    ADDED: ClassVar = frozenset({"slow_start_s"})
    started_workers: int = 0

    def nodes(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the nodes of its members, and of workers starting or warm."""
        members = [self.workers[w] for w in self.members if w in self.workers]
        joining = {WorkerPhase.STARTING, WorkerPhase.WARM}
        return (
            tuple(w.node for w in members if w.is_alive),
            tuple(w.node for w in self.workers.values() if w.phase in joining),
        )

    @property
    def is_settled(self) -> bool:
        """Return whether no worker is about to join or leave."""
        steady = {WorkerPhase.MEMBER, WorkerPhase.GONE}
        is_changing = self.forming is not None or self.is_parking
        return not is_changing and all(w.phase in steady for w in self.workers.values())

    @property
    def is_idle(self) -> bool:
        """True if time alone changes nothing: no nodes, no workers, and none is about to come."""
        has_time = bool(self.targets or self.members or self.forming or self.is_parking)
        return not has_time and self.ends_by_s is None and not self.has_workers

    @property
    def has_workers(self) -> bool:
        """Return whether a living worker exists, in whatever phase."""
        return any(worker.is_alive for worker in self.workers.values())

    def uses(self, pilot_id: str) -> bool:
        """Return whether it has, had or may start a worker on this pilot's node."""
        worked = any(w.pilot_id == pilot_id for w in self.workers.values())
        return worked or any(offer.pilot_id == pilot_id for offer in self.targets.values())

    @property
    def has_members(self) -> bool:
        """Return whether some worker may have a state to save."""
        return any(w.phase in {WorkerPhase.MEMBER, WorkerPhase.LEAVING} for w in self._live())

    def has_wound_up(self, now_s: float) -> bool:
        """Return whether it is cancelled and no worker is left, or its time is up."""
        return self.ends_by_s is not None and (not self._live() or now_s >= self.ends_by_s)

    def _match_workers_to_targets(self, now_s: float) -> list[Instruction]:
        """Start missing workers; kill joiners that are no longer planned or too slow."""
        out = self._kill_hung(now_s)
        patience_s, busy_nodes = self._start_patience_s, set()
        for worker in self.workers.values():
            if not worker.is_alive:
                continue
            idle_phase = worker.phase in {WorkerPhase.STARTING, WorkerPhase.WARM}
            in_roster = self.forming is not None and worker.worker_id in self.forming.roster
            if self._is_overdue(worker, now_s):
                out.append(kill(worker, "stays on", now_s))
                continue
            if idle_phase and not in_roster and worker.node not in self.targets:
                out.append(kill(worker, "no longer planned", now_s))
                continue
            waited_s = now_s - worker.started_s
            if worker.phase is WorkerPhase.STARTING and waited_s > patience_s and not in_roster:
                out += self._give_up(worker, waited_s, now_s)
                continue
            busy_nodes.add(worker.node)
        if self._is_finishing() or not self.failures.may_start(now_s):
            return out
        for node, offer in sorted(self.targets.items()):
            if node in busy_nodes or self.failures.is_cooling(node, now_s):
                continue
            if len(self._live()) < self.n_max + len(self._leavers()):
                out.append(self._start(offer, now_s))
        return out

    @property
    def _start_patience_s(self) -> float:
        """Time that a worker may take to start: twice what was too little before."""
        most_s = MOST_TIMEOUTS * self.start_timeout_s
        return max(self.start_timeout_s, min(2.0 * self.slow_start_s, most_s))

    def _give_up(self, worker: Worker, waited_s: float, now_s: float) -> list[Instruction]:
        """Kill a worker that is too slow to start; the next one has more time."""
        self.slow_start_s = max(self.slow_start_s, waited_s)
        cause = (
            f"It was not ready to train after {waited_s:.0f} s (start_timeout_s); the next one has"
            f" {self._start_patience_s:.0f} s."
        )
        return [kill(worker, "too slow to start", now_s), self._failed(worker, cause, now_s)]

    def _kill_hung(self, now_s: float) -> list[Instruction]:
        """Kill workers whose loop does not act on a commit: the others wait for them."""
        out: list[Instruction] = []
        for worker in [self.workers[w] for w in self.stall.hung(now_s)]:
            if worker.is_alive:
                out.append(kill(worker, "no progress", now_s))
                out.append(self._failed(worker, self.stall.cause, now_s))
        return out

    def _is_overdue(self, worker: Worker, now_s: float) -> bool:
        """Return whether a worker that must leave, or is in no generation any more, hangs."""
        is_left_over = worker.phase is WorkerPhase.MEMBER and (
            self.is_parking or (self.forming is None and worker.worker_id not in self.members)
        )
        if not is_left_over and worker.phase is not WorkerPhase.LEAVING:
            worker.leaving_since_s = None
            return False
        if worker.leaving_since_s is None:
            worker.leaving_since_s = now_s
        return now_s - worker.leaving_since_s > self.leave_patience_s

    def _start(self, offer: NodeOffer, now_s: float) -> StartWorkerOn:
        self._forget_gone()
        self.started_workers += 1
        worker_id = f"{self.trainer_id}-{self.incarnation}-{self.started_workers}"
        worker = self.workers[worker_id] = worker_on(offer, worker_id, now_s)
        worker.number = self.started_workers
        worker.log_path = f"{self.log_directory}/{worker_id}.log" if self.log_directory else ""
        return StartWorkerOn(
            pilot_id=offer.pilot_id, worker_id=worker_id, node=offer.node, address=offer.address
        )

    def _forget_gone(self) -> None:
        """Drop the oldest of very many workers that are gone."""
        needed = {*self.members, *(self.forming.roster if self.forming else ())}
        gone = [i for i, w in self.workers.items() if not w.is_alive and i not in needed]
        for worker_id in gone[:-KEPT_GONE]:
            del self.workers[worker_id]

    def _live(self) -> list[Worker]:
        return [w for w in self.workers.values() if w.is_alive]

    def _alive_members(self) -> list[str]:
        return [
            m
            for m in self.members
            if m in self.workers
            and self.workers[m].is_alive
            and self.workers[m].phase is not WorkerPhase.LEAVING
        ]

    def _leavers(self) -> list[str]:
        return [m for m in self._alive_members() if self.workers[m].node not in self.targets]

    def _is_finishing(self) -> bool:
        return any(w.is_finished for w in self.workers.values() if w.is_alive)

    def _failed(self, worker: Worker, cause: str, now_s: float) -> WorkerFailed:
        """Record that a worker failed, or was killed for its own fault."""
        self.stall.acted(worker.worker_id)
        counts = self.failures.note(worker.node, cause, worker.log_path, now_s, place=worker.place)
        return failure_of(worker, cause, counts=counts)
