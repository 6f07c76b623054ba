"""Tells of nodes that cannot reach each other: the log, decisions and users. No I/O but the log.

The pairs are those of each trainer's machine (``actuate.apart``), on its clock. Owned by
``actuate.trainers``.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Mapping

from bftrainer.fleet.trainers.creation import Trainer

LOG = logging.getLogger("bftrainer.trainers")


class Cuts:
    """What was told of each trainer."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[str, ...]] = {}

    def have_changed(self, trainers: Iterable[Trainer], now_s: float) -> bool:
        """Whether some trainer must, or need no longer, do without a node; log it."""
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
