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

from bftrainer.elastic.process.control import Key, key_of
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

RETRY_S = 0.3
ROUND_LIMIT_S = 6.0  # then a new round begins
PASS_TRIES = 5


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
    surveys = {endpoint: a for endpoint, a in answers.items() if isinstance(a, Surveyed)}
    commits = _commits(surveys.values())
    if not commits:
        return "no worker here has been in a generation"
    members = _members(commits)
    if unasked := {m.agent_endpoint: m for m in members if m.agent_endpoint not in answers}:
        return tuple(unasked.values())
    standing = _standing(surveys, members)
    alive = [m for m in members if m.worker_id in standing and not standing[m.worker_id].has_left]
    apart = _apart(answers, alive)
    together = [m for m in alive if m.agent_endpoint not in apart]
    reason = _why_not(answers, standing, members, together, apart)
    return reason or _next(commits, standing, together)


def _commits(surveys: Iterable[Surveyed]) -> list[Commit]:
    """Return the generations that workers were told of, or have entered."""
    commits: list[Commit] = []
    for survey in surveys:
        for worker in survey.workers:
            commits += filter(None, (worker.commit, worker.entered))
    return commits


def _standing(
    surveys: Mapping[str, Surveyed], members: Sequence[Member]
) -> Mapping[str, PeerStanding]:
    """Return workers by id; an agent's answer counts only for workers of its own node."""
    endpoints = {m.worker_id: m.agent_endpoint for m in members}
    standing: dict[str, PeerStanding] = {}
    for endpoint, survey in surveys.items():
        for worker in survey.workers:
            if endpoints.get(worker.worker_id, endpoint) == endpoint:
                standing[worker.worker_id] = worker
    return standing


def _apart(answers: Mapping[str, Answer], alive: Sequence[Member]) -> frozenset[str]:
    """Return the fewest agents without which all others reach each other."""
    endpoints = dict.fromkeys(m.agent_endpoint for m in alive)
    pairs: list[frozenset[str]] = []
    for endpoint, answer in answers.items():
        if isinstance(answer, Surveyed) and endpoint in endpoints:
            silent = [peer for peer in answer.unreachable if peer in endpoints]
            pairs += [frozenset((endpoint, peer)) for peer in silent]
    return cover(pairs, tuple(endpoints))


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
    for member in alive:
        answer = answers[member.agent_endpoint]
        if not isinstance(answer, Surveyed) or not answer.is_orphaned:
            return "one of its agents is connected to a daemon"
    return ""


def _next(
    commits: Sequence[Commit], standing: Mapping[str, PeerStanding], alive: Sequence[Member]
) -> NextGeneration:
    newest = max(commits, key=key_of)
    keys = [key_of(newest), *(w.newest for w in standing.values())]
    size = len(alive)
    if newest.sizes:
        size = max((size for size in newest.sizes if size <= len(alive)), default=0)
    is_park = size < newest.n_min or not newest.members
    roster = () if is_park else alive[:size]
    saver = max(alive, key=lambda m: standing[m.worker_id].step).worker_id
    commit = Commit(
        generation=max(keys)[0] + 1,
        attempt=1,
        token="",
        members=tuple(replace(m, rank=rank) for rank, m in enumerate(roster)),
        store_host=roster[0].address if roster else "",
        abandon=True,
        incarnation=max(c.incarnation for c in commits),
        saver=saver if is_park else "",
        n_min=newest.n_min,
        batch=newest.batch,
        sizes=newest.sizes,
    )
    return NextGeneration(roster=tuple(alive), commit=commit)


