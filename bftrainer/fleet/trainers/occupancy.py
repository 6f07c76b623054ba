"""Which nodes train, which are occupied, which trainers keep theirs: a decision's view. No I/O.

A node *trains* for an open trainer when a living worker of its current generation is there. It is
*occupied* when a living worker belongs to a trainer that takes no part: it has ended, waits at a
rung, or is held and still writes its state. Such a node may be planned for others, but its pilot
stays until that worker is gone. This is the only place that states these maps: whatever they name
takes part in the decision.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field

from bftrainer.fleet.trainers.creation import Trainer


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """Who is where; no node is in both of the first two maps."""

    training: Mapping[str, str] = field(default_factory=dict)  # node -> trainer
    occupied: Mapping[str, str] = field(default_factory=dict)  # node -> trainer
    settled_until_s: Mapping[str, float] = field(default_factory=dict)  # trainer -> when
    # Trainer -> node that it must not get, because others of its nodes cannot reach it -> since.
    apart: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


def occupancy_of(
    trainers: Iterable[Trainer],
    settled_until_s: Mapping[str, float],
    among: Container[str] | None = None,
) -> Occupancy:
    """State the maps.

    Args:
        trainers: all that may still have workers.
        settled_until_s: trainers whose nodes decisions must not change, and until when.
        among: ids of those that take part in a decision; None: all that are open.
    """
    training, occupied, settled = dict[str, str](), dict[str, str](), dict[str, float]()
    for trainer in trainers:
        machine, trainer_id = trainer.machine, trainer.record.trainer_id
        is_open = not (trainer.record.state.is_final or machine.is_ended)
        takes_part = is_open and (among is None or trainer_id in among)
        if takes_part and trainer_id in settled_until_s:
            settled[trainer_id] = settled_until_s[trainer_id]
        for worker_id, worker in machine.workers.items():
            if not worker.is_alive:
                continue
            if not takes_part:
                occupied[worker.node] = trainer_id
            elif worker_id in machine.members and (
                # The node may be another's already while its former trainer is about to leave it.
                worker.node not in training or worker.node in machine.targets
            ):
                training[worker.node] = trainer_id
    alone = {node: one for node, one in occupied.items() if node not in training}
    return Occupancy(training=training, occupied=alone, settled_until_s=settled)
