"""Agents whose daemon may die and return, around the model of workers.

Each agent has a real ``Regroup``; questions between agents are messages that arrive in
any order, late or never. The daemon is a real ``GenerationMachine`` with the real
adoption. The network may be cut in two. Used by the property test of regrouping.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bftrainer.elastic.process.control import key_of
from bftrainer.fleet.generations import stimuli
from bftrainer.fleet.generations.adoption import adopt
from bftrainer.fleet.generations.generation import GenerationMachine
from bftrainer.fleet.generations.members import (
    Instruction,
    Kill,
    NodeOffer,
    StartWorkerOn,
    Tell,
    Worker,
)
from bftrainer.fleet.wire.peers import NO_KEY, PeerAnswer, PeerStanding
from bftrainer.ground import protocol
from tests.support.generations import machine_of
from tests.support.worker_model import NO_STATE, Key, ModelWorker, World
from trainers.agent.regroup import Absent, Ask, Regroup, TellOwn
from trainers.agent.regroup import Instruction as AgentInstruction


@dataclass(slots=True)
class Record:
    """What an agent remembers of a worker."""

    commit: protocol.Commit | None = None
    entered: protocol.Commit | None = None
    latest: dict[str, protocol.Message] = field(default_factory=dict)
    step: int = 0

    def standing(self, worker_id: str) -> PeerStanding:
        interrupted, ready = self.latest.get("Interrupted"), self.latest.get("Ready")
        is_ready = isinstance(ready, protocol.Ready)
        return PeerStanding(
            worker_id=worker_id,
            commit=self.commit,
            entered=self.entered,
            interrupted=_number(interrupted),
            ready=_number(ready),
            store_port=ready.store_port if is_ready else 0,  # type: ignore[union-attr]  # is_ready
            step=self.step,
            has_left="Left" in self.latest,
        )


@dataclass(slots=True)
class Agent:
    """One agent; ``is_written_off``: the daemon counted it as lost before it died."""

    pilot_id: str
    node: str
    machine: Regroup
    records: dict[str, Record] = field(default_factory=dict)
    is_written_off: bool = False


@dataclass(slots=True, kw_only=True)
class Question:
    """On its way from one agent to another."""

    sender: str  # pilot ids
    what: Ask

    @property
    def to(self) -> str:
        return self.what.member.agent_endpoint


class Orphans(World):
    """Workers, agents, and a daemon that comes and goes."""

    def __init__(self, *, n_min: int, sizes: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.n_min, self.sizes = n_min, sizes
        self.agents: dict[str, Agent] = {}
        self.questions: list[Question] = []
        self.cut: set[str] = set()  # pilots on the far side
        self.machine: GenerationMachine | None = None
        self.now_s = 0.0
        self.incarnation = self.last_generation = 0
        self.numbers: dict[Key, tuple[str, ...]] = {}  # rosters by token, see _note
        self._tokens, self._pilots = itertools.count(), itertools.count(1)

    # ---- the daemon ----------------------------------------------------------------------

    def start_daemon(self) -> None:
        """A daemon comes (back) and adopts what the agents it can hear report."""
        self.incarnation += 1
        self.machine = machine_of(
            GenerationMachine,
            n_min=self.n_min,
            sizes=self.sizes,
            n_max=4,
            join_window_s=0.5,
            start_timeout_s=1e9,
            last_generation=self.last_generation,
            incarnation=self.incarnation,
        )
        workers, reports = [], {}
        for agent in self.agents.values():
            agent.is_written_off = False
            self.channels[agent.pilot_id].to_daemon.clear()
            for worker_id, record in agent.records.items():
                offer = self._offer(agent)
                workers.append(
                    Worker(
                        worker_id=worker_id,
                        pilot_id=agent.pilot_id,
                        node=agent.node,
                        address=offer.address,
                        agent_endpoint=offer.agent_endpoint,
                        agent_public_key=offer.agent_public_key,
                        started_s=self.now_s,
                    )
                )
                commit = [record.commit] if record.commit else []
                reports[worker_id] = [*record.latest.values(), *commit]
        adopt(self.machine, workers, reports)
        self.retarget()

    def kill_daemon(self) -> None:
        """It dies; what it had sent arrives, what agents say is for the next one."""
        if self.machine is None:
            return
        self.last_generation = self.machine.numbers.generation
        self.machine = None
        for channel in self.channels.values():
            channel.to_daemon.clear()

    def retarget(self) -> None:
        if self.machine is not None:
            offers = [self._offer(a) for a in self.agents.values() if a.pilot_id not in self.cut]
            self._handle(stimuli.TargetsSet(offers=tuple(offers)))

    def tick(self, seconds: float) -> None:
        self.now_s += seconds
        if self.machine is not None:
            self._handle(stimuli.TimePassed())
        for agent in list(self.agents.values()):
            self.look(agent)

    def hear(self, pilot_id: str) -> None:
        """The next report of an agent reaches the daemon."""
        worker_id, what = self.channels[pilot_id].to_daemon.popleft()
        if self.machine is None:
            return
        if isinstance(what, int):
            self._handle(stimuli.WorkerEnded(worker_id=worker_id, returncode=what, cause=""))
        else:
            self._handle(stimuli.WorkerMessage(worker_id=worker_id, message=what))

    def _handle(self, stimulus: stimuli.Stimulus) -> None:
        assert self.machine is not None
        self._obey(self.machine.handle(stimulus, self.now_s))

    def _obey(self, instructions: Sequence[Instruction]) -> None:
        if self.machine is not None:
            self.last_generation = max(self.last_generation, self.machine.numbers.generation)
        self.carry_out(instructions)

    # ---- agents ------------------------------------------------------------------------

    def open_agent(self, node: str) -> None:
        pilot_id = f"p{next(self._pilots)}"
        self.add_agent(pilot_id, node)
        machine = Regroup("t1", me=pilot_id, origin=pilot_id, new_token=self._new_token)
        self.agents[pilot_id] = Agent(pilot_id, node, machine)

    def end_agent(self, pilot_id: str) -> None:
        """Its process ends, and its workers with it."""
        self.lose_agent(pilot_id)
        del self.agents[pilot_id]
        self.cut.discard(pilot_id)
        if self.machine is not None:
            self._handle(stimuli.AgentLost(pilot_id=pilot_id))

    def cut_off(self, pilot_ids: set[str]) -> None:
        """Nothing passes any more between these agents and the rest, or the daemon."""
        self.cut = pilot_ids & set(self.agents)
        if self.machine is not None:
            for pilot_id in sorted(self.cut):
                self.agents[pilot_id].is_written_off = True
                self.channels[pilot_id].to_agent.clear()
                self._handle(stimuli.AgentLost(pilot_id=pilot_id))

    def heal(self) -> None:
        """The network is whole; a daemon tells workers that it gave up to go."""
        self.cut = set()
        if self.machine is None:
            return
        for agent in self.agents.values():
            if agent.is_written_off:
                agent.is_written_off = False
                for worker_id in list(agent.records):
                    self.die(worker_id, -9)
        self.retarget()

    def deliver_to_agent(self, pilot_id: str) -> None:
        instruction = self.channels[pilot_id].to_agent[0]
        agent = self.agents[pilot_id]
        if isinstance(instruction, StartWorkerOn):
            agent.records[instruction.worker_id] = Record()
        elif isinstance(instruction, Tell) and instruction.worker_id in agent.records:
            body = protocol.from_body(dict(instruction.body))
            if isinstance(body, protocol.Commit):
                self._note(body)
                agent.records[instruction.worker_id].commit = body
        elif isinstance(instruction, Kill):
            agent.records.pop(instruction.worker_id, None)
        super().deliver_to_agent(pilot_id)

    def look(self, agent: Agent) -> None:
        """Let an agent's machine see what its agent knows."""
        out = agent.machine.advance(
            self._standings(agent), is_orphaned=self._is_orphaned(agent), now_s=self.now_s
        )
        self._follow(agent, out)

    def _is_orphaned(self, agent: Agent) -> bool:
        return self.machine is None and not agent.is_written_off

    def _standings(self, agent: Agent) -> list[PeerStanding]:
        return [r.standing(worker_id) for worker_id, r in agent.records.items()]

    def _follow(self, agent: Agent, instructions: Sequence[AgentInstruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, Ask):
                self.questions.append(Question(sender=agent.pilot_id, what=instruction))
            elif isinstance(instruction, TellOwn):
                self._tell(agent, instruction.worker_id, instruction.body)

    def _tell(self, agent: Agent, worker_id: str, body: protocol.Message) -> None:
        if isinstance(body, protocol.Commit):
            self._note(body)
            agent.records[worker_id].commit = body
        self._hear(self.workers[worker_id], body)

    # ---- questions among agents ------------------------------------------------------------

    def arrive(self, question: Question, *, is_lost: bool = False) -> None:
        """A question arrives and is answered, or is lost on the way."""
        self.questions.remove(question)
        sender, other = self.agents.get(question.sender), self.agents.get(question.to)
        if sender is None:
            return
        is_across = (question.sender in self.cut) != (question.to in self.cut)
        answer: PeerAnswer | Absent = Absent.SILENT
        if not is_across and not is_lost:
            answer = Absent.GONE if other is None else self._answer(other, question.what)
        self._follow(sender, sender.machine.on_answer(question.what, answer, self.now_s))
        self.look(sender)

    def _answer(self, other: Agent, asked: Ask) -> PeerAnswer:
        answer, instructions = other.machine.answer(
            self._standings(other), asked.question, is_orphaned=self._is_orphaned(other)
        )
        self._follow(other, instructions)
        return answer

    # ---- workers, as their agents see them ---------------------------------------------------

    def _say(self, worker: ModelWorker, body: protocol.Message) -> None:
        super()._say(worker, body)
        record = self.agents[worker.pilot_id].records.get(worker.worker_id)
        if record is None:
            return
        record.latest.pop(type(body).__name__, None)
        record.latest[type(body).__name__] = body
        record.step = getattr(body, "step", record.step)
        if isinstance(body, protocol.Entered) and record.commit is not None:
            is_same = key_of(record.commit) == (body.generation, body.attempt)
            record.entered = record.commit if is_same else record.entered

    def die(self, worker_id: str, returncode: int) -> None:
        super().die(worker_id, returncode)
        for agent in self.agents.values():
            agent.records.pop(worker_id, None)

    def moves(self) -> list[tuple[str, str]]:
        found = super().moves()
        busy = {name for _, name in found}
        for worker in self.workers.values():
            if worker.worker_id not in busy and self._cannot_form(worker):
                found.append(("fail", worker.worker_id))
        return found

    def move(self, what: str, worker_id: str) -> None:
        if what != "fail":
            super().move(what, worker_id)
            return
        worker = self.workers[worker_id]
        commit = worker.newer
        assert commit is not None
        worker.seen = key_of(commit)
        self._say(worker, _interrupted(commit, worker.step))

    def live(self) -> list[protocol.Commit]:
        """The generations that train: all their members are in them."""
        groups = {key_of(w.group): w.group for w in self.workers.values() if w.group}
        return [c for c in groups.values() if self._all_entered(c) and not self._is_torn(c)]

    def _cannot_form(self, worker: ModelWorker) -> bool:
        """A roster whose members will not all come: the group is not built."""
        commit = worker.newer
        if commit is None or not worker.is_waiting or not worker.is_warm or not commit.members:
            return False
        for member in commit.members:
            peer = self.workers.get(member.worker_id)
            if peer is None or peer.seen > key_of(commit):
                return True
        return self._is_torn(commit)

    def _is_torn(self, commit: protocol.Commit) -> bool:
        sides = {m.agent_endpoint in self.cut for m in commit.members}
        return len(sides) > 1

    def _is_broken(self, worker: ModelWorker) -> bool:
        torn = worker.group is not None and self._is_torn(worker.group)
        return torn or super()._is_broken(worker)

    def _may_connect(self, worker: ModelWorker) -> bool:
        newer = worker.newer
        return newer is not None and not self._is_torn(newer) and super()._may_connect(worker)

    # ---- helpers -----------------------------------------------------------------------

    def _note(self, commit: protocol.Commit) -> None:
        key = key_of(commit)
        roster = tuple(m.worker_id for m in commit.members)
        if commit.origin:
            known = self.numbers.setdefault(key, roster)
            is_over = self.workers.keys().isdisjoint(known)  # nobody is left who could say so
            assert is_over or known == roster, "a number was used twice"
            self.numbers[key] = roster

    def _new_token(self) -> str:
        return f"token{next(self._tokens)}"

    def _offer(self, agent: Agent) -> NodeOffer:
        return NodeOffer(
            node=agent.node,
            pilot_id=agent.pilot_id,
            address=f"addr-{agent.node}",
            agent_endpoint=agent.pilot_id,
            agent_public_key=f"key-{agent.pilot_id}",
        )


def _number(body: protocol.Message | None) -> Key:
    if isinstance(body, protocol.Interrupted | protocol.Ready):
        return (body.generation, body.attempt)
    return NO_KEY


def _interrupted(commit: protocol.Commit, step: int) -> protocol.Interrupted:
    return protocol.Interrupted(
        generation=commit.generation,
        attempt=commit.attempt,
        step=max(step, 0),
        reason="it did not form",
    )


def drain(
    world: Orphans, pick: Callable[[int], int], *, rounds: int, is_done: Callable[[], bool]
) -> None:
    """Let everything under way happen, in an order that ``pick`` draws."""
    for _ in range(rounds):
        if is_done():
            return
        one(world, pick)
        world.tick(0.1)


def one(world: Orphans, pick: Callable[[int], int]) -> None:
    """Deliver and do one of everything."""
    for channel in list(world.channels.values()):
        while channel.to_agent:
            world.deliver_to_agent(channel.pilot_id)
    moves = world.moves()
    if moves:
        world.move(*moves[pick(len(moves))])
    for pilot_id in list(world.channels):
        while world.channels[pilot_id].to_daemon and pilot_id not in world.cut:
            world.hear(pilot_id)
    for _ in range(4):
        if world.questions:
            world.arrive(world.questions[pick(len(world.questions))])


__all__ = ["NO_STATE", "Orphans", "drain", "one"]
