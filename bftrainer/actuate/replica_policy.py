"""Which agent holds a copy of the state of a one-node trainer: a state machine without I/O.

With two or more members each is a replica. A lone member is told which other agent takes copies
of its state. When it is lost, the first worker of the next generation is told where the newest
copy is; the holder also writes it to disk, because holders may have to leave, too. There is one
``CopyMachine`` per trainer; ``actuate.replica_registry`` calls it repeatedly with the current
state and gets the orders to send.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bftrainer.actuate.group import NodeOffer, Tell
from bftrainer.elastic import protocol
from bftrainer.wire.messages import CopyOrder, DropCopy, HoldCopy, SettleCopy

REFUSED_S = 60.0  # before a holder that refused is asked again
MOST_TOLD = 16  # remembered holders
IF_LOST = "If its node is lost, it resumes from its last checkpoint."
FRESH_S = 5.0  # largest normal age of a copy


@dataclass(frozen=True, slots=True, kw_only=True)
class Lone:
    """The only member of a trainer."""

    worker_id: str
    pilot_id: str
    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyStatus:
    """The state of a trainer that matters for its copies."""

    lone: Lone | None = None
    has_replicas: bool = False  # a complete generation of two or more
    is_lost: bool = False  # no member is left
    is_over: bool = False  # it needs no copies any more
    generation: int = 0  # last complete one
    saved_step: int = -1  # of the newest known checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteCopy:
    """A complete copy in an agent's memory."""

    generation: int
    step: int
    taken_s: float  # when the state was current, on the daemon's clock
    hold_s: float = 0.0  # how long training paused for it
    gap_s: float = 0.0  # until the next copy begins

    @property
    def order(self) -> tuple[int, int]:
        """Sort key; copies of later generations are newer."""
        return (self.generation, self.step)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A message to send to an agent."""

    pilot_id: str
    message: CopyOrder


def choose_holder(
    offers: Sequence[NodeOffer],
    lone_node: str,
    loads: Mapping[str, int],
    refused: Mapping[str, str],
    present: str = "",
) -> NodeOffer | None:
    """Return the agent to hold the copy; None: no other node can.

    The present holder stays; otherwise the one with the fewest copies, then by node.
    """
    able = [o for o in offers if o.copy_port and o.node != lone_node and o.pilot_id not in refused]
    if not able:
        return None
    return min(
        able, key=lambda o: (o.pilot_id != present, loads.get(o.pilot_id, 0), o.node, o.pilot_id)
    )


class CopyMachine:
    """The copies of one trainer's state."""

    def __init__(
        self,
        trainer_id: str,
        directory: str,
        new_key: Callable[[], str],
        told: Sequence[str] = (),
    ) -> None:
        self.trainer_id = trainer_id
        self.holder = ""  # pilot that currently receives copies
        self.copies: dict[str, CompleteCopy] = {}  # by pilot; several while holders change
        self.told = tuple(told)  # pilots that may hold one, also lost ones that may return
        self._directory = directory
        self._new_key = new_key
        self._keys: dict[str, str] = {}  # by pilot: key of its order to hold
        self._offers: dict[str, NodeOffer] = {}
        self._told = ""  # the worker that was told the holder
        self._refused: dict[str, tuple[str, float]] = {}  # by pilot: reason, until when
        self._settled: set[str] = set()  # pilots ordered to write theirs to disk
        self._standing = CopyStatus()

    # ---- stimuli -----------------------------------------------------------------------

    def advance(
        self,
        standing: CopyStatus,
        offers: Sequence[NodeOffer],
        loads: Mapping[str, int],
        now_s: float,
    ) -> list[Order | Tell]:
        """Return the orders for the current state; empty when nothing is to do.

        Args:
            standing: of the trainer.
            offers: all agents that are connected and not leaving.
            loads: number of copies that each pilot holds or is to hold.
            now_s: monotonic.
        """
        self._standing = standing
        self._offers = {o.pilot_id: o for o in offers}
        gone = {*self.copies, *self._keys} - self._offers.keys()
        for pilot_id in gone:
            self.forget_agent(pilot_id)
        self._refused = {p: r for p, r in self._refused.items() if r[1] > now_s}
        if standing.is_over or standing.has_replicas:
            return self._drop_all()
        if standing.lone is not None:
            self._settled.clear()
            return self._assign(standing.lone, loads)
        return self._settle() if standing.is_lost else []

    def on_copied(self, said: protocol.Copied, now_s: float) -> list[Order | Tell]:
        """The lone worker sent a copy to a holder, or failed to."""
        if said.holder != self.holder:
            return []
        if said.refused:
            self._refused[said.holder] = (said.refused, now_s + REFUSED_S)
            return []
        self.copies[said.holder] = CompleteCopy(
            generation=said.generation,
            step=said.step,
            taken_s=now_s - said.wall_s,
            hold_s=said.hold_s,
            gap_s=said.gap_s,
        )
        return [self._drop(p) for p in sorted({*self.copies, *self._keys} - {self.holder})]

    def on_found(self, pilot_id: str, copy: CompleteCopy, generation: int) -> list[Order | Tell]:
        """An agent that has just connected reports a copy.

        Copies older than ``generation``, the last complete one, may belong to an abandoned line.
        """
        if copy.generation < generation or self._standing.has_replicas:
            return [self._drop(pilot_id)]
        self.copies[pilot_id] = copy
        return []

    def on_resumed(self, step: int) -> list[Order | Tell]:
        """A generation formed without survivors; drop copies ahead of it, which were not used."""
        return [self._drop(p) for p, c in sorted(self.copies.items()) if c.step > step]

    def on_settled(self, pilot_id: str, problem: str) -> list[Order | Tell]:
        """A holder wrote its copy to disk, after which it is dropped, or failed to.

        Not to be called while a generation is forming that may have been sent there.
        """
        if problem or pilot_id not in self.copies or self._standing.lone is not None:
            return []
        return [self._drop(pilot_id)]

    def forget_agent(self, pilot_id: str) -> None:
        """An agent is gone or leaving, with everything it held."""
        self.copies.pop(pilot_id, None)
        self._keys.pop(pilot_id, None)
        self._settled.discard(pilot_id)
        self._offers.pop(pilot_id, None)
        if self.holder == pilot_id:
            self.holder, self._told = "", ""

    def recall(self, worker_id: str, worker_pilot_id: str) -> list[Order | Tell]:
        """Tell the first worker of a generation without survivors where the state may be."""
        there = [p for p in self.copies if p in self._offers]
        # The holder may have a complete copy that was not reported yet.
        pilot_id = max(there, key=lambda p: self.copies[p].order, default=self.holder)
        offer = self._offers.get(pilot_id)
        if offer is None:
            return []
        out: list[Order | Tell] = []
        if pilot_id not in self._keys:  # assigned by an earlier daemon
            out.append(self._hold(pilot_id))
        body = protocol.Recall(
            holder=pilot_id,
            node=offer.node,
            host=offer.address,
            port=offer.copy_port,
            key=self._keys[pilot_id],
        )
        return [
            *out,
            Tell(pilot_id=worker_pilot_id, worker_id=worker_id, body=protocol.to_body(body)),
        ]

    # ---- what is to be done ------------------------------------------------------------

    def _assign(self, lone: Lone, loads: Mapping[str, int]) -> list[Order | Tell]:
        refused = {p: why for p, (why, _) in self._refused.items()}
        present = self.holder or max(self.copies, key=lambda p: self.copies[p].order, default="")
        offer = choose_holder(list(self._offers.values()), lone.node, loads, refused, present)
        pilot_id = "" if offer is None else offer.pilot_id
        if pilot_id == self.holder and self._told == lone.worker_id:
            return []
        out: list[Order | Tell] = []
        if offer is not None and pilot_id not in self._keys:
            out.append(self._hold(pilot_id))
        self.holder, self._told = pilot_id, lone.worker_id
        body = protocol.KeepCopy(
            holder=pilot_id,
            host=offer.address if offer else "",
            port=offer.copy_port if offer else 0,
            key=self._keys[pilot_id] if offer else "",
        )
        tell = Tell(pilot_id=lone.pilot_id, worker_id=lone.worker_id, body=protocol.to_body(body))
        return [*out, tell]

    def _settle(self) -> list[Order | Tell]:
        """Drop copies older than the newest checkpoint; have the others written to disk."""
        saved = self._standing.saved_step
        out: list[Order | Tell] = [
            self._drop(p) for p, c in sorted(self.copies.items()) if c.step <= saved
        ]
        at = {*self.copies, *([self.holder] if self.holder else [])} - self._settled
        self._settled |= at
        return out + [
            Order(
                pilot_id=p,
                message=SettleCopy(trainer_id=self.trainer_id, directory=self._directory),
            )
            for p in sorted(at)
        ]

    def _hold(self, pilot_id: str) -> Order:
        self._keys[pilot_id] = key = self._new_key()
        self.told = (*(p for p in self.told if p != pilot_id), pilot_id)[-MOST_TOLD:]
        return Order(
            pilot_id=pilot_id,
            message=HoldCopy(
                trainer_id=self.trainer_id, key=key, generation=self._standing.generation
            ),
        )

    def _drop(self, pilot_id: str) -> Order:
        self.told = tuple(p for p in self.told if p != pilot_id)
        self.copies.pop(pilot_id, None)
        self._keys.pop(pilot_id, None)
        self._settled.discard(pilot_id)
        if self.holder == pilot_id:
            self.holder, self._told = "", ""
        return Order(pilot_id=pilot_id, message=DropCopy(trainer_id=self.trainer_id))

    def _drop_all(self) -> list[Order | Tell]:
        return [self._drop(p) for p in sorted({*self.copies, *self._keys})]

    # ---- in words ----------------------------------------------------------------------

    def in_words(self, now_s: float) -> tuple[str, ...]:
        """Say where a copy is and how old, or why there is none."""
        newest = max(self.copies.values(), key=lambda c: c.order, default=None)
        if self._standing.lone is None:
            if newest is None or not self._standing.is_lost:
                return ()
            return (f"Its newest state (step {newest.step}) is in another agent's memory.",)
        if newest is None:
            return (self._why_none(),)
        node = next((self._offers[p].node for p, c in self.copies.items() if c is newest), "")
        words = (
            f"A copy of its state is in the memory of {node}, {now_s - newest.taken_s:.1f} s old."
        )
        if newest.gap_s > FRESH_S:
            words += (
                f" One is taken every {newest.gap_s:.1f} s: each stops the training for"
                f" {1000 * newest.hold_s:.0f} ms, and more would cost over 1 %."
            )
        return (words,)

    def _why_none(self) -> str:
        if self.holder:
            return "The first copy of its state is on its way to another agent."
        if self._refused:
            why = next(iter(self._refused.values()))[0]
            return f"No copy of its state is kept: {why}. {IF_LOST}"
        return (
            "No copy of its state is kept, because no other node has an agent of bftrainer."
            f" {IF_LOST}"
        )
