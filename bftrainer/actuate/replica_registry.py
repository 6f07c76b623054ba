"""The copies of all trainers' states: reports in, orders to agents out.

Feeds each trainer's ``replica_policy.CopyMachine`` with the state of its members and with
workers' and agents' reports about copies, and sends what it orders. Owned by
``actuate.trainers``.
"""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from bftrainer.actuate.generation import GenerationMachine
from bftrainer.actuate.group import Instruction, NodeOffer, Tell
from bftrainer.actuate.replica_policy import CompleteCopy, CopyMachine, CopyStatus, Lone, Order
from bftrainer.elastic import protocol
from bftrainer.model.trainer import TrainerRecord
from bftrainer.runtimes.base import Resize, resize_of
from bftrainer.wire.messages import (
    CopySettled,
    DaemonMessage,
    DropCopy,
    HeldCopy,
    HoldCopy,
    TellWorker,
)
from bftrainer.wire.refused_messages import RefusedMessages

LOG = logging.getLogger("bftrainer.trainers")
EVERY_S = 0.25


class CopyBook:
    """One ``CopyMachine`` for every trainer that may have a lone member."""

    def __init__(
        self,
        *,
        send: Callable[[str, DaemonMessage], bool],
        offers: Callable[[], Iterable[NodeOffer]],
        clock: Callable[[], float],
        remember: Callable[[str, tuple[str, ...]], None],
        refusals: RefusedMessages,
    ) -> None:
        """Begin without trainers.

        Args:
            send: sends a message to an agent.
            offers: of the connected agents.
            clock: monotonic.
            remember: (trainer, pilots): journals who may hold copies, before they are told.
            refusals: counts copies reported by agents that were not asked to hold them.
        """
        self._send = send
        self._remember = remember
        self._refusals = refusals
        self._offers = offers
        self._clock = clock
        self._machines: dict[str, CopyMachine] = {}
        self._saved_step: dict[str, int] = {}
        self._advanced_s = 0.0

    def open(self, record: TrainerRecord) -> None:
        """Add a trainer; one that is resized by restart keeps its own state."""
        if resize_of(record.spec.runtime) is not Resize.RESTART:
            self._machines[record.trainer_id] = CopyMachine(
                record.trainer_id,
                record.spec.checkpoint_dir,
                lambda: secrets.token_hex(32),
                record.copy_holders,
            )

    def advance(
        self, trainers: Mapping[str, tuple[TrainerRecord, GenerationMachine]], *, now: bool = False
    ) -> None:
        """Update all copies, at most every ``EVERY_S`` unless ``now``."""
        now_s = self._clock()
        if not now and 0.0 <= now_s - self._advanced_s < EVERY_S:
            return
        self._advanced_s = now_s
        offers = tuple(self._offers())
        loads = Counter(p for m in self._machines.values() for p in {m.holder, *m.copies} if p)
        for trainer_id, machine in list(self._machines.items()):
            record, members = trainers[trainer_id]
            standing = standing_of(record, members, self._saved_step.get(trainer_id, -1))
            self._do(machine.advance(standing, offers, loads, now_s))
            if record.state.is_final:
                del self._machines[trainer_id]

    # ---- reports ---------------------------------------------------------------------------

    def on_body(self, trainer_id: str, body: protocol.Message) -> None:
        """A worker sent a message."""
        machine = self._machines.get(trainer_id)
        if machine is None:
            return
        if isinstance(body, protocol.Saved):
            self._saved_step[trainer_id] = max(self._saved_step.get(trainer_id, -1), body.step)
        elif isinstance(body, protocol.Copied):
            if body.refused:
                LOG.info("no copy of %s at %s: %s", trainer_id, body.holder, body.refused)
            self._do(machine.on_copied(body, self._clock()))

    def on_hello(
        self, pilot_id: str, held: Sequence[HeldCopy], records: Mapping[str, TrainerRecord]
    ) -> None:
        """An agent connected and reports the copies it already holds."""
        for copy in held:
            machine = self._machines.get(copy.trainer_id)
            if machine is None or pilot_id not in machine.told:
                if machine is not None:
                    why = f"it was not asked to hold a copy of {copy.trainer_id}"
                    self._refusals.refuse("not-its-copy", pilot_id, why, code="BFT-1307")
                self._send(pilot_id, DropCopy(trainer_id=copy.trainer_id))
                continue
            known = CompleteCopy(
                generation=copy.generation,
                step=copy.step,
                taken_s=self._clock() - copy.age_s,
            )
            generation = records[copy.trainer_id].progress.generation
            self._do(machine.on_found(pilot_id, known, generation))

    def on_agent_lost(self, pilot_id: str) -> None:
        """An agent is gone with everything it held."""
        for machine in self._machines.values():
            machine.forget_agent(pilot_id)

    def on_settled(
        self, pilot_id: str, said: CopySettled, members: GenerationMachine | None
    ) -> None:
        """A holder wrote its copy to disk, or failed to."""
        if said.problem:
            LOG.info("the copy of %s is not on disk: %s", said.trainer_id, said.problem)
        machine = self._machines.get(said.trainer_id)
        if machine is not None and members is not None and members.forming is None:
            self._do(machine.on_settled(pilot_id, said.problem))

    def before(self, trainer_id: str, members: GenerationMachine, instruction: Instruction) -> None:
        """Send what an agent must know before an instruction is carried out.

        The first worker of a generation without survivors learns where the state is before
        anything else about that generation.
        """
        machine = self._machines.get(trainer_id)
        if machine is None or members.members or not isinstance(instruction, Tell):
            return
        if instruction.body.get("type") == "Prepare" and instruction.body.get("open_store"):
            self._do(machine.recall(instruction.worker_id, instruction.pilot_id))

    def on_complete(self, trainer_id: str, size_before: int, step: int) -> None:
        """A generation is complete."""
        machine = self._machines.get(trainer_id)
        if machine is not None and size_before == 0:
            self._do(machine.on_resumed(step))

    # ---- orders ----------------------------------------------------------------------------

    def in_words(self, trainer_id: str) -> tuple[str, ...]:
        """Say where a trainer's copy is and how old, or why there is none."""
        machine = self._machines.get(trainer_id)
        return () if machine is None else machine.in_words(self._clock())

    def _do(self, orders: Sequence[Order | Tell]) -> None:
        for order in orders:
            if isinstance(order, Tell):
                self._send(
                    order.pilot_id, TellWorker(worker_id=order.worker_id, body=dict(order.body))
                )
                continue
            if isinstance(order.message, HoldCopy):
                trainer_id = order.message.trainer_id
                self._remember(trainer_id, self._machines[trainer_id].told)
            self._send(order.pilot_id, order.message)


def standing_of(record: TrainerRecord, members: GenerationMachine, saved_step: int) -> CopyStatus:
    """Return the state of a trainer that matters for its copies."""
    alive = [
        members.workers[m]
        for m in members.members
        if m in members.workers and members.workers[m].is_alive
    ]
    lone = None
    if len(members.members) == 1 and alive:
        worker = alive[0]
        lone = Lone(worker_id=worker.worker_id, pilot_id=worker.pilot_id, node=worker.node)
    is_whole = members.forming is None and not members.is_broken
    return CopyStatus(
        lone=lone,
        has_replicas=is_whole and len(alive) >= 2,
        is_lost=not alive,
        is_over=record.state.is_final,
        generation=record.progress.generation,
        saved_step=saved_step,
    )
