"""Trainers whose agents the daemon cannot reach: they train on, and their machines stand still.

A machine would take silence for loss, and time limits for faults. What is heard of such a trainer
by agents that can still be reached is kept, for when the others are back. No I/O.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from bftrainer.actuate import stimuli
from bftrainer.actuate.generation import GenerationMachine
from bftrainer.actuate.group import NodeOffer, Worker, WorkerPhase, worker_on
from bftrainer.actuate.reported_workers import Believed
from bftrainer.elastic import protocol


@dataclass(slots=True, kw_only=True)
class Standing:
    """A trainer whose machine stands still."""

    pilots: set[str] = field(default_factory=set)  # that cannot be reached
    heard: list[stimuli.Stimulus] = field(default_factory=list)  # from the others, in order

    def holds(self, stimulus: stimuli.Stimulus) -> bool:
        """Whether the machine must not hear of it now.

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


def survivors(
    old: GenerationMachine,
    generation: int,
    believed: Sequence[Believed],
    offers: Mapping[str, NodeOffer],
    reported: Collection[str],
    now_s: float,
) -> tuple[list[Worker], dict[str, Sequence[protocol.Message]]]:
    """Return the workers to adopt into a new machine, and what each has said.

    Args:
        old: the machine that stood still.
        generation: the last that was complete.
        believed: what agents reported that are back.
        offers: of connected agents, by pilot.
        reported: pilots whose agents reported; the others were connected all the time.
        now_s: on the machine's clock.
    """
    workers = [worker_on(offers[b.pilot_id], b.worker_id, now_s) for b in believed]
    said: dict[str, Sequence[protocol.Message]] = {b.worker_id: b.said for b in believed}
    for worker in old.workers.values():
        if not worker.is_alive or worker.pilot_id not in offers or worker.pilot_id in reported:
            continue
        workers.append(worker)
        is_member = worker.phase is WorkerPhase.MEMBER and worker.worker_id in old.members
        said[worker.worker_id] = [_entered(old, generation)] if is_member else []
    return workers, said


def _entered(old: GenerationMachine, generation: int) -> protocol.Entered:
    return protocol.Entered(
        generation=generation,
        attempt=1,
        rank=0,
        size=len(old.members),
        step=old.step,
        epoch=old.epoch,
        samples=old.samples,
        pause_s=0.0,
        transfer_s=0.0,
    )
