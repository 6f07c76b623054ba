"""Decides which of a trainer's last members may continue without the daemon. Pure.

From the answers of the agents in its rosters follows the next generation, or why there can be
none yet. Called by ``trainers.agent.regroup``; reasons in docs/adr/0010-regroup.md.

Two kinds of absence differ. *Gone* is certain: the agent reports that its worker ended, or its
host refuses connections to the agent's port, and a worker never outlives its agent. *Silent* is
not: the host may be cut off while its worker trains. Members that answer continue if none is
silent, or if they are more than half of all that may be alive. A generation trains only with all
its members, so two that both train have none in common, and only one of them can be such a
majority. Of members that answer but cannot connect to each other, the fewest are left out and count
as silent.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from bftrainer.elastic.control import Key, key_of
from bftrainer.elastic.node_cover import cover
from bftrainer.elastic.protocol import Commit, Member
from bftrainer.fleet.wire.peers import PeerStanding, Surveyed


class Absent(enum.Enum):
    """An agent that does not answer."""

    GONE = "gone"  # its host refuses the connection: the process has ended
    SILENT = "silent"  # no answer: it may be alive


Answer = Surveyed | Absent


@dataclass(frozen=True, slots=True, kw_only=True)
class AskMore:
    """Rosters contain agents that have not been asked."""

    members: tuple[Member, ...]  # one member of each such agent


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """No generation may be announced now."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NextGeneration:
    """The generation that the agent of ``roster[0]`` announces."""

    generation: int
    roster: tuple[Member, ...]  # survivors in rank order
    is_park: bool  # fewer members than the trainer needs, or it was being parked
    saver: str  # worker that writes the checkpoint before parking
    incarnation: int
    n_min: int
    batch: int = 0  # of the newest generation

    @property
    def key(self) -> Key:
        """Generation and attempt."""
        return (self.generation, 1)


Verdict = AskMore | Wait | NextGeneration


def judge(answers: Mapping[str, Answer]) -> Verdict:
    """Return the verdict on a trainer.

    Args:
        answers: by endpoint of the agent, including our own.
    """
    said = [a for a in answers.values() if isinstance(a, Surveyed)]
    known = [c for a in said for w in a.workers for c in (w.commit, w.entered) if c is not None]
    if not known:
        return Wait(reason="no worker here has been in a generation")
    members = _members(known)
    unasked = {m.agent_endpoint: m for m in members if m.agent_endpoint not in answers}
    if unasked:
        return AskMore(members=tuple(unasked.values()))
    # An agent's answer counts only for workers of its own node.
    at = {m.worker_id: m.agent_endpoint for m in members}
    standing = {
        w.worker_id: w
        for endpoint, a in answers.items()
        if isinstance(a, Surveyed)
        for w in a.workers
        if at.get(w.worker_id, endpoint) == endpoint
    }
    alive = [m for m in members if _is_alive(standing.get(m.worker_id))]
    apart = _apart(answers, alive)
    kept = [m for m in alive if m.agent_endpoint not in apart]
    reason = _why_not(answers, standing, members, kept, apart)
    return Wait(reason=reason) if reason else _next(known, standing, kept)


def _apart(answers: Mapping[str, Answer], alive: Sequence[Member]) -> frozenset[str]:
    """Return the fewest agents without which all others reach each other."""
    here = {m.agent_endpoint: None for m in alive}
    said = ((e, a.unreachable) for e, a in answers.items() if isinstance(a, Surveyed) and e in here)
    pairs = (frozenset((e, other)) for e, others in said for other in others if other in here)
    return cover(pairs, tuple(here))


def _why_not(
    answers: Mapping[str, Answer],
    standing: Mapping[str, PeerStanding],
    members: Sequence[Member],
    alive: Sequence[Member],
    apart: AbstractSet[str],
) -> str:
    """Return why the live members, without those apart, may not continue, "" if they may."""
    silent = [
        m
        for m in members
        if answers[m.agent_endpoint] is Absent.SILENT or m.agent_endpoint in apart
    ]
    if any(w.has_finished for w in standing.values()):
        return "it is finishing"
    if not alive:
        return "no member is left"
    if 2 * len(alive) <= len(alive) + len(silent):
        names = ", ".join(sorted({m.node for m in silent}))
        return f"silent, perhaps alive, and not a minority: {names}"
    if not all(_is_orphaned(answers[m.agent_endpoint]) for m in alive):
        return "one of its agents is connected to a daemon"
    return ""


def _next(
    known: Sequence[Commit], standing: Mapping[str, PeerStanding], alive: Sequence[Member]
) -> NextGeneration:
    newest = max(known, key=key_of)
    keys = [key_of(newest), *(w.newest for w in standing.values())]
    return NextGeneration(
        generation=max(keys)[0] + 1,
        roster=tuple(alive),
        is_park=len(alive) < newest.n_min or not newest.members,
        saver=max(alive, key=lambda m: standing[m.worker_id].step).worker_id,
        incarnation=max(c.incarnation for c in known),
        n_min=newest.n_min,
        batch=newest.batch,
    )


def _members(known: Iterable[Commit]) -> list[Member]:
    """Return all members of the rosters, newest roster first, each in rank order."""
    found: dict[str, Member] = {}
    for commit in sorted(known, key=key_of, reverse=True):
        for member in sorted(commit.members, key=lambda m: m.rank):
            found.setdefault(member.worker_id, member)
    return list(found.values())


def _is_alive(worker: PeerStanding | None) -> bool:
    return worker is not None and not worker.has_left


def _is_orphaned(answer: Answer) -> bool:
    return isinstance(answer, Surveyed) and answer.is_orphaned
