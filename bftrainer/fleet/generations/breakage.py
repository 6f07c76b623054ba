"""Generations that cannot go on, and members that cannot reach each other. Bookkeeping without I/O.

Two nodes are *apart* when the agent of one cannot connect to the other (``trainers.agent.reach``),
though both reach the daemon. What agents report and the time come in; the nodes that the trainer
does without go out. Reports are repeated while they hold. One that no longer names a node ends the
pair at once, the first time; from the second time on it is kept for a while, which doubles, so that
a cable with a loose contact does not stop the trainer again and again. So is a pair that nobody
reports on any more.

Only the reporting trainer goes by a report: an agent may run as a user.

A generation breaks when a member is lost, when a collective fails without a visible cause, and when
the nodes of two members are apart. In the last case it is given up at once and formed without one
of the two. Generations that break again and again without any of this, and without a step between,
count as a failure each ``MOST_IN_VAIN`` times, so that they end. ``generation`` builds on this, and
this on ``worker_set``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from bftrainer.elastic import protocol
from bftrainer.elastic.fields import shortened
from bftrainer.elastic.node_cover import cover
from bftrainer.elastic.protocol import Unreachable
from bftrainer.fleet.generations.members import Forming, Instruction, Worker
from bftrainer.fleet.generations.worker_set import WorkerSet

SILENT_S = 20.0  # a report lasts so long, if no other follows; reports come every 3 s
HOLD_S = 5.0  # after the second end of a pair
MOST_S = 600.0
FADES_S = 120.0  # after its end a pair is forgotten: one cut in two minutes costs little
MOST_PAIRS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two nodes that are, or were, apart; times of the machine's clock."""

    nodes: tuple[str, str]  # by name
    since_s: float  # of this time
    until_s: float  # it counts until then
    times: int = 1

    @property
    def both(self) -> frozenset[str]:
        """The two nodes."""
        return frozenset(self.nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """The pairs of a trainer's nodes that cannot reach each other; each change makes a new one."""

    pairs: tuple[Pair, ...] = ()
    patience_s: float = 0.0  # pairs count when one is so old

    def heard(self, node: str, others: Collection[str], now_s: float) -> Apart:
        """Return it after a report: ``node`` cannot reach ``others``, and reaches all else."""
        named = {frozenset((node, other)) for other in others if other != node}
        pairs: list[Pair] = []
        for pair in self.pairs:
            if now_s > pair.until_s + FADES_S:
                continue
            if pair.both in named:
                named.discard(pair.both)
                pairs.append(_again(pair, now_s))
            elif node in pair.nodes and now_s < pair.until_s:
                pairs.append(_ended(pair, now_s))
            else:
                pairs.append(pair)
        for both in sorted(named, key=sorted):
            first, second = sorted(both)
            until_s = now_s + SILENT_S
            pairs.append(Pair(nodes=(first, second), since_s=now_s, until_s=until_s))
        return replace(self, pairs=tuple(pairs[-MOST_PAIRS:]))

    def present(self, now_s: float) -> tuple[Pair, ...]:
        """Return the pairs that count now: all, once one is old enough.

        The younger pairs tell which of the oldest pair's two nodes nobody reaches.
        """
        there = tuple(p for p in self.pairs if now_s < p.until_s)
        return there if any(p.since_s + self.patience_s <= now_s for p in there) else ()

    def left_out(self, now_s: float, order: Sequence[str]) -> frozenset[str]:
        """Return which of these nodes the trainer does without; the first are kept first."""
        there = set(order)
        return cover((p.both for p in self.present(now_s) if there >= p.both), order)

    def barred(self, now_s: float, has: Collection[str]) -> dict[str, float]:
        """Return the nodes that it must not get, and since when, the machine's clock.

        Those apart from nodes it ``has``; if it has none, the fewest without which all others
        reach each other.
        """
        present, own = self.present(now_s), set(has)
        out = cover((p.both for p in present), ()) if not own & _nodes(present) else frozenset()
        found: dict[str, float] = {}
        for pair in present:
            for node in (pair.both - own) if pair.both & own else pair.both & out:
                found[node] = min(pair.since_s, found.get(node, pair.since_s))
        return dict(sorted(found.items()))

    def sentence(self, now_s: float, without: Iterable[str] = ()) -> str:
        """Name the pairs, and which nodes the trainer goes on without; "": there are none."""
        present = self.present(now_s)
        if not present:
            return ""
        said = [f"{a} and {b}" for a, b in (pair.nodes for pair in present[:4])]
        more = f" (and {len(present) - 4} more pairs)" if len(present) > 4 else ""
        gone = ", ".join(sorted(without))
        return (
            f"BFT-1340: {', '.join(said)}{more} cannot reach each other"
            f"{f'; it goes on without {gone}' if gone else ''}. Check cables, routes and"
            " firewalls between them; a node comes back when it can be reached."
        )


def of_agents_there(said: Unreachable, agent_on: Callable[[str], str]) -> Unreachable:
    """Return a report without nodes that have another agent by now.

    The one that is meant never answers again if its node has come back at another address.
    """
    if len(said.agents) != len(said.nodes):
        return said
    meant = [(node, agent) for node, agent in zip(said.nodes, said.agents, strict=True)
             if agent_on(node) in ("", agent)]  # fmt: skip
    nodes, agents = tuple(node for node, _ in meant), tuple(agent for _, agent in meant)
    return replace(said, nodes=nodes, agents=agents)


def _nodes(pairs: Iterable[Pair]) -> set[str]:
    return {node for pair in pairs for node in pair.nodes}


def _again(pair: Pair, now_s: float) -> Pair:
    if now_s >= pair.until_s:
        pair = replace(pair, since_s=now_s, times=pair.times + 1)
    lasts_s = min(MOST_S, SILENT_S * 2.0 ** min(16, pair.times - 1))
    return replace(pair, until_s=max(pair.until_s, now_s + lasts_s))


def _ended(pair: Pair, now_s: float) -> Pair:
    hold_s = 0.0 if pair.times == 1 else min(MOST_S, HOLD_S * 2.0 ** min(16, pair.times - 2))
    return replace(pair, until_s=min(pair.until_s, now_s + hold_s))


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
        """Return whether a reported broken collective has had no visible cause for too long."""
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
