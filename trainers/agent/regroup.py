"""State machine for a trainer that loses members while no daemon is running.

survey → judge → promise → commit. Every agent with a stuck worker surveys the agents of its
rosters; the one of the lowest surviving rank announces the next generation once all others have
promised its number. An agent gives a promise, and forwards a commit, only while it knows that no
daemon is running, so a returning daemon is never overridden. No I/O and no clock;
``trainers.agent.peer_recovery`` carries out the instructions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from bftrainer.elastic import protocol
from bftrainer.elastic.control import Key, key_of
from bftrainer.elastic.protocol import Commit, Member
from trainers.agent.quorum import (
    NO_KEY,
    Answer,
    Answered,
    AskMore,
    NextGeneration,
    QuorumMember,
    Wait,
    judge,
)

RETRY_S = 0.3
ROUND_LIMIT_S = 6.0  # then a new round begins
PASS_TRIES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """Ask the agent of a member for the status of its workers."""

    member: Member
    stuck: Key  # number of the generation in which a worker is stuck


@dataclass(frozen=True, slots=True, kw_only=True)
class AskPromise:
    """Ask the agent of a member to refuse smaller numbers from now on."""

    member: Member
    key: Key


@dataclass(frozen=True, slots=True, kw_only=True)
class TellOwn:
    """Send a body to a worker of this agent."""

    worker_id: str
    body: protocol.Prepare | Commit


@dataclass(frozen=True, slots=True, kw_only=True)
class PassOn:
    """Ask the agent of a member to forward a commit to it."""

    member: Member
    commit: Commit


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Log a text."""

    text: str


