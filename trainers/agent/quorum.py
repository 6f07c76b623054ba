"""Who of a trainer's last members may go on together without the daemon: a pure judgement.

What the agents of its rosters answered comes in; the next generation, or why there can
be none yet, goes out. Called by ``trainers.agent.regroup``; argued in docs/adr/0010.

Two kinds of absence are kept apart. *Gone* was seen: the agent says that its worker
ended, or its host says that nobody listens at the agent's port any more, and a worker
never outlives its agent. *Silent* was not: the host may be cut off and its worker may
train on. Those who answer go on if nobody is silent, or if they are more than half of
all that may live. A generation trains only with all its members, so two that both train
have none in common, and then only one of them can be such a majority.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bftrainer.elastic.control import Key, key_of
from bftrainer.elastic.protocol import Commit, Member

NO_KEY: Key = (-1, -1)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumMember:
    """One worker as its agent knows it."""

    worker_id: str
    commit: Commit | None = None  # the newest passed on to it
    entered: Commit | None = None  # whose generation it entered last
    interrupted: Key = NO_KEY  # the newest that it said was broken
    ready: Key = NO_KEY  # the newest it has answered ...
    store_port: int = 0  # ... and the store it opened for that
    promised: Key = NO_KEY  # the newest its agent promised to a peer
    step: int = 0
    has_left: bool = False
    has_finished: bool = False

    @property
    def is_stuck(self) -> bool:
        """Whether it waits for a commit that only somebody else can bring."""
        return self.commit is not None and self.interrupted >= key_of(self.commit)

    @property
    def newest(self) -> Key:
        """The greatest number that anybody used towards it."""
        commit = NO_KEY if self.commit is None else key_of(self.commit)
        return max(commit, self.interrupted, self.ready, self.promised)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What an agent says of its workers of one trainer."""

    is_orphaned: bool  # it knows that no daemon is there
    workers: tuple[QuorumMember, ...] = ()


class Absent(enum.Enum):
    """An agent that does not answer."""

    GONE = "gone"  # its host refuses the connection: the process has ended
    SILENT = "silent"  # nothing comes back: it may live


Answer = Answered | Absent


@dataclass(frozen=True, slots=True, kw_only=True)
class AskMore:
    """Rosters name agents that have not been asked."""

    members: tuple[Member, ...]  # one of each


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Nobody may announce anything now."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NextGeneration:
    """What the agent of ``roster[0]`` shall announce."""

    generation: int
    roster: tuple[Member, ...]  # survivors in rank order
    is_park: bool  # fewer than the trainer needs, or it was being parked
    saver: str  # who writes the checkpoint of a park
    incarnation: int
    n_min: int

    @property
    def key(self) -> Key:
        """What orders it."""
        return (self.generation, 1)


Verdict = AskMore | Wait | NextGeneration


def judge(answers: Mapping[str, Answer]) -> Verdict:
    """Say what shall become of a trainer.

    Args:
        answers: by the endpoint of the agent, our own among them.
    """
    said = [a for a in answers.values() if isinstance(a, Answered)]
    known = [c for a in said for w in a.workers for c in (w.commit, w.entered) if c is not None]
    if not known:
        return Wait(reason="no worker here has been in a generation")
    members = _members(known)
    unasked = {m.agent_endpoint: m for m in members if m.agent_endpoint not in answers}
    if unasked:
        return AskMore(members=tuple(unasked.values()))
    # An agent speaks for the workers of its node, and for nobody else's.
    at = {m.worker_id: m.agent_endpoint for m in members}
    standing = {
        w.worker_id: w
        for endpoint, a in answers.items()
        if isinstance(a, Answered)
        for w in a.workers
        if at.get(w.worker_id, endpoint) == endpoint
    }
    alive = [m for m in members if _is_alive(standing.get(m.worker_id))]
    reason = _why_not(answers, standing, members, alive)
    return Wait(reason=reason) if reason else _next(known, standing, alive)


def _why_not(
    answers: Mapping[str, Answer],
    standing: Mapping[str, QuorumMember],
    members: Sequence[Member],
    alive: Sequence[Member],
) -> str:
    """Say why those who are alive may not go on, "" when they may."""
    silent = [m for m in members if answers[m.agent_endpoint] is Absent.SILENT]
    if any(w.has_finished for w in standing.values()):
        return "it is finishing"
    if not alive:
        return "no member is left"
    if 2 * len(alive) <= len(alive) + len(silent):
        names = ", ".join(sorted({m.node for m in silent}))
        return f"silent, so perhaps alive, and not the smaller part: {names}"
    if not all(_is_orphaned(answers[m.agent_endpoint]) for m in alive):
        return "one of its agents has a daemon"
    return ""


def _next(
    known: Sequence[Commit], standing: Mapping[str, QuorumMember], alive: Sequence[Member]
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
    )


def _members(known: Iterable[Commit]) -> list[Member]:
    """All that some roster names, those of the newest first, each in rank order."""
    found: dict[str, Member] = {}
    for commit in sorted(known, key=key_of, reverse=True):
        for member in sorted(commit.members, key=lambda m: m.rank):
            found.setdefault(member.worker_id, member)
    return list(found.values())


def _is_alive(worker: QuorumMember | None) -> bool:
    return worker is not None and not worker.has_left


def _is_orphaned(answer: Answer) -> bool:
    return isinstance(answer, Answered) and answer.is_orphaned
