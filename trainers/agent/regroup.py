"""State machine for a trainer that loses members while no daemon is running, and its quorum.

From the answers of the agents in its rosters follows the next generation, or the reason why there
can be none yet. The design is explained in docs/adr/0010-regroup.md.

Two kinds of absence differ. *Gone* is certain: the agent reports that its worker ended, or its
host refuses connections to the agent's port, and a worker never outlives its agent. *Silent* is
not: the host may be cut off while its worker trains. Members that answer continue if none is
silent, or if they are more than half of all that may be alive. A generation trains only with all
its members, so two that both train have none in common, and only one of them can be such a
majority. Of members that answer but cannot connect to each other, the fewest are left out and count
as silent.

survey → judge → promise → commit. Every agent with a stuck worker surveys the agents of its
rosters; the one of the lowest surviving rank announces the next generation once all others have
promised its number. An agent gives a promise, and forwards a commit, only while it knows that no
daemon is running, so a returning daemon is never overridden. No I/O and no clock;
``trainers.agent.peer_recovery`` carries out the instructions.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from bftrainer.elastic.control import Key, key_of
from bftrainer.fleet.wire.peers import (
    NO_KEY,
    Done,
    PassCommit,
    PeerAnswer,
    PeerQuestion,
    PeerStanding,
    Promise,
    Surveyed,
    SurveyTrainer,
)
from bftrainer.ground import protocol
from bftrainer.ground.node_cover import cover
from bftrainer.ground.protocol import Commit, Member


class Absent(enum.Enum):
    """An agent that does not answer."""

    GONE = "gone"  # its host refuses the connection: the process has ended
    SILENT = "silent"  # no answer: it may be alive


Answer = Surveyed | Absent


@dataclass(frozen=True, slots=True, kw_only=True)
class NextGeneration:
    """The generation that the agent of ``roster[0]`` announces."""

    roster: tuple[Member, ...]  # survivors in rank order
    commit: Commit  # without token, origin and the store's port; without members: to park

    @property
    def key(self) -> Key:
        """Generation and attempt."""
        return key_of(self.commit)


# One member of each agent that is to be asked, too; or why there can be no generation now.
Verdict = tuple[Member, ...] | str | NextGeneration


def judge(answers: Mapping[str, Answer]) -> Verdict:
    """Return the verdict on a trainer by the answers of agents, our own among them, by endpoint."""
    said = [a for a in answers.values() if isinstance(a, Surveyed)]
    known = [c for a in said for w in a.workers for c in (w.commit, w.entered) if c is not None]
    if not known:
        return "no worker here has been in a generation"
    members = _members(known)
    if unasked := {m.agent_endpoint: m for m in members if m.agent_endpoint not in answers}:
        return tuple(unasked.values())
    # An agent's answer counts only for workers of its own node.
    at = {m.worker_id: m.agent_endpoint for m in members}
    standing = {
        w.worker_id: w
        for endpoint, a in answers.items()
        if isinstance(a, Surveyed)
        for w in a.workers
        if at.get(w.worker_id, endpoint) == endpoint
    }
    present = {i for i, w in standing.items() if not w.has_left}
    alive = [m for m in members if m.worker_id in present]
    apart = _apart(answers, alive)
    kept = [m for m in alive if m.agent_endpoint not in apart]
    return _why_not(answers, standing, members, kept, apart) or _next(known, standing, kept)


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
    there = [answers[m.agent_endpoint] for m in alive]
    if not all(isinstance(a, Surveyed) and a.is_orphaned for a in there):
        return "one of its agents is connected to a daemon"
    return ""


def _next(
    known: Sequence[Commit], standing: Mapping[str, PeerStanding], alive: Sequence[Member]
) -> NextGeneration:
    newest = max(known, key=key_of)
    keys = [key_of(newest), *(w.newest for w in standing.values())]
    fitting = [size for size in newest.sizes if size <= len(alive)]
    most = max(fitting, default=0) if newest.sizes else len(alive)
    is_park = most < newest.n_min or not newest.members
    roster = () if is_park else alive[:most]
    saver = max(alive, key=lambda m: standing[m.worker_id].step).worker_id
    commit = Commit(
        generation=max(keys)[0] + 1,
        attempt=1,
        token="",
        members=tuple(replace(m, rank=rank) for rank, m in enumerate(roster)),
        store_host=roster[0].address if roster else "",
        abandon=True,
        incarnation=max(c.incarnation for c in known),
        saver=saver if is_park else "",
        n_min=newest.n_min,
        batch=newest.batch,
        sizes=newest.sizes,
    )
    return NextGeneration(roster=tuple(alive), commit=commit)


def _members(known: Iterable[Commit]) -> list[Member]:
    """Return all members of the rosters, newest roster first, each in rank order."""
    found: dict[str, Member] = {}
    for commit in sorted(known, key=key_of, reverse=True):
        for member in sorted(commit.members, key=lambda m: m.rank):
            found.setdefault(member.worker_id, member)
    return list(found.values())


RETRY_S = 0.3
ROUND_LIMIT_S = 6.0  # then a new round begins
PASS_TRIES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Ask the agent of a member."""

    member: Member
    question: PeerQuestion
    tries: int = 0  # that are left after this one


