"""Copies of a lone member's state under every order of losses, joins and changes of size.

Held against agents that do as they are told and may vanish at any moment. Always: no copy
is sent to the member's own node, and who starts afresh is sent to the newest complete copy
there is. Once all is quiet, the one holder has the newest copy and nobody else any.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bftrainer.actuate.group import Tell
from bftrainer.actuate.replica_policy import CompleteCopy, CopyMachine, CopyStatus, Lone, Order
from bftrainer.elastic import protocol
from bftrainer.wire.messages import DropCopy, HoldCopy, SettleCopy
from tests.support.generations import offer

NODES = ("n1", "n2", "n3")


@dataclass
class Agent:
    """What an agent really has."""

    node: str
    key: str = ""
    floor: int = 0
    copy: tuple[int, int] | None = None  # generation, step
    is_leaving: bool = False
    settled: list[tuple[int, int]] = field(default_factory=list)


class Copies(RuleBasedStateMachine):
    """A machine, agents, one trainer."""

    @initialize()
    def begin(self) -> None:
        keys = itertools.count()
        self.machine = CopyMachine("t1", "/ck", lambda: f"key{next(keys)}")
        self.agents: dict[str, Agent] = {}
        self.pilots = itertools.count(1)
        self.now_s = 0.0
        self.generation, self.step, self.size = 0, 0, 0
        self.lone: Lone | None = None
        self.told: protocol.KeepCopy | None = None
        self.on_disk = -1
        self.is_over = False

    # ---- what happens ----------------------------------------------------------------

    @rule(node=st.sampled_from(NODES))
    def agent_comes(self, node: str) -> None:
        if all(a.node != node for a in self.agents.values()):
            self.agents[f"p{next(self.pilots)}"] = Agent(node=node)

    @rule(pick=st.integers(0, 9))
    def agent_is_lost(self, pick: int) -> None:
        if not self.agents:
            return
        pilot = sorted(self.agents)[pick % len(self.agents)]
        del self.agents[pilot]
        self.machine.forget_agent(pilot)
        if self.lone is not None and self.lone.pilot_id == pilot:
            self.lone, self.size, self.told = None, 0, None

    @rule(pick=st.integers(0, 9))
    def agent_is_told_to_leave(self, pick: int) -> None:
        for pilot in sorted(self.agents)[pick % 3 : pick % 3 + 1]:
            if self.lone is None or self.lone.pilot_id != pilot:
                self.agents[pilot].is_leaving = True

    @rule(pick=st.integers(0, 9))
    def connection_blinks(self, pick: int) -> None:
        """The daemon forgets the agent and hears at once what it holds."""
        for pilot in sorted(self.agents)[pick % 3 : pick % 3 + 1]:
            if self.lone is None or self.lone.pilot_id != pilot:
                self.machine.forget_agent(pilot)
                self._hear_of(pilot)

    @rule()
    def daemon_is_replaced(self) -> None:
        keys = itertools.count(1000 * (1 + self.generation) + self.step)
        self.machine = CopyMachine("t1", "/ck", lambda: f"heir{next(keys)}")
        for pilot in sorted(self.agents):
            self._hear_of(pilot)

    def _hear_of(self, pilot: str) -> None:
        if (held := self.agents[pilot].copy) is not None:
            copy = CompleteCopy(generation=held[0], step=held[1], taken_s=self.now_s)
            self._do(self.machine.on_found(pilot, copy, self.generation))

    @precondition(lambda self: self.size == 0 and self.agents and not self.is_over)
    @rule(pick=st.integers(0, 9))
    def starts_alone(self, pick: int) -> None:
        pilot = sorted(self.agents)[pick % len(self.agents)]
        worker = f"w{self.generation + 1}"
        self.told = None
        known = {p: c.order for p, c in self.machine.copies.items()}
        said = self._do(self.machine.recall(worker, pilot))
        recalls = [m for m in said if isinstance(m, protocol.Recall)]
        self.generation += 1
        step = max(self.on_disk, 0)
        for recall in recalls:
            holder = self.agents[recall.holder]
            assert recall.key == holder.key
            if known:
                assert holder.copy is not None
                assert holder.copy == max(known.values())
            holder.floor = max(holder.floor, self.generation)
            if holder.copy is not None:
                step = max(step, holder.copy[1])
        self.step, self.size = step, 1
        self.lone = Lone(worker_id=worker, pilot_id=pilot, node=self.agents[pilot].node)
        self._do(self.machine.on_resumed(self.step))

    @precondition(lambda self: self.size == 1)
    @rule()
    def grows(self) -> None:
        self.generation += 1
        self.lone, self.size, self.told = None, 2, None

    @precondition(lambda self: self.size == 2 and self.agents)
    @rule(pick=st.integers(0, 9))
    def shrinks(self, pick: int) -> None:
        pilot = sorted(self.agents)[pick % len(self.agents)]
        self.generation += 1
        self.size = 1
        self.lone = Lone(
            worker_id=f"w{self.generation}", pilot_id=pilot, node=self.agents[pilot].node
        )

    @rule()
    def ends(self) -> None:
        if self.generation > 6:
            self.is_over, self.size, self.lone, self.told = True, 0, None, None

    @rule(seconds=st.sampled_from([0.25, 30.0, 61.0]))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds
        self._advance()

    @precondition(lambda self: self.lone is not None)
    @rule(is_refused=st.sampled_from([False, False, True]))
    def trains_and_copies(self, *, is_refused: bool) -> None:
        self.step += 1
        keep = self.told
        if keep is None or not keep.port:
            return
        assert self.lone is not None
        holder = self.agents.get(keep.holder)
        assert holder is None or holder.node != self.lone.node
        refused = "no room" if is_refused else ""
        if holder is None or holder.key != keep.key or self.generation < holder.floor:
            refused = "not for you"
        if not refused and holder is not None:
            assert holder.copy is None or holder.copy <= (self.generation, self.step)
            holder.copy = (self.generation, self.step)
        said = protocol.Copied(
            generation=self.generation, step=self.step, samples=self.step, holder=keep.holder,
            size_bytes=1, hold_s=0.0, wall_s=0.0, gap_s=2.5, refused=refused,
        )  # fmt: skip
        self._do(self.machine.on_copied(said, self.now_s))

    # ---- carrying out ----------------------------------------------------------------

    def _advance(self) -> None:
        standing = CopyStatus(
            lone=self.lone,
            has_replicas=self.size == 2,
            is_lost=self.size == 0,
            is_over=self.is_over,
            generation=self.generation,
            saved_step=self.on_disk,
        )
        offers = [offer(a.node, p, copy_port=1) for p, a in self.agents.items() if not a.is_leaving]
        self._do(self.machine.advance(standing, offers, {}, self.now_s))

    def _do(self, orders: list[Order | Tell]) -> list[protocol.Message]:
        said = []
        for order in orders:
            if isinstance(order, Tell):
                body = protocol.from_body(order.body)
                said.append(body)
                if isinstance(body, protocol.KeepCopy) and self.lone is not None:
                    assert order.worker_id == self.lone.worker_id
                    self.told = body
                continue
            agent = self.agents.get(order.pilot_id)
            if agent is None:
                continue
            match order.message:
                case HoldCopy():
                    agent.key = order.message.key
                    agent.floor = max(agent.floor, order.message.generation)
                case DropCopy():
                    agent.key, agent.copy, agent.floor = "", None, 0
                case SettleCopy():
                    if agent.copy is not None:
                        self.on_disk = max(self.on_disk, agent.copy[1])
                        self._do(self.machine.on_settled(order.pilot_id, ""))
        return said

    # ---- what must hold --------------------------------------------------------------

    @invariant()
    def known_copies_are_there(self) -> None:
        if hasattr(self, "machine"):
            for pilot, copy in self.machine.copies.items():
                held = self.agents[pilot].copy
                assert held is not None
                assert held >= copy.order

    def teardown(self) -> None:
        if not hasattr(self, "machine"):
            return
        self.now_s += 100.0
        for _ in range(3):
            self._advance()
            if self.lone is not None:
                self.trains_and_copies(is_refused=False)
        staying = {p: a for p, a in self.agents.items() if not a.is_leaving}
        holding = {p for p, a in staying.items() if a.copy is not None}
        if self.lone is None:
            if self.size == 2 or self.is_over:
                assert holding == set()
            return
        able = {p for p, a in staying.items() if a.node != self.lone.node}
        if not able:  # what the member's own node held from before is nobody's business
            return
        [pilot] = holding
        assert pilot in able
        assert staying[pilot].copy == (self.generation, self.step)


Copies.TestCase.settings = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestCopies = Copies.TestCase
