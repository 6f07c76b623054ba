"""Drives a generation machine by hand: what workers say goes in, what it wants comes out.

For unit tests of one path each; the property test has a model of workers instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from bftrainer.fleet.generations import stimuli
from bftrainer.fleet.generations.failures import Stall
from bftrainer.fleet.generations.generation import GenerationMachine
from bftrainer.fleet.generations.members import (
    Announced,
    Instruction,
    Kill,
    NodeOffer,
    StartWorkerOn,
    Tell,
)
from bftrainer.fleet.generations.state import (
    LEAVE_PATIENCE_S,
    Identity,
    SerialNumbers,
    SizeRange,
    WorkerPatience,
)
from bftrainer.ground import protocol

T = TypeVar("T")
M = TypeVar("M", bound=GenerationMachine)


def offer(node: str, pilot_id: str = "") -> NodeOffer:
    return NodeOffer(
        node=node,
        pilot_id=pilot_id or f"p-{node}",
        address=f"addr-{node}",
        agent_endpoint=f"tcp://{node}",
        agent_public_key=f"key-{node}",
    )


def machine_of(
    kind: type[M],
    *,
    n_min: int = 1,
    n_max: int = 8,
    sizes: tuple[int, ...] = (),
    join_window_s: float = 1.0,
    start_timeout_s: float = 60.0,
    leave_patience_s: float = LEAVE_PATIENCE_S,
    no_progress_s: float = 0.0,
    last_generation: int = 0,
    incarnation: int = 1,
) -> M:
    """A machine without workers."""
    return kind(
        identity=Identity(trainer_id="t1", incarnation=incarnation, commit_key="k"),
        size_range=SizeRange(n_min=n_min, n_max=n_max, sizes=sizes),
        patience=WorkerPatience(
            join_window_s=join_window_s,
            start_timeout_s=start_timeout_s,
            leave_patience_s=leave_patience_s,
        ),
        numbers=SerialNumbers(generation=last_generation),
        stall=Stall(lease_s=no_progress_s),
    )


class Driver:
    """A machine, a clock and everything it has ever asked for."""

    def __init__(
        self,
        *,
        n_min: int = 1,
        n_max: int = 8,
        join_window_s: float = 1.0,
        start_timeout_s: float = 60.0,
        last_generation: int = 0,
        incarnation: int = 1,
    ) -> None:
        self.machine = machine_of(
            GenerationMachine,
            n_min=n_min,
            n_max=n_max,
            join_window_s=join_window_s,
            start_timeout_s=start_timeout_s,
            last_generation=last_generation,
            incarnation=incarnation,
        )
        self.now_s = 100.0
        self.log: list[Instruction] = []
        self.new: list[Instruction] = []  # of the last stimulus

    # ---- stimuli -------------------------------------------------------------------

    def _handle(self, stimulus: stimuli.Stimulus) -> list[Instruction]:
        self.new = self.machine.handle(stimulus, self.now_s)
        self.log += self.new
        return self.new

    def target(self, *nodes: str, staying: Mapping[str, str] | None = None) -> list[Instruction]:
        offers = tuple(offer(n) for n in nodes)
        return self._handle(stimuli.TargetsSet(offers=offers, staying=staying or {}))

    def wait(self, seconds: float) -> list[Instruction]:
        self.now_s += seconds
        return self._handle(stimuli.TimePassed())

    def say(self, worker_id: str, body: protocol.Message) -> list[Instruction]:
        return self._handle(stimuli.WorkerMessage(worker_id=worker_id, message=body))

    def exit(self, worker_id: str, returncode: int = 0, cause: str = "") -> list[Instruction]:
        return self._handle(
            stimuli.WorkerEnded(worker_id=worker_id, returncode=returncode, cause=cause)
        )

    def lose_agent(self, node: str) -> list[Instruction]:
        return self._handle(stimuli.AgentLost(pilot_id=f"p-{node}"))

    def agent_failed(self, node: str, how: str = "FAILED") -> list[Instruction]:
        """The batch system says that it did not end the pilot of a lost agent."""
        return self._handle(stimuli.AgentFailed(pilot_id=f"p-{node}", how=how))

    # ---- what was asked for ----------------------------------------------------------

    def wanted(self, kind: type[T], among: Iterable[Instruction] | None = None) -> list[T]:
        return [i for i in (self.new if among is None else among) if isinstance(i, kind)]

    def told(self, kind: type[T], among: Iterable[Instruction] | None = None) -> dict[str, T]:
        """Worker → the last message of a kind told to it."""
        return {
            t.worker_id: body
            for t in self.wanted(Tell, among)
            if isinstance(body := protocol.from_body(dict(t.body)), kind)
        }

    def killed(self, among: Iterable[Instruction] | None = None) -> dict[str, str]:
        return {k.worker_id: k.reason for k in self.wanted(Kill, among)}

    def on(self, node: str) -> str:
        """The newest worker that lives on a node."""
        return [
            w.worker_id for w in self.machine.crew.workers.values() if w.node == node and w.is_alive
        ][-1]

    def started(self) -> list[str]:
        return [s.node for s in self.wanted(StartWorkerOn)]

    def commit(self) -> protocol.Commit:
        """The last commit announced."""
        last = list(self.told(protocol.Commit, self.log).values())
        return max(last, key=lambda c: (c.generation, c.attempt))

    def nodes(self) -> list[str]:
        """Nodes of the current members, in rank order."""
        return [self.machine.crew.workers[m].node for m in self.machine.crew.members]

    # ---- whole exchanges -------------------------------------------------------------

    def warm(self, *nodes: str) -> list[Instruction]:
        """Let the workers on these nodes become warm; return what followed the last."""
        for node in nodes:
            self.say(self.on(node), protocol.Warm(warm_up_s=1.0))
        return self.new

    def ready(self, *, skip: Iterable[str] = ()) -> list[Instruction]:
        """Answer every open Prepare of the forming generation."""
        forming = self.machine.forming
        assert forming is not None
        for rank, worker_id in enumerate(forming.roster):
            if self.machine.crew.workers[worker_id].node not in skip:
                self.say(
                    worker_id,
                    protocol.Ready(
                        generation=forming.generation,
                        attempt=forming.attempt,
                        store_port=0 if rank else 4000 + forming.attempt,
                    ),
                )
        return self.new

    def enter(
        self,
        *,
        step: int = 0,
        skip: Iterable[str] = (),
        pause_s: float = 0.0,
        resumed: str = "",
        backends: Sequence[str] = (),
    ) -> list[Instruction]:
        """Let those of the committed roster enter; leavers leave and exit first."""
        commit = self.commit()
        roster = {m.worker_id for m in commit.members}
        for worker_id in self.machine.crew.members:
            worker = self.machine.crew.workers.get(worker_id)
            if worker is not None and worker.is_alive and worker_id not in roster:
                self.leave(worker_id, commit.generation, step)
        for member in commit.members:
            if member.node not in skip:
                self.say(
                    member.worker_id,
                    protocol.Entered(
                        generation=commit.generation,
                        attempt=commit.attempt,
                        rank=member.rank,
                        size=len(commit.members),
                        step=step,
                        epoch=0,
                        samples=step * 10,
                        pause_s=pause_s * (1 + member.rank),
                        transfer_s=0.0,
                        resumed_from=resumed if member.rank == 0 else "",
                        backend=backends[member.rank] if backends else "",
                    ),
                )
        return self.new

    def leave(self, worker_id: str, generation: int, step: int = 0) -> list[Instruction]:
        first = self.say(worker_id, protocol.Left(generation=generation, step=step))
        self.new = first + self.exit(worker_id, 0)
        return self.new

    def form(self, *nodes: str, step: int = 0) -> list[Instruction]:
        """Bring the trainer onto these nodes, whatever it takes."""
        self.target(*nodes)
        for node in nodes:
            if self.machine.crew.workers[self.on(node)].phase == "starting":
                self.warm(node)
        self.ready()
        return self.enter(step=step)

    def progress(self, node: str, step: int) -> list[Instruction]:
        return self.say(
            self.on(node),
            protocol.Progress(
                generation=self.machine.numbers.generation,
                step=step,
                epoch=0,
                samples=step * 10,
                step_s=0.1,
                samples_per_s=100.0,
            ),
        )

    def interrupted(
        self, node: str, generation: int, reason: str = "reset by peer"
    ) -> list[Instruction]:
        return self.say(
            self.on(node),
            protocol.Interrupted(generation=generation, attempt=1, step=5, reason=reason),
        )

    def finish(self, node: str, step: int = 50) -> list[Instruction]:
        return self.say(
            self.on(node),
            protocol.Finished(
                generation=self.machine.numbers.generation, step=step, epoch=3, samples=step * 10
            ),
        )

    def announced(self) -> list[int]:
        return [a.generation for a in self.wanted(Announced, self.log)]