@dataclass(frozen=True, slots=True, kw_only=True)
class TellOwn:
    """Send a body to a worker of this agent."""

    worker_id: str
    body: protocol.Prepare | Commit


Instruction = Ask | TellOwn | str  # a text for the log


@dataclass(slots=True)
class _Round:
    """One attempt to announce a generation."""

    ends_s: float
    answers: dict[str, Answer | None]  # by endpoint; None: no answer yet
    plan: NextGeneration | None = None
    promised: set[str] = field(default_factory=set)  # worker ids


class Regroup:
    """State machine of one trainer on one agent; ``me`` is its peer endpoint."""

    def __init__(
        self, trainer_id: str, *, me: str, origin: str, new_token: Callable[[], str]
    ) -> None:
        self.trainer_id = trainer_id
        self._me, self._origin, self._new_token = me, origin, new_token
        self._round: _Round | None = None
        self._promised: dict[str, Key] = {}
        self._is_orphaned = False
        self._silent: list[str] = []
        self._not_before_s = 0.0
        self._nudged: Key = NO_KEY  # number with which a peer's worker is stuck
        self._noted = ""

    # ---- events ------------------------------------------------------------------------

    def advance(
        self,
        own: Sequence[PeerStanding],
        *,
        is_orphaned: bool,
        now_s: float,
        silent: Collection[str] = (),
    ) -> list[Instruction]:
        """Return the next instructions; called on every change and periodically.

        ``silent``: endpoints of members' agents that this one cannot connect to.
        """
        self._silent = sorted(silent)
        own = [self._with_promise(w) for w in own]
        self._is_orphaned = is_orphaned
        if not is_orphaned or self._stuck(own) == NO_KEY:
            self._round = None
            return []
        if self._round is not None and now_s > self._round.ends_s:
            self._give_up(now_s)
        if self._round is None:
            if now_s < self._not_before_s:
                return []
            self._round = _Round(now_s + ROUND_LIMIT_S, {})
        self._round.answers[self._me] = self._surveyed(own)
        if self._round.plan is None:
            return self._decide(self._round, own, now_s)
        return self._commit(self._round, self._round.plan, own, now_s)

    def on_answer(
        self, asked: Ask, answer: Surveyed | Done | Absent, now_s: float
    ) -> list[Instruction]:
        """Record an agent's answer, or its absence; return the next instructions."""
        this, question = self._round, asked.question
        is_done = isinstance(answer, Done) and not answer.refusal
        match question:
            case SurveyTrainer():
                endpoint = asked.member.agent_endpoint
                if this is not None and endpoint in this.answers:
                    this.answers[endpoint] = Absent.SILENT if isinstance(answer, Done) else answer
            case Promise():
                key = (question.generation, question.attempt)
                if this is None or this.plan is None or this.plan.key != key:
                    return []  # of an earlier round
                if is_done:
                    this.promised.add(question.worker_id)
                else:
                    self._give_up(now_s)
            case PassCommit() if not is_done and asked.tries and self._is_orphaned:
                return [replace(asked, tries=asked.tries - 1)]
        return []

    def _stuck(self, own: Sequence[PeerStanding]) -> Key:
        """Return the greatest number with which an own worker is stuck, else ``NO_KEY``."""
        keys = [
            key_of(w.commit)
            for w in own
            if w.commit is not None and (w.is_stuck or key_of(w.commit) <= self._nudged)
        ]
        return max(keys, default=NO_KEY)

    # ---- questions of a peer -------------------------------------------------------------

    def answer(
        self, own: Sequence[PeerStanding], question: PeerQuestion, *, is_orphaned: bool
    ) -> tuple[PeerAnswer, list[Instruction]]:
        """Answer a peer; return also what follows for an own worker."""
        if isinstance(question, SurveyTrainer):  # its worker is stuck: the generation is broken
            self._nudged = max(self._nudged, (question.generation, question.attempt))
            workers = [self._with_promise(w) for w in own]
            return self._surveyed(workers, is_orphaned=is_orphaned), []
        worker = next((w for w in own if w.worker_id == question.worker_id), None)
        refusal = self._refusal(worker, question) if is_orphaned else "a daemon is running"
        if refusal:
            return Done(refusal=refusal), []
        if isinstance(question, PassCommit):
            return Done(), [TellOwn(worker_id=question.worker_id, body=question.body)]
        self._promised[question.worker_id] = (question.generation, question.attempt)
        return Done(), []

    def _refusal(self, worker: PeerStanding | None, question: Promise | PassCommit) -> str:
        if worker is None or worker.has_left or worker.has_finished:
            return "the worker is gone"
        if isinstance(question, PassCommit):
            is_promised = self._promised.get(worker.worker_id) == key_of(question.body)
            return "" if is_promised else "its number was not promised"
        is_new = (question.generation, question.attempt) > self._with_promise(worker).newest
        return "" if is_new else "a greater number is known"

    def _with_promise(self, worker: PeerStanding) -> PeerStanding:
        promised = self._promised.get(worker.worker_id, NO_KEY)
        return worker.model_copy(update={"promised": promised})

    def _surveyed(self, own: Sequence[PeerStanding], *, is_orphaned: bool = True) -> Surveyed:
        return Surveyed(is_orphaned=is_orphaned, workers=list(own), unreachable=self._silent)

    # ---- one round -----------------------------------------------------------------------

    def _decide(self, this: _Round, own: Sequence[PeerStanding], now_s: float) -> list[Instruction]:
        heard: Mapping[str, Answer] = {e: a for e, a in this.answers.items() if a is not None}
        if len(heard) < len(this.answers):
            return []
        verdict = judge(heard)
        match verdict:
            case NextGeneration() if verdict.roster[0].agent_endpoint == self._me:
                return self._propose(this, verdict, own, now_s)
            case tuple():
                this.answers.update(dict.fromkeys(m.agent_endpoint for m in verdict))
                generation, attempt = self._stuck(own)
                question = SurveyTrainer(
                    trainer_id=self.trainer_id, generation=generation, attempt=attempt
                )
                return [Ask(member=m, question=question) for m in verdict]
        self._give_up(now_s)
        if isinstance(verdict, str):
            return self._note(f"{self.trainer_id} waits for a daemon: {verdict}")
        return []  # the other agent reaches the same verdict

    def _propose(
        self, this: _Round, plan: NextGeneration, own: Sequence[PeerStanding], now_s: float
    ) -> list[Instruction]:
        this.plan = plan
        (generation, attempt), size = plan.key, len(plan.commit.members)
        what = f"{size} members" if size else "parked"
        out = self._note(f"{self.trainer_id}: generation {generation} without a daemon, {what}")
        for member in plan.roster:
            if member.agent_endpoint != self._me:
                question = Promise(
                    trainer_id=self.trainer_id,
                    worker_id=member.worker_id,
                    generation=generation,
                    attempt=attempt,
                )
                out.append(Ask(member=member, question=question))
                continue
            self._promised[member.worker_id] = plan.key
            this.promised.add(member.worker_id)
        if size:
            prepare = protocol.Prepare(generation=generation, attempt=attempt, open_store=True)
            out.append(TellOwn(worker_id=plan.roster[0].worker_id, body=prepare))
        return out + self._commit(this, plan, own, now_s)

    def _commit(
        self, this: _Round, plan: NextGeneration, own: Sequence[PeerStanding], now_s: float
    ) -> list[Instruction]:
        """Announce the generation once all have promised and the store is open."""
        first = next((w for w in own if w.worker_id == plan.roster[0].worker_id), None)
        if first is None or self._promised.get(first.worker_id) != plan.key:
            self._give_up(now_s)
            return []
        port = first.store_port if plan.commit.members and first.ready == plan.key else 0
        has_all = this.promised >= {m.worker_id for m in plan.roster}
        if not has_all or not (port or not plan.commit.members):
            return []
        token = self._new_token()
        commit = replace(plan.commit, token=token, store_port=port, origin=self._origin)
        out: list[Instruction] = []
        for member in plan.roster:
            if member.agent_endpoint == self._me:
                out.append(TellOwn(worker_id=member.worker_id, body=commit))
            else:
                question = PassCommit(
                    trainer_id=self.trainer_id, worker_id=member.worker_id, body=commit
                )
                out.append(Ask(member=member, question=question, tries=PASS_TRIES))
        self._give_up(now_s)
        self._noted = ""
        return out

    def _give_up(self, now_s: float) -> None:
        self._round = None
        self._not_before_s = now_s + RETRY_S

    def _note(self, text: str) -> list[Instruction]:
        is_new, self._noted = text != self._noted, text
        return [text] if is_new else []
