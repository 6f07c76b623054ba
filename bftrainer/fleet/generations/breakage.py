"""Generations that cannot go on: whom to do without, and when that is a failure. No I/O.

A generation breaks when a member is lost, when a collective fails without a visible cause, and when
two members cannot reach each other (``actuate.apart``). In the last case it is given up at once and
formed without one of the two. Generations that break again and again without any of this, and
without a step between, count as a failure each ``MOST_IN_VAIN`` times, so that they end.
``actuate.generation`` builds on this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from bftrainer.elastic import protocol
from bftrainer.elastic.fields import shortened
from bftrainer.fleet.generations.members import Forming, Instruction, Worker
from bftrainer.fleet.generations.reachability import Apart
from bftrainer.fleet.generations.worker_set import WorkerSet

LOST = "a member was lost"
INTERRUPTED_PATIENCE_S = 1.0  # wait for the cause of a broken collective
MOST_IN_VAIN = 3
MOST_REASON = 300  # characters


@dataclass(kw_only=True, eq=False)
class BrokenGenerations(WorkerSet):
    """The workers of one trainer, and what is wrong with their generation."""

    generation: int = 0  # greatest announced
    is_broken: bool = False
    interrupted_s: float | None = None
    apart: Apart = field(default_factory=Apart)
    cut: str = ""  # why the generation that forms goes without members that live
    in_vain: int = 0  # generations in a row that broke without a loss and without a step
    not_saved: str = ""  # why checkpoints are not written
    complaint: tuple[str, str] = ("", "")  # the worker that reported the last one broken, and why
    ADDED: ClassVar = WorkerSet.ADDED | {"apart", "cut", "in_vain", "complaint", "not_saved"}

    def _note_trouble(self, worker: Worker, body: protocol.Message, now_s: float) -> None:
        """Record what a message says of broken generations and checkpoints."""
        match body:
            case protocol.Interrupted() if body.generation >= self._working_generation():
                # Usually the cause reaches us too, as the death of a member.
                if self.interrupted_s is None:
                    self.interrupted_s, self.complaint = now_s, (worker.worker_id, body.reason)
            case protocol.Unsaved():
                self.not_saved = body.cause
            case protocol.Saved():
                self.not_saved = ""
            case protocol.Unreachable():
                self.apart = self.apart.heard(worker.node, body.nodes, now_s)

    def _working_generation(self) -> int:
        """The generation that members are in or entering; reports of older ones are ignored."""
        if self.forming is None or self.forming.is_committed:
            return self.generation
        return self.generation - 1

    def kept_order(self) -> tuple[str, ...]:
        """Return its nodes in the order in which they are kept.

        Members come first, in rank order, so that the state and the store stay where they are.
        """
        roster = (*self.members, *(self.forming.roster if self.forming else ()))
        return tuple(dict.fromkeys([*self._nodes_of(roster), *sorted(self.targets)]))

    def unreached(self, now_s: float) -> frozenset[str]:
        """Return which of its nodes it does without because others cannot reach them."""
        if not self.apart.pairs:
            return frozenset()
        return self.apart.left_out(now_s, self.kept_order())

    def _do_without(self, now_s: float) -> None:
        """Leave out unreached nodes, and give up a generation with one of them."""
        gone = self.unreached(now_s)
        if not gone:
            return
        forming = self.forming
        roster = forming.roster if forming else ()
        self.targets = {n: o for n, o in self.targets.items() if n not in gone}
        if forming is None or not forming.abandon:
            roster = (*roster, *self._alive_members())
        if self.is_parking or gone.isdisjoint(self._nodes_of(roster)):
            return
        self.is_broken, self.cut = True, self.apart.sentence(now_s, gone)
        if forming is not None and forming.is_committed:
            self._reform_after_commit(forming)
        self.forming = None

    def _complain(self, now_s: float) -> list[Instruction]:
        """Count a generation that broke although all its members live; too many are a failure."""
        (name, why), self.complaint = self.complaint, ("", "")
        worker = self.workers.get(name)
        is_intact = self.members and len(self._alive_members()) == len(self.members)
        if not self.is_broken or self.cut or worker is None or not is_intact:
            return []
        self.in_vain += 1
        if self.in_vain % MOST_IN_VAIN:
            return []
        cause = (
            f"BFT-1341: {self.in_vain} generations in a row broke without a step, although all"
            f" members live and reach each other: {shortened(why, MOST_REASON).rstrip('.')}."
        )
        return [self._failed(worker, cause, now_s)]

    def _has_waited(self, now_s: float) -> bool:
        """Whether a reported broken collective has had no visible cause for too long."""
        return (
            self.interrupted_s is not None and now_s - self.interrupted_s > INTERRUPTED_PATIENCE_S
        )

    def _reform_after_commit(self, forming: Forming) -> list[Instruction]:
        """Some members may have switched already: keep the union of both memberships."""
        union = dict.fromkeys([*forming.roster, *self.members])
        self.members = tuple(union)
        self.is_broken = True
        self.forming = None
        return []

    def _nodes_of(self, roster: Sequence[str]) -> tuple[str, ...]:
        return tuple(self.workers[w].node for w in roster if w in self.workers)
