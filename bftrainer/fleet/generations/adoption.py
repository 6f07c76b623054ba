"""Restores a generation machine from agents' reports when a daemon starts.

Trainers went on without a daemon. The newest generation that any worker entered is the current
one, even if agents announced it themselves (docs/adr/0010). Where a change was half done, a new
generation is announced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bftrainer.elastic.process.control import key_of
from bftrainer.fleet.generations.generation import GenerationMachine, mark_of
from bftrainer.fleet.generations.members import Parked, Regrouped, Worker
from bftrainer.fleet.generations.restart import RestartMachine
from bftrainer.fleet.lifecycle import WorkerPhase
from bftrainer.ground import protocol
from bftrainer.model.trainer import TrainerRecord

BY_AGENTS = "members were lost while no daemon was there"
BY_DAEMON = "it was announced, and the daemon ended before it was journalled as complete"


def adopt(
    machine: GenerationMachine,
    workers: Sequence[Worker],
    reports: Mapping[str, Sequence[protocol.Message]],
) -> Regrouped | None:
    """Take over workers that an earlier incarnation started, into a new machine without targets.

    ``reports``: of each worker the last ``Commit`` passed to it and the newest body of each type
    that it sent. Returns the current generation, for the journal, which may lack it.
    """
    reported = _Reported()
    for worker in workers:
        machine.crew.workers[worker.worker_id] = worker
        for body in reports[worker.worker_id]:
            _apply(machine, worker, body)
            reported.note(worker.worker_id, body)
    if not reported.entered:
        return None
    current = reported.current
    machine.numbers.generation = max(machine.numbers.generation, current, *reported.commits)
    pilot_id, roster = "", tuple[protocol.Member, ...]()
    if current in reported.commits:
        pilot_id, roster = reported.commits[current].origin, reported.commits[current].members
    members, node_of = tuple(sorted(reported.entered)), dict[str, str]()
    if roster:
        members = tuple(member.worker_id for member in roster)
    for member in roster or workers:
        node_of[member.worker_id] = member.node
    machine.crew.members, machine.crew.size_before = members, len(members)
    machine.trouble.is_broken = reported.is_broken(members)
    for worker in workers:  # others formed a generation without it: it waits for one for ever
        if worker.phase is WorkerPhase.MEMBER and worker.worker_id not in members:
            worker.leaving_since_s = worker.started_s - 2.0 * machine.patience.leave_patience_s
    return Regrouped(
        generation=current,
        attempt=reported.attempt,
        size_before=0,  # filled in by the caller
        size=len(members),
        by=pilot_id,
        reason=BY_AGENTS if pilot_id else BY_DAEMON,
        step=machine.mark.step,
        epoch=machine.mark.epoch,
        samples=machine.mark.samples,
        nodes=tuple(node_of[member] for member in members),
        is_restart=isinstance(machine, RestartMachine),
    )


@dataclass(slots=True, kw_only=True)
class _Reported:
    """What all workers together report."""

    entered: dict[str, protocol.Entered] = field(default_factory=dict)  # by worker
    commits: dict[int, protocol.Commit] = field(default_factory=dict)  # by generation
    interrupted_generation: int = 0  # the greatest that a member reported interrupted

    def note(self, worker_id: str, body: protocol.Message) -> None:
        """Note a message from or to a worker."""
        if isinstance(body, protocol.Entered):
            self.entered[worker_id] = body
        elif isinstance(body, protocol.Interrupted):
            self.interrupted_generation = max(self.interrupted_generation, body.generation)
        elif isinstance(body, protocol.Commit):
            before = self.commits.get(body.generation)
            if before is None or key_of(body) > key_of(before):
                self.commits[body.generation] = body

    @property
    def current(self) -> int:
        """The newest generation that some worker entered."""
        return max(body.generation for body in self.entered.values())

    @property
    def attempt(self) -> int:
        """The last attempt at that generation."""
        current, attempt = self.current, 0
        for body in self.entered.values():
            if body.generation == current:
                attempt = max(attempt, body.attempt)
        return attempt

    def is_broken(self, members: Sequence[str]) -> bool:
        """Return whether the current generation of these members is to be replaced.

        Another one was announced, a member has not entered it, or it was interrupted;
        interruptions of older generations have been recovered from.
        """
        current = self.current
        if max([current, *self.commits]) > current or self.interrupted_generation >= current:
            return True
        if not self.entered.keys() >= set(members):
            return True
        return any(self.entered[member].generation < current for member in members)


def _apply(machine: GenerationMachine, worker: Worker, body: protocol.Message) -> None:
    match body:
        case protocol.Warm() if worker.becomes(WorkerPhase.WARM, worker.started_s, "adopted"):
            worker.warm_since_s = worker.started_s
        case protocol.Entered():
            worker.becomes(WorkerPhase.MEMBER, worker.started_s, "adopted")
            worker.first_generation = worker.first_generation or body.generation
        case protocol.Finished():
            worker.is_finished = True
        case protocol.Left():
            worker.becomes(WorkerPhase.LEAVING, worker.started_s, "adopted")
        case _:
            pass
    if isinstance(body, protocol.Progress):
        machine.failures.progressed(mark_of(body), (worker.node,))
    if isinstance(body, protocol.Entered | protocol.Progress):
        machine.mark = machine.mark.joined(mark_of(body))


def parked_meanwhile(record: TrainerRecord) -> Parked:
    """Return the event for a trainer without any member left."""
    return Parked(
        generation=record.last_generation,
        size_before=record.progress.size,
        is_saved=False,  # not known
        reason="no member was left when the daemon came back",
    )
