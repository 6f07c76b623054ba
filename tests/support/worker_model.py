"""A world of workers that follow the protocol faithfully, in any order, and may die.

Instructions of a ``GenerationMachine`` come in, what agents report goes out, each over
the agent's own ordered channel. Messages and steps of workers happen one at a time, so
a test can interleave them as it likes. Used by the property test of generations.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from bftrainer.fleet.generations.members import Instruction, Kill, StartWorkerOn, Tell
from bftrainer.ground import protocol

Key = tuple[int, int]
NOWHERE: Key = (0, 0)
NO_STATE = -1


@dataclass(slots=True, kw_only=True)
class ModelWorker:
    """One process: its control thread answers at once, its main thread moves by steps."""

    worker_id: str
    pilot_id: str
    is_warm: bool = False
    newest: protocol.Commit | None = None
    seen: Key = NOWHERE  # newest commit acted upon
    group: protocol.Commit | None = None  # in whose generation it trains
    forming: protocol.Commit | None = None  # connected, has not entered yet
    is_waiting: bool = False  # out of the old generation (or never in one)
    step: int = NO_STATE
    told_interrupted: bool = False

    @property
    def newer(self) -> protocol.Commit | None:
        """The commit it still has to act upon."""
        if self.newest is None or _key(self.newest) <= self.seen:
            return None
        return self.newest


@dataclass(slots=True, kw_only=True)
class Channel:
    """An agent and both directions of its connection."""

    pilot_id: str
    node: str
    to_agent: deque[Instruction] = field(default_factory=deque)
    to_daemon: deque[tuple[str, protocol.Message | int]] = field(default_factory=deque)


def _key(commit: protocol.Commit) -> Key:
    return (commit.generation, commit.attempt)


class World:
    """Agents and workers; ``checkpoint`` is the step on disk."""

    def __init__(self) -> None:
        self.channels: dict[str, Channel] = {}
        self.workers: dict[str, ModelWorker] = {}  # alive ones
        self.checkpoint = 0

    # ---- the daemon's side -------------------------------------------------------------

    def carry_out(self, instructions: Sequence[Instruction]) -> None:
        """Send instructions to their agents; one whose agent is gone is lost."""
        for instruction in instructions:
            if isinstance(instruction, StartWorkerOn | Tell | Kill):
                channel = self.channels.get(instruction.pilot_id)
                if channel is not None:
                    channel.to_agent.append(instruction)

    # ---- agents ------------------------------------------------------------------------

    def add_agent(self, pilot_id: str, node: str) -> None:
        self.channels[pilot_id] = Channel(pilot_id=pilot_id, node=node)

    def lose_agent(self, pilot_id: str) -> None:
        """The agent, its workers and all that was under way are gone."""
        del self.channels[pilot_id]
        for worker in [w for w in self.workers.values() if w.pilot_id == pilot_id]:
            del self.workers[worker.worker_id]

    def deliver_to_agent(self, pilot_id: str) -> None:
        """Let the next instruction arrive."""
        channel = self.channels[pilot_id]
        instruction = channel.to_agent.popleft()
        if isinstance(instruction, StartWorkerOn):
            worker_id = instruction.worker_id
            assert worker_id not in self.workers, "two workers of one name"
            self.workers[worker_id] = ModelWorker(worker_id=worker_id, pilot_id=pilot_id)
        elif isinstance(instruction, Kill):
            self.die(instruction.worker_id, -9)
        elif isinstance(instruction, Tell) and instruction.worker_id in self.workers:
            self._hear(
                self.workers[instruction.worker_id], protocol.from_body(dict(instruction.body))
            )

    def _hear(self, worker: ModelWorker, body: protocol.Message) -> None:
        if isinstance(body, protocol.Prepare):
            self._say(
                worker,
                protocol.Ready(
                    generation=body.generation,
                    attempt=body.attempt,
                    store_port=4000 if body.open_store else 0,
                ),
            )
        elif isinstance(body, protocol.Commit) and (
            worker.newest is None or _key(body) > _key(worker.newest)
        ):
            worker.newest = body

    def _say(self, worker: ModelWorker, body: protocol.Message) -> None:
        self.channels[worker.pilot_id].to_daemon.append((worker.worker_id, body))

    def die(self, worker_id: str, returncode: int) -> None:
        """The process ends; its agent reports it after all it has said."""
        worker = self.workers.pop(worker_id, None)
        if worker is not None:
            self.channels[worker.pilot_id].to_daemon.append((worker_id, returncode))

    # ---- what main threads do -------------------------------------------------------------

    def moves(self) -> list[tuple[str, str]]:
        """Everything some worker can do now, as (what, who)."""
        found: list[tuple[str, str]] = []
        for worker in self.workers.values():
            name = worker.worker_id
            if not worker.is_warm:
                found.append(("warm", name))
            elif worker.forming is not None:
                found.append(("enter", name))
            elif worker.group is not None:
                if self._is_broken(worker) or (worker.newer and worker.newer.abandon):
                    found.append(("interrupt", name))
                elif self._at_boundary(worker):
                    found.append(("switch", name))
            elif self._may_leave(worker):
                found.append(("leave", name))
            elif self._may_connect(worker):
                found.append(("connect", name))
        return found

    def move(self, what: str, worker_id: str) -> None:
        """Do one of ``moves``."""
        worker = self.workers[worker_id]
        if what == "warm":
            worker.is_warm = worker.is_waiting = True
            self._say(worker, protocol.Warm(warm_up_s=1.0))
        elif what == "interrupt":
            self._interrupt(worker)
        elif what == "switch":
            self._switch(worker)
        elif what == "leave":
            self._leave(worker)
        elif what == "connect":
            self._connect(worker)
        elif what == "enter":
            self._enter(worker)

    def train(self, worker_id: str) -> bool:
        """Commit a step of a generation whose members are all in it; return whether."""
        worker = self.workers[worker_id]
        if worker.group is None or self._is_broken(worker) or not self._all_entered(worker.group):
            return False
        members = [self.workers[m.worker_id] for m in worker.group.members]
        for member in members:
            member.step += 1
        self._say(
            worker,
            protocol.Progress(
                generation=worker.group.generation,
                step=worker.step,
                epoch=0,
                samples=worker.step,
                step_s=0.1,
                samples_per_s=10.0 * len(members),
            ),
        )
        return True

    def finish(self, worker_id: str) -> None:
        """Its script has come to the end."""
        worker = self.workers[worker_id]
        assert worker.group is not None
        self._say(
            worker,
            protocol.Finished(
                generation=worker.group.generation,
                step=worker.step,
                epoch=1,
                samples=worker.step,
            ),
        )
        self.die(worker_id, 0)

    def save(self) -> None:
        """A periodic checkpoint by whoever is rank 0."""
        for worker in self.workers.values():
            if worker.group and worker.group.members[0].worker_id == worker.worker_id:
                self.checkpoint = max(self.checkpoint, worker.step)

    def _all_entered(self, commit: protocol.Commit) -> bool:
        return all(
            (peer := self.workers.get(m.worker_id)) is not None and peer.group == commit
            for m in commit.members
        )

    def _is_broken(self, worker: ModelWorker) -> bool:
        """Whether a peer has gone from this worker's generation other than by its switch."""
        if worker.group is None:
            return False
        for member in worker.group.members:
            peer = self.workers.get(member.worker_id)
            is_there = peer is not None and worker.group in (peer.group, peer.forming)
            if not is_there:
                return True
        return False

    def _at_boundary(self, worker: ModelWorker) -> bool:
        """All members hold a newer commit, so the flag in the last bucket is complete."""
        return (
            worker.group is not None
            and self._all_entered(worker.group)
            and all(self.workers[m.worker_id].newer for m in worker.group.members)
        )

    def _switch(self, worker: ModelWorker) -> None:
        """All members pass the boundary together."""
        assert worker.group is not None
        for member in worker.group.members:
            peer = self.workers[member.worker_id]
            peer.is_waiting, peer.group = True, None

    def _interrupt(self, worker: ModelWorker) -> None:
        """A collective failed: say so, wait for the newest commit."""
        assert worker.group is not None
        self._say(
            worker,
            protocol.Interrupted(
                generation=worker.group.generation,
                attempt=worker.group.attempt,
                step=worker.step,
                reason="reset",
            ),
        )
        worker.is_waiting, worker.group = True, None

    def _may_leave(self, worker: ModelWorker) -> bool:
        newer = worker.newer
        return newer is not None and all(m.worker_id != worker.worker_id for m in newer.members)

    def _leave(self, worker: ModelWorker) -> None:
        newer = worker.newer
        assert newer is not None
        if not newer.members and worker.step != NO_STATE:
            self.checkpoint = max(self.checkpoint, worker.step)
            self._say(
                worker,
                protocol.Saved(
                    generation=newer.generation,
                    step=worker.step,
                    samples=worker.step,
                    path="/ck",
                    wall_s=0.0,
                ),
            )
        self._say(worker, protocol.Left(generation=newer.generation, step=worker.step))
        self.die(worker.worker_id, 0)

    def _may_connect(self, worker: ModelWorker) -> bool:
        """Whether everybody of the roster is alive and on the way into this generation."""
        newer = worker.newer
        if newer is None or not worker.is_waiting:
            return False
        for member in newer.members:
            peer = self.workers.get(member.worker_id)
            if peer is None or not peer.is_waiting or peer.newer != newer:
                return False
        return True

    def _connect(self, worker: ModelWorker) -> None:
        """The mesh is built and the state handed over; each reports when it gets to it."""
        commit = worker.newer
        assert commit is not None
        peers = [self.workers[m.worker_id] for m in commit.members]
        best = max(p.step for p in peers)
        step = self.checkpoint if best == NO_STATE else best
        for peer in peers:
            peer.forming, peer.seen = commit, _key(commit)
            peer.is_waiting, peer.step = False, step

    def _enter(self, worker: ModelWorker) -> None:
        commit = worker.forming
        assert commit is not None
        worker.group, worker.forming = commit, None
        rank = [m.worker_id for m in commit.members].index(worker.worker_id)
        self._say(
            worker,
            protocol.Entered(
                generation=commit.generation,
                attempt=commit.attempt,
                rank=rank,
                size=len(commit.members),
                step=worker.step,
                epoch=0,
                samples=worker.step,
                pause_s=0.1,
                transfer_s=0.0,
            ),
        )
