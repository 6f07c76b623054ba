"""Restores a generation machine from agents' reports when a daemon starts.

Trainers went on without a daemon. The newest generation that any worker entered is the current
one, even if agents announced it themselves (docs/adr/0010). Where a change was half done, a new
generation is announced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bftrainer.elastic import protocol
from bftrainer.elastic.control import key_of
from bftrainer.fleet.generations.generation import GenerationMachine, mark_of
from bftrainer.fleet.generations.members import Parked, Regrouped, Worker
from bftrainer.fleet.generations.restart import RestartMachine
from bftrainer.fleet.lifecycle import WorkerPhase
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
    entered: dict[str, protocol.Entered] = {}
    interrupted = 0  # greatest generation that a member reported interrupted
    commits: dict[int, protocol.Commit] = {}
    for worker in workers:
        machine.workers[worker.worker_id] = worker
        for body in reports[worker.worker_id]:
            _apply(machine, worker, body)
            if isinstance(body, protocol.Entered):
                entered[worker.worker_id] = body
            elif isinstance(body, protocol.Interrupted):
                interrupted = max(interrupted, body.generation)
            elif isinstance(body, protocol.Commit):
                before = commits.get(body.generation)
                if before is None or key_of(body) > key_of(before):
                    commits[body.generation] = body
    if not entered:
        return None
    current = max(e.generation for e in entered.values())
    newest = max([current, *commits])
    machine.generation = max(machine.generation, newest)
    roster = commits[current].members if current in commits else ()
    machine.members = tuple(m.worker_id for m in roster) or tuple(sorted(entered))
    half_done = newest > current or any(
        m not in entered or entered[m].generation < current for m in machine.members
    )
    # Interruptions of older generations have been recovered from.
    machine.is_broken = half_done or interrupted >= current
    machine.size_before = len(machine.members)
    for worker in workers:  # others formed a generation without it: it waits for one for ever
        if worker.phase is WorkerPhase.MEMBER and worker.worker_id not in machine.members:
            worker.leaving_since_s = worker.started_s - 2.0 * machine.leave_patience_s
    by = commits[current].origin if current in commits else ""
    nodes = {m.worker_id: m.node for m in roster} or {w.worker_id: w.node for w in workers}
    return Regrouped(
        generation=current,
        attempt=max(e.attempt for e in entered.values() if e.generation == current),
        size_before=0,  # filled in by the caller
        size=len(machine.members),
        by=by,
        reason=BY_AGENTS if by else BY_DAEMON,
        step=machine.step,
        epoch=machine.epoch,
        samples=machine.samples,
        nodes=tuple(nodes[m] for m in machine.members),
        is_restart=isinstance(machine, RestartMachine),
    )


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
        machine.step = max(machine.step, body.step)
        machine.samples = max(machine.samples, body.samples)
        machine.epoch = max(machine.epoch, body.epoch)


def parked_meanwhile(record: TrainerRecord) -> Parked:
    """Return the event for a trainer without any member left."""
    return Parked(
        generation=record.last_generation,
        size_before=record.progress.size,
        is_saved=False,  # not known
        reason="no member was left when the daemon came back",
    )
