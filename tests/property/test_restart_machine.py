"""Restarts under every order of messages, losses and changes of mind.

Safety after every step: programs of two generations never run at the same time, and no
generation starts on part of its nodes twice. And once nobody dies and nobody changes the
targets any more, the trainer runs exactly where it is wanted.
"""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from bftrainer.fleet.generations import stimuli
from bftrainer.fleet.generations.members import (
    Instruction,
    Kill,
    Parked,
    Rescaled,
    StartWorkerOn,
    Tell,
)
from bftrainer.fleet.generations.restart import RestartMachine
from bftrainer.ground import protocol
from milp.problem import largest_size
from tests.support.examples import examples
from tests.support.generations import machine_of, offer
from tests.support.repeating import repeating

NODES = ("n1", "n2", "n3", "n4")
DRAIN_ROUNDS = 300


@dataclass
class Keeper:
    """A worker as it is in truth."""

    node: str
    generation: int = 0  # of the program that runs; 0: none
    inbox: deque[protocol.Message] = field(default_factory=deque)
    outbox: deque[protocol.Message | int] = field(default_factory=deque)  # an int: its exit
    is_over: bool = False


class Restarts(RuleBasedStateMachine):
    """A machine, keepers, and what can happen between them."""

    @initialize(
        n_min=st.sampled_from([1, 1, 2]),
        extra=st.integers(0, 3),
        sizes=st.sampled_from([(), (), (1, 2, 4), (2, 3)]),
    )
    def begin(self, n_min: int, extra: int, sizes: tuple[int, ...]) -> None:
        self.sizes = sizes
        self.n_min, self.n_max = n_min, n_min + extra
        self.most = self.n_max  # of all sizes that it ever might have
        self.has_changed = False
        self.machine = machine_of(
            RestartMachine,
            n_min=n_min,
            n_max=self.n_max,
            join_window_s=0.5,
            start_timeout_s=60.0,
            sizes=sizes,
        )
        self.log = repeating(self.machine)
        self.now_s = 0.0
        self.keepers: dict[str, Keeper] = {}
        self.wanted: set[str] = set()
        self.pilots = itertools.count(1)
        self.pilot_of: dict[str, str] = {}
        self.size = 0

    # ---- what happens ----------------------------------------------------------------

    @rule(nodes=st.sets(st.sampled_from(NODES)))
    def plan(self, nodes: set[str]) -> None:
        self.wanted = nodes
        for node in nodes - self.pilot_of.keys():
            self.pilot_of[node] = f"p{next(self.pilots)}"
        offers = tuple(offer(n, self.pilot_of[n]) for n in sorted(nodes))
        self._handle(stimuli.TargetsSet(offers=offers))

    @rule(n_min=st.integers(1, 2), extra=st.integers(0, 3))
    def change_sizes(self, n_min: int, extra: int) -> None:
        self.n_min, self.n_max = n_min, n_min + extra
        self.most, self.has_changed = max(self.most, self.n_max), True
        self.sizes = ()
        self._handle(stimuli.SizesSet(n_min=n_min, n_max=self.n_max))
        self._plan_within()

    def _plan_within(self) -> None:
        """Plan as the next decision does: a size that it may have, or none."""
        nodes = sorted(self.wanted & self.pilot_of.keys())[: self.n_max]
        self.plan(set(nodes) if len(nodes) >= self.n_min else set())

    @rule(seconds=st.sampled_from([0.05, 0.3, 1.0, 6.0]))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self._handle(stimuli.TimePassed())

    @rule(pick=st.integers(0, 100), is_saved=st.booleans())
    def keeper_reads(self, pick: int, is_saved: bool) -> None:
        there = [k for k in self.keepers.values() if k.inbox and not k.is_over]
        if there:
            keeper = there[pick % len(there)]
            self._react(keeper, keeper.inbox.popleft(), is_saved=is_saved)

    @rule(pick=st.integers(0, 100))
    def daemon_reads(self, pick: int) -> None:
        names = [n for n, k in self.keepers.items() if k.outbox]
        if names:
            self._deliver(names[pick % len(names)])

    @rule(pick=st.integers(0, 100))
    def program_fails(self, pick: int) -> None:
        running = [k for k in self.keepers.values() if k.generation and not k.is_over]
        if running:
            keeper = running[pick % len(running)]
            failed = protocol.Failed(code="BFT-1418", cause="It ended.", next_step="Look.")
            keeper.outbox += [failed, 1]
            keeper.generation, keeper.is_over = 0, True

    @rule(pick=st.integers(0, 100), others=st.sets(st.sampled_from(NODES)))
    def nodes_are_not_reached(self, pick: int, others: set[str]) -> None:
        """An agent says which nodes it cannot reach; none of ``others``: all."""
        names = [n for n, k in self.keepers.items() if not k.is_over]
        if names:
            body = protocol.Unreachable(nodes=tuple(sorted(others)))
            self._handle(stimuli.WorkerMessage(worker_id=names[pick % len(names)], message=body))

    @rule(node=st.sampled_from(NODES))
    def node_is_taken(self, node: str) -> None:
        pilot = self.pilot_of.pop(node, None)
        if pilot is None:
            return
        for name, keeper in list(self.keepers.items()):
            if keeper.node == node:
                del self.keepers[name]  # with its program, and what it had to say
        self.wanted.discard(node)
        self._handle(stimuli.AgentLost(pilot_id=pilot))

    # ---- what must hold ----------------------------------------------------------------

    @invariant()
    def one_generation_at_a_time(self) -> None:
        running = {k.generation for k in self.keepers.values() if k.generation}
        assert len(running) <= 1
        assert sum(1 for k in self.keepers.values() if k.generation) <= getattr(self, "most", 0)

    def teardown(self) -> None:
        if not hasattr(self, "machine"):
            return
        while self.machine.apart.present(self.now_s):  # until they reach each other again
            self.wait(30.0)
        self.plan(self.wanted)
        if self.has_changed:
            self._plan_within()
        for _ in range(DRAIN_ROUNDS):
            for keeper in list(self.keepers.values()):
                while keeper.inbox and not keeper.is_over:
                    self._react(keeper, keeper.inbox.popleft(), is_saved=True)
            for name in list(self.keepers):
                while name in self.keepers and self.keepers[name].outbox:
                    self._deliver(name)
            self.one_generation_at_a_time()
            self.wait(1.0)
        running = {k.node for k in self.keepers.values() if k.generation}
        n_wanted = largest_size(len(self.wanted), self.n_min, self.n_max, self.sizes)
        assert len(running) == n_wanted
        assert running <= self.wanted
        assert self.size == n_wanted

    # ---- the world ---------------------------------------------------------------------

    def _handle(self, stimulus: stimuli.Stimulus) -> None:
        self._take(self.log.handle(stimulus, self.now_s))

    def _take(self, out: list[Instruction]) -> None:
        for one in out:
            match one:
                case StartWorkerOn():
                    keeper = self.keepers[one.worker_id] = Keeper(node=one.node)
                    keeper.outbox.append(protocol.Warm(warm_up_s=0.1))
                case Tell() if one.worker_id in self.keepers:
                    body = protocol.from_body(dict(one.body))
                    self.keepers[one.worker_id].inbox.append(body)
                case Kill() if one.worker_id in self.keepers:
                    keeper = self.keepers[one.worker_id]
                    if not keeper.is_over:
                        keeper.generation, keeper.is_over = 0, True
                        keeper.outbox.append(-9)
                case Rescaled():
                    assert one.is_restart
                    assert one.pause_s >= one.stop_s >= 0.0
                    self.size = one.size
                case Parked():
                    self.size = 0
                case _:
                    pass

    def _react(self, keeper: Keeper, message: protocol.Message, *, is_saved: bool) -> None:
        match message:
            case protocol.Prepare():
                ready = protocol.Ready(
                    generation=message.generation,
                    attempt=message.attempt,
                    store_port=4000 if message.open_store else 0,
                )
                keeper.outbox.append(ready)
            case protocol.Commit() if message.members and not keeper.generation:
                keeper.generation = message.generation
                keeper.outbox.append(
                    protocol.Entered(
                        generation=message.generation, attempt=message.attempt, rank=0,
                        size=len(message.members), step=0, epoch=0, samples=0, pause_s=0.0,
                        transfer_s=0.0,
                    )
                )  # fmt: skip
            case protocol.Commit():
                generation, keeper.generation = keeper.generation, 0
                if is_saved and not message.abandon:
                    keeper.outbox.append(
                        protocol.Saved(
                            generation=generation, step=1, samples=1, path="/c", wall_s=0.1
                        )
                    )
                keeper.outbox += [protocol.Left(generation=generation, step=1), 0]
                keeper.is_over = True
            case _:
                raise AssertionError(message)

    def _deliver(self, name: str) -> None:
        said = self.keepers[name].outbox.popleft()
        if isinstance(said, int):
            del self.keepers[name]
            self._handle(stimuli.WorkerEnded(worker_id=name, returncode=said, cause=""))
        else:
            self._handle(stimuli.WorkerMessage(worker_id=name, message=said))


TestRestarts = Restarts.TestCase
TestRestarts.settings = settings(
    max_examples=examples(150, of=4), stateful_step_count=40, deadline=None
)