Instruction = Survey | AskPromise | TellOwn | PassOn | Note


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
        self._passing: dict[str, tuple[PassOn, int]] = {}  # by worker id, with remaining tries
        self._not_before_s = 0.0
        self._nudged: Key = NO_KEY  # number with which a peer's worker is stuck
        self._noted = ""

    # ---- events ------------------------------------------------------------------------

    def advance(
        self, own: Sequence[QuorumMember], *, is_orphaned: bool, now_s: float
    ) -> list[Instruction]:
        """Return the next instructions; called on every change and periodically."""
        own = [self.with_promise(w) for w in own]
        if not is_orphaned:
            self._round, self._passing = None, {}
            return []
        if self._stuck(own) == NO_KEY:
            self._round = None
            return []
        if self._round is not None and now_s > self._round.ends_s:
            self._give_up(now_s)
        if self._round is None:
            return self._begin(own, now_s) if now_s >= self._not_before_s else []
        self._round.answers[self._me] = Answered(is_orphaned=True, workers=tuple(own))
        if self._round.plan is None:
            return self._decide(self._round, own, now_s)
        return self._commit(self._round, self._round.plan, own, now_s)

    def on_answer(self, endpoint: str, answer: Answer) -> None:
        """Record the answer to a survey, or its absence."""
        if self._round is not None and endpoint in self._round.answers:
            self._round.answers[endpoint] = answer

    def on_promise(self, worker_id: str, key: Key, *, is_given: bool, now_s: float) -> None:
        """Record that an agent gave or refused its promise."""
        this = self._round
        if this is None or this.plan is None or this.plan.key != key:
            return
        if is_given:
            this.promised.add(worker_id)
        else:
            self._give_up(now_s)

    def on_passed(self, worker_id: str, key: Key, *, is_done: bool) -> list[Instruction]:
        """Record whether a commit reached an agent; if not, resend it a few times."""
        order, tries = self._passing.pop(worker_id, (None, 0))
        if order is None or key_of(order.commit) != key or is_done or tries <= 0:
            return []
        self._passing[worker_id] = (order, tries - 1)
        return [order]

    def nudge(self, stuck: Key) -> None:
        """Record that a peer's worker is stuck with this number: the generation is broken."""
        self._nudged = max(self._nudged, stuck)

    def _stuck(self, own: Sequence[QuorumMember]) -> Key:
        """Return the greatest number with which an own worker is stuck, else ``NO_KEY``."""
        keys = [
            key_of(w.commit)
            for w in own
            if w.commit is not None and (w.is_stuck or key_of(w.commit) <= self._nudged)
        ]
        return max(keys, default=NO_KEY)

    # ---- questions of a peer -------------------------------------------------------------

    def with_promise(self, worker: QuorumMember) -> QuorumMember:
        """Return the status including what was promised for that worker."""
        promised = self._promised.get(worker.worker_id, NO_KEY)
        fields = {name: getattr(worker, name) for name in QuorumMember.__slots__}
        return QuorumMember(**{**fields, "promised": promised})

    def promise(self, worker: QuorumMember | None, key: Key, *, is_orphaned: bool) -> str:
        """Promise a number for a worker; return why not, "" if it is promised."""
        if not is_orphaned:
            return "a daemon is running"
        if worker is None or worker.has_left or worker.has_finished:
            return "the worker is gone"
        if key <= self.with_promise(worker).newest:
            return "a greater number is known"
        self._promised[worker.worker_id] = key
        return ""

    def accept(self, worker: QuorumMember | None, commit: Commit, *, is_orphaned: bool) -> str:
        """Return why a peer's commit may not be forwarded to a worker, "" if it may."""
        if not is_orphaned:
            return "a daemon is running"
        if worker is None:
            return "the worker is gone"
        if self._promised.get(worker.worker_id) != key_of(commit):
            return "its number was not promised"
        return ""

    # ---- one round -----------------------------------------------------------------------

    def _begin(self, own: Sequence[QuorumMember], now_s: float) -> list[Instruction]:
        mine = Answered(is_orphaned=True, workers=tuple(own))
        self._round = _Round(now_s + ROUND_LIMIT_S, {self._me: mine})
        return self._decide(self._round, own, now_s)

    def _decide(self, this: _Round, own: Sequence[QuorumMember], now_s: float) -> list[Instruction]:
        heard: Mapping[str, Answer] = {e: a for e, a in this.answers.items() if a is not None}
        if len(heard) < len(this.answers):
            return []
        verdict = judge(heard)
        match verdict:
            case AskMore():
                this.answers.update(dict.fromkeys(m.agent_endpoint for m in verdict.members))
                stuck = self._stuck(own)
                return [Survey(member=m, stuck=stuck) for m in verdict.members]
            case Wait():
                self._give_up(now_s)
                return self._note(f"{self.trainer_id} waits for a daemon: {verdict.reason}")
            case NextGeneration() if verdict.roster[0].agent_endpoint != self._me:
                self._give_up(now_s)  # that agent reaches the same verdict
                return []
        return self._propose(this, verdict, own, now_s)

    def _propose(
        self, this: _Round, plan: NextGeneration, own: Sequence[QuorumMember], now_s: float
    ) -> list[Instruction]:
        this.plan = plan
        out = self._note(
            f"{self.trainer_id}: generation {plan.generation} without a daemon,"
            f" {'parked' if plan.is_park else f'{len(plan.roster)} members'}"
        )
        for member in plan.roster:
            if member.agent_endpoint != self._me:
                out.append(AskPromise(member=member, key=plan.key))
                continue
            self._promised[member.worker_id] = plan.key
            this.promised.add(member.worker_id)
        if not plan.is_park:
            prepare = protocol.Prepare(
                generation=plan.generation, attempt=plan.key[1], open_store=True
            )
            out.append(TellOwn(worker_id=plan.roster[0].worker_id, body=prepare))
        return out + self._commit(this, plan, own, now_s)

    def _commit(
        self, this: _Round, plan: NextGeneration, own: Sequence[QuorumMember], now_s: float
    ) -> list[Instruction]:
        """Announce the generation once all have promised and the store is open."""
        first = next((w for w in own if w.worker_id == plan.roster[0].worker_id), None)
        if first is None or self._promised.get(first.worker_id) != plan.key:
            self._give_up(now_s)
            return []
        port = first.store_port if first.ready == plan.key else 0
        if this.promised < {m.worker_id for m in plan.roster} or not (port or plan.is_park):
            return []
        commit = self._commit_of(plan, port)
        out: list[Instruction] = []
        for member in plan.roster:
            if member.agent_endpoint == self._me:
                out.append(TellOwn(worker_id=member.worker_id, body=commit))
            else:
                order = PassOn(member=member, commit=commit)
                self._passing[member.worker_id] = (order, PASS_TRIES)
                out.append(order)
        self._give_up(now_s)
        self._noted = ""
        return out

    def _commit_of(self, plan: NextGeneration, port: int) -> Commit:
        roster = () if plan.is_park else plan.roster
        members = (
            Member(
                worker_id=m.worker_id,
                rank=rank,
                node=m.node,
                address=m.address,
                agent_endpoint=m.agent_endpoint,
                agent_public_key=m.agent_public_key,
            )
            for rank, m in enumerate(roster)
        )
        return Commit(
            generation=plan.generation,
            attempt=plan.key[1],
            token=self._new_token(),
            members=tuple(members),
            store_host=plan.roster[0].address if roster else "",
            store_port=port,
            abandon=True,
            incarnation=plan.incarnation,
            saver=plan.saver if plan.is_park else "",
            n_min=plan.n_min,
            origin=self._origin,
        )

    def _give_up(self, now_s: float) -> None:
        self._round = None
        self._not_before_s = now_s + RETRY_S

    def _note(self, text: str) -> list[Instruction]:
        is_new, self._noted = text != self._noted, text
        return [Note(text=text)] if is_new else []
