"""Trainers whose agents the daemon cannot reach, and nodes that cannot reach each other.

A machine would take silence for loss, and time limits for faults. Reports on such a trainer by
agents that can still be reached are kept until the others are back. No I/O.

The pairs of nodes are those of each trainer's machine (``fleet.generations.breakage``), on its
clock. Owned by ``trainers``.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from bftrainer.fleet.generations import stimuli
from bftrainer.fleet.generations.generation import GenerationMachine
from bftrainer.fleet.generations.members import NodeOffer, Worker, worker_on
from bftrainer.fleet.lifecycle import WorkerPhase
from bftrainer.fleet.trainers.creation import Trainer
from bftrainer.fleet.trainers.reported_workers import Believed
from bftrainer.ground import protocol
from bftrainer.model.trainer import TrainerRecord

LOG = logging.getLogger("bftrainer.trainers")


@dataclass(slots=True, kw_only=True)
class Standstill:
    """A trainer whose machine stands still."""

    pilots: set[str] = field(default_factory=set)  # that cannot be reached
    heard: list[stimuli.Stimulus] = field(default_factory=list)  # from the others, in order
    # By workers when it began to stand, if that was when the daemon started.
    messages: Mapping[str, Sequence[protocol.Message]] = field(default_factory=dict)

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


class Heirs(NamedTuple):
    """The workers that a new machine adopts."""

    workers: list[Worker]
    messages: dict[str, Sequence[protocol.Message]]  # of each worker


def not_heard(record: TrainerRecord, away: Mapping[str, str], now_s: float) -> list[Worker]:
    """Return the workers that the journal has on pilots whose nodes are ``away``."""
    workers: list[Worker] = []
    if not record.progress.size:
        return workers
    for worker_id, pilot_id in record.workers:
        if pilot_id in away:
            worker = worker_on(_unknown(away[pilot_id], pilot_id), worker_id, now_s)
            workers.append(replace(worker, phase=WorkerPhase.MEMBER))
    return workers


def put_in(
    machine: GenerationMachine, unheard: Sequence[Worker], offers: Mapping[str, NodeOffer]
) -> None:
    """Let a machine that stands still from the start have workers that were not heard.

    All keep their nodes until they are adopted.
    """
    crew = machine.crew
    nodes = [_unknown(worker.node, worker.pilot_id) for worker in unheard]
    nodes += [offers[worker.pilot_id] for worker in crew.alive()]
    for worker in unheard:
        crew.workers[worker.worker_id] = worker
        if worker.worker_id not in crew.members:
            crew.members += (worker.worker_id,)
    machine.plan.give(nodes, machine.plan.staying)


def _unknown(node: str, pilot_id: str) -> NodeOffer:
    nowhere = {"address": "", "agent_endpoint": "", "agent_public_key": ""}
    return NodeOffer(node=node, pilot_id=pilot_id, **nowhere)


def reported_heirs(
    believed: Sequence[Believed], offers: Mapping[str, NodeOffer], now_s: float
) -> Heirs:
    """Return the workers that agents reported, as far as they are believed."""
    heirs = Heirs([], {})
    for worker in believed:
        heirs.workers.append(worker_on(offers[worker.pilot_id], worker.worker_id, now_s))
        heirs.messages[worker.worker_id] = worker.messages
    return heirs


def with_survivors(
    heirs: Heirs,
    *,
    machine: GenerationMachine,
    standing: Standstill,
    generation: int,
    present: AbstractSet[str],
) -> Heirs:
    """Return the heirs with those workers of a machine that stood still that live.

    ``generation`` is the last that was complete; ``present``: pilots whose agents were connected
    all the time.
    """
    workers, messages = [*heirs.workers], {**heirs.messages}
    for worker in machine.crew.alive():
        if worker.pilot_id not in present:
            continue
        workers.append(worker)
        usual: Sequence[protocol.Message] = []
        if worker.phase is WorkerPhase.MEMBER and worker.worker_id in machine.crew.members:
            usual = _usual_messages(machine, generation)
        messages[worker.worker_id] = standing.messages.get(worker.worker_id, usual)
    return Heirs(workers, messages)


def former_targets(
    machine: GenerationMachine, offers: Mapping[str, NodeOffer]
) -> stimuli.TargetsSet:
    """Return the targets of a machine that stood still, as far as their agents are connected."""
    plan, nodes = machine.plan, list[NodeOffer]()
    for former in plan.targets.values():
        offer = offers.get(former.pilot_id)
        if offer is not None:
            nodes.append(offer)
    return stimuli.TargetsSet(offers=tuple(nodes), staying=plan.staying, batches=plan.batches)


def _usual_messages(machine: GenerationMachine, generation: int) -> list[protocol.Message]:
    """Return what a member of a complete generation has reported."""
    workers = machine.crew.member_workers()
    members = tuple(worker.as_member(rank) for rank, worker in enumerate(workers))
    commit = protocol.Commit(generation=generation, attempt=1, token="", members=members)
    entered = protocol.Entered(
        generation=generation,
        attempt=1,
        rank=0,
        size=len(machine.crew.members),
        step=machine.mark.step,
        epoch=machine.mark.epoch,
        samples=machine.mark.samples,
        pause_s=0.0,
        transfer_s=0.0,
    )
    return [commit, entered]


class Cuts:
    """The nodes that each trainer must do without, as last logged."""

    def __init__(self) -> None:
        self._barred: dict[str, tuple[str, ...]] = {}  # by trainer

    def have_changed(self, trainers: Iterable[Trainer], now_s: float) -> bool:
        """Return whether the nodes that some trainer must do without have changed; log it."""
        before, self._barred = self._barred, {}
        for trainer in trainers:
            trainer_id = trainer.record.trainer_id
            if not trainer.machine.apart.pairs and trainer_id not in before:
                continue
            nodes = tuple(barred(trainer, now_s))
            if nodes:
                self._barred[trainer_id] = nodes
            if nodes == before.get(trainer_id, ()):
                continue
            if why := sentence(trainer, now_s):
                LOG.warning("trainer %s: %s", trainer_id, why)
            else:
                LOG.info("trainer %s: its nodes can reach each other again", trainer_id)
        return before != self._barred


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
    barred_since_s: dict[str, Mapping[str, float]] = {}
    for trainer in trainers:
        if not trainer.machine.apart.pairs:
            continue
        if among is None or trainer.record.trainer_id in among:
            since_s = {node: s + ahead_s for node, s in barred(trainer, now_s).items()}
            if since_s:
                barred_since_s[trainer.record.trainer_id] = since_s
    return barred_since_s


def sentence(trainer: Trainer, now_s: float) -> str:
    """Name the pairs of a trainer, and which nodes it does without; "": there are none."""
    return trainer.machine.apart.sentence(now_s, barred(trainer, now_s))
