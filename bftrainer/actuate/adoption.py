"""A daemon comes back: what agents report → the generation machine's state.

Trainers went on without us. The newest generation some worker has entered is the
current one; where anything was half done, a fresh generation is announced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bftrainer.actuate.generation import GenerationMachine
from bftrainer.actuate.group import Worker, WorkerPhase
from bftrainer.elastic import protocol


def adopt(
    machine: GenerationMachine,
    workers: Sequence[Worker],
    reports: Mapping[str, Sequence[protocol.Message]],
) -> None:
    """Take over workers an earlier incarnation started, before any ``set_targets``.

    Args:
        machine: fresh, of this incarnation.
        workers: all workers of this trainer that connected agents reported.
        reports: per worker id the last ``Commit`` passed to it and the newest body of
            each type it sent.
    """
    entered: dict[str, protocol.Entered] = {}
    interrupted = 0  # greatest generation of which a member said so
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
                commits[body.generation] = body
    if not entered:
        return
    current = max(e.generation for e in entered.values())
    newest = max([current, *commits])
    machine.generation = max(machine.generation, newest)
    roster = commits[current].members if current in commits else ()
    machine.members = tuple(m.worker_id for m in roster) or tuple(sorted(entered))
    half_done = newest > current or any(
        m not in entered or entered[m].generation < current for m in machine.members
    )
    # An interruption of an older generation has been recovered from.
    machine.is_broken = half_done or interrupted >= current
    machine.size_before = len(machine.members)


def _apply(machine: GenerationMachine, worker: Worker, body: protocol.Message) -> None:
    match body:
        case protocol.Warm():
            if worker.phase is WorkerPhase.STARTING:
                worker.phase, worker.warm_since_s = WorkerPhase.WARM, worker.started_s
        case protocol.Entered():
            worker.phase = WorkerPhase.MEMBER
            worker.first_generation = worker.first_generation or body.generation
        case protocol.Finished():
            worker.is_finished = True
        case protocol.Left():
            worker.phase = WorkerPhase.LEAVING
        case _:
            pass
    if isinstance(body, protocol.Entered | protocol.Progress):
        machine.step = max(machine.step, body.step)
        machine.samples = max(machine.samples, body.samples)
        machine.epoch = max(machine.epoch, body.epoch)