def _members(commits: Iterable[Commit]) -> list[Member]:
    """Return all members of the rosters, newest roster first, each in rank order."""
    by_worker: dict[str, Member] = {}
    for commit in sorted(commits, key=key_of, reverse=True):
        for member in sorted(commit.members, key=lambda m: m.rank):
            by_worker.setdefault(member.worker_id, member)
    return list(by_worker.values())


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
        workers = list(map(self._with_promise, own))
        self._is_orphaned = is_orphaned
        if not is_orphaned or self._stuck(workers) == NO_KEY:
            self._round = None
            return []
        if self._round is not None and now_s > self._round.ends_s:
            self._give_up(now_s)
        if self._round is None:
            if now_s < self._not_before_s:
                return []
            self._round = _Round(now_s + ROUND_LIMIT_S, {})
        self._round.answers[self._me] = self._surveyed(workers)
        if self._round.plan is None:
            return self._decide(self._round, workers, now_s)
        return self._commit(self._round, self._round.plan, workers, now_s)

    def on_answer(
        self, asked: Ask, answer: Surveyed | Done | Absent, now_s: float
    ) -> list[Instruction]:
        """Record an agent's answer, or its absence; return the next instructions."""
        current, question = self._round, asked.question
        is_done = isinstance(answer, Done) and not answer.refusal
        match question:
            case SurveyTrainer():
                endpoint = asked.member.agent_endpoint
                if current is not None and endpoint in current.answers:
                    current.answers[endpoint] = (
                        Absent.SILENT if isinstance(answer, Done) else answer
                    )
            case Promise():
                key = (question.generation, question.attempt)
                if current is None or current.plan is None or current.plan.key != key:
                    return []  # of an earlier round
                if is_done:
                    current.promised.add(question.worker_id)
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
            workers = list(map(self._with_promise, own))
            return self._surveyed(workers, is_orphaned=is_orphaned), []
        worker = next((w for w in own if w.worker_id == question.worker_id), None)
        if not is_orphaned:
            return Done(refusal="a daemon is running"), []
        if refusal := self._refusal(worker, question):
            return Done(refusal=refusal), []
        if isinstance(question, PassCommit):
            return Done(), [TellOwn(worker_id=question.worker_id, body=question.body)]
        self._promised[question.worker_id] = (question.generation, question.attempt)
        return Done(), []

    def _refusal(self, worker: PeerStanding | None, question: Promise | PassCommit) -> str:
        if worker is None or worker.has_left or worker.has_finished:
            return "the worker is gone"
        if isinstance(question, PassCommit):
            if self._promised.get(worker.worker_id) != key_of(question.body):
                return "its number was not promised"
        elif (question.generation, question.attempt) <= self._with_promise(worker).newest:
            return "a greater number is known"
        return ""

    def _with_promise(self, worker: PeerStanding) -> PeerStanding:
        promised = self._promised.get(worker.worker_id, NO_KEY)
        return worker.model_copy(update={"promised": promised})

    def _surveyed(self, own: Sequence[PeerStanding], *, is_orphaned: bool = True) -> Surveyed:
        return Surveyed(is_orphaned=is_orphaned, workers=list(own), unreachable=self._silent)

    # ---- one round -----------------------------------------------------------------------

    def _decide(
        self, current: _Round, own: Sequence[PeerStanding], now_s: float
    ) -> list[Instruction]:
        heard: Mapping[str, Answer] = {e: a for e, a in current.answers.items() if a is not None}
        if len(heard) < len(current.answers):
            return []
        verdict = judge(heard)
        match verdict:
            case NextGeneration() if verdict.roster[0].agent_endpoint == self._me:
                return self._propose(current, verdict, own, now_s)
            case tuple():
                current.answers.update(dict.fromkeys(m.agent_endpoint for m in verdict))
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
        self, current: _Round, plan: NextGeneration, own: Sequence[PeerStanding], now_s: float
    ) -> list[Instruction]:
        current.plan = plan
        (generation, attempt), size = plan.key, len(plan.commit.members)
        outcome = f"{size} members" if size else "parked"
        out = self._note(f"{self.trainer_id}: generation {generation} without a daemon, {outcome}")
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
            current.promised.add(member.worker_id)
        if size:
            prepare = protocol.Prepare(generation=generation, attempt=attempt, open_store=True)
            out.append(TellOwn(worker_id=plan.roster[0].worker_id, body=prepare))
        return out + self._commit(current, plan, own, now_s)

    def _commit(
        self, current: _Round, plan: NextGeneration, own: Sequence[PeerStanding], now_s: float
    ) -> list[Instruction]:
        """Announce the generation once all have promised and the store is open."""
        first = next((w for w in own if w.worker_id == plan.roster[0].worker_id), None)
        if first is None or self._promised.get(first.worker_id) != plan.key:
            self._give_up(now_s)
            return []
        port = first.store_port if plan.commit.members and first.ready == plan.key else 0
        has_all = current.promised >= {m.worker_id for m in plan.roster}
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
        if text == self._noted:
            return []
        self._noted = text
        return [text]
