"""Trainers whose agents the daemon cannot reach, and nodes that cannot reach each other.

A machine would take silence for loss, and time limits for faults. Reports on such a trainer by
agents that can still be reached are kept until the others are back. No I/O.

The pairs of nodes are those of each trainer's machine (``fleet.generations.breakage``), on its
clock. Owned by ``trainers``.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from bftrainer.elastic import protocol
from bftrainer.fleet.generations import stimuli
from bftrainer.fleet.generations.generation import GenerationMachine
from bftrainer.fleet.generations.members import NodeOffer, Worker, worker_on
from bftrainer.fleet.lifecycle import WorkerPhase
from bftrainer.fleet.trainers.creation import Trainer
from bftrainer.fleet.trainers.reported_workers import Believed
from bftrainer.model.trainer import TrainerRecord


@dataclass(slots=True, kw_only=True)
class Standstill:
    """A trainer whose machine stands still."""

    pilots: set[str] = field(default_factory=set)  # that cannot be reached
    heard: list[stimuli.Stimulus] = field(default_factory=list)  # from the others, in order
    # By workers when it began to stand, if that was when the daemon started.
    said: Mapping[str, Sequence[protocol.Message]] = field(default_factory=dict)

    def holds(self, stimulus: stimuli.Stimulus) -> bool:
        """Return whether a stimulus must be kept from the machine for now.

        Of the others than workers' words the record says what is needed, or the next decision.
        """
        match stimulus:
            case stimuli.TrainerClosed() | stimuli.WorkerMessage(message=protocol.Progress()):
                return False
            case stimuli.WorkerMessage() | stimuli.WorkerEnded():
                self.heard.append(stimulus)
            case _:
                pass
        return True


def not_heard(record: TrainerRecord, away: Mapping[str, str], now_s: float) -> list[Worker]:
    """Return the workers that the journal has on pilots whose nodes are ``away``."""
    there = record.workers if record.progress.size else ()
    return [
        replace(
            worker_on(_unknown(away[pilot_id], pilot_id), worker_id, now_s),
            phase=WorkerPhase.MEMBER,
        )
        for worker_id, pilot_id in there
        if pilot_id in away
    ]


def put_in(
    machine: GenerationMachine, unheard: Sequence[Worker], offers: Mapping[str, NodeOffer]
) -> None:
    """Let a machine that stands still from the start have workers that were not heard.

    All keep their nodes until they are adopted.
    """
    known = [worker for worker in machine.crew.workers.values() if worker.is_alive]
    machine.crew.workers.update({worker.worker_id: worker for worker in unheard})
    machine.crew.members = tuple(
        dict.fromkeys([*machine.crew.members, *[w.worker_id for w in unheard]])
    )
    own = [_unknown(worker.node, worker.pilot_id) for worker in unheard]
    own += [offers[worker.pilot_id] for worker in known]
    machine.plan.targets = {offer.node: offer for offer in own}


def _unknown(node: str, pilot_id: str) -> NodeOffer:
    nowhere = {"address": "", "agent_endpoint": "", "agent_public_key": ""}
    return NodeOffer(node=node, pilot_id=pilot_id, **nowhere)


def survivors(
    old: GenerationMachine,
    standing: Standstill,
    generation: int,
    believed: Sequence[Believed],
    offers: Mapping[str, NodeOffer],
    reported: Collection[str],
    now_s: float,
) -> tuple[list[Worker], dict[str, Sequence[protocol.Message]]]:
    """Return the workers to adopt into a new machine, and what each has said.

    ``generation`` is the last that was complete; ``believed`` are those that agents reported that
    are back, on the pilots in ``reported``: the other agents were connected all the time.
    """
    workers = [worker_on(offers[b.pilot_id], b.worker_id, now_s) for b in believed]
    said: dict[str, Sequence[protocol.Message]] = {b.worker_id: b.said for b in believed}
    for worker in old.crew.workers.values():
        if not worker.is_alive or worker.pilot_id not in offers or worker.pilot_id in reported:
            continue
        workers.append(worker)
        is_member = worker.phase is WorkerPhase.MEMBER and worker.worker_id in old.crew.members
        usual = _said(old, generation) if is_member else []
        said[worker.worker_id] = standing.said.get(worker.worker_id, usual)
    return workers, said


def _said(old: GenerationMachine, generation: int) -> list[protocol.Message]:
    there = [old.crew.workers[m] for m in old.crew.members if m in old.crew.workers]
    members = tuple(worker.as_member(rank) for rank, worker in enumerate(there))
    commit = protocol.Commit(generation=generation, attempt=1, token="", members=members)
    entered = protocol.Entered(
        generation=generation,
        attempt=1,
        rank=0,
        size=len(old.crew.members),
        step=old.mark.step,
        epoch=old.mark.epoch,
        samples=old.mark.samples,
        pause_s=0.0,
        transfer_s=0.0,
    )
    return [commit, entered]


LOG = logging.getLogger("bftrainer.trainers")


class Cuts:
    """The nodes that each trainer must do without, as last logged."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[str, ...]] = {}

    def have_changed(self, trainers: Iterable[Trainer], now_s: float) -> bool:
        """Return whether the nodes that some trainer must do without have changed; log it."""
        told = {t.record.trainer_id: tuple(barred(t, now_s)) for t in trainers}
        told = {trainer_id: nodes for trainer_id, nodes in told.items() if nodes}
        before, self._told = self._told, told
        for trainer in trainers:
            trainer_id = trainer.record.trainer_id
            if told.get(trainer_id) == before.get(trainer_id):
                continue
            if why := sentence(trainer, now_s):
                LOG.warning("trainer %s: %s", trainer_id, why)
            else:
                LOG.info("trainer %s: its nodes can reach each other again", trainer_id)
        return before != told


def barred(trainer: Trainer, now_s: float) -> Mapping[str, float]:
    """Return the nodes that a trainer must not get, and since when, the machine's clock."""
    machine = trainer.machine
    if not machine.apart.pairs:
        return {}
    return machine.apart.barred(now_s, set(machine.kept_order()) - machine.unreached(now_s))


def all_barred(
    trainers: Iterable[Trainer], among: Container[str] | None, now_s: float, ahead_s: float
) -> dict[str, Mapping[str, float]]:
    """Return them by trainer, for a decision about ``among``; times ``ahead_s`` later."""
    found: dict[str, Mapping[str, float]] = {}
    for trainer in trainers:
        if among is None or trainer.record.trainer_id in among:
            since_s = {node: s + ahead_s for node, s in barred(trainer, now_s).items()}
            if since_s:
                found[trainer.record.trainer_id] = since_s
    return found


def sentence(trainer: Trainer, now_s: float) -> str:
    """Name the pairs of a trainer, and which nodes it does without; "": there are none."""
    return trainer.machine.apart.sentence(now_s, barred(trainer, now_s))
