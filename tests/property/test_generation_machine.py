"""Generations under every order of messages, deaths, losses and changes of mind.

Safety after every step; and once nobody dies and nobody changes the targets any more,
the trainer ends up exactly where it is wanted.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bftrainer.fleet.generations import stimuli
from bftrainer.fleet.generations.generation import GenerationMachine
from bftrainer.fleet.generations.members import (
    Announced,
    Instruction,
    Kill,
    NodeOffer,
    Parked,
    Rescaled,
    Tell,
)
from bftrainer.fleet.lifecycle import WorkerPhase
from bftrainer.ground import protocol
from milp.problem import largest_size
from tests.support.examples import examples
from tests.support.generations import machine_of, offer
from tests.support.repeating import repeating
from tests.support.worker_model import NO_STATE, World

NODES = ("n1", "n2", "n3", "n4")
DRAIN_ROUNDS = 400


class Generations(RuleBasedStateMachine):
    """A machine, a world of workers, and everything that can happen between them."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.now_s = 0.0
        self.wanted: set[str] = set()  # nodes the plan gives to the trainer
        self.staying: dict[str, str] = {}  # straggler -> node in its place
        self.pilot_of: dict[str, str] = {}  # node -> pilot whose agent is connected
        self.pilots = itertools.count(1)
        self.rosters: dict[tuple[int, int], tuple[str, ...]] = {}
        self.prepared: dict[tuple[int, int], tuple[str, ...]] = {}
        self.tokens: set[str] = set()
        self.announced = 0
        self.size = 0
        self.batches: tuple[int, ...] = ()

    @initialize(
        n_min=st.sampled_from([1, 1, 2, 3]),
        extra=st.integers(0, 3),
        window_s=st.sampled_from([0, 1]),
        sizes=st.sampled_from([(), (), (1, 2, 4), (2, 3)]),
    )
    def begin(self, n_min: int, extra: int, window_s: int, sizes: tuple[int, ...]) -> None:
        self.machine = machine_of(
            GenerationMachine,
            n_min=n_min,
            n_max=n_min + extra,
            join_window_s=float(window_s),
            start_timeout_s=1e9,
            last_generation=3,
            incarnation=2,
            sizes=sizes,
        )
        self.log = repeating(self.machine)
        self.announced = 3
        self.sizes = [n_min, n_min + extra]  # that it ever might have

    # ---- the world moves -----------------------------------------------------------------

    @rule(pick=st.integers(0, 99))
    def deliver_to_agent(self, pick: int) -> None:
        channels = [c for c in self.world.channels.values() if c.to_agent]
        if channels:
            self.world.deliver_to_agent(channels[pick % len(channels)].pilot_id)

    @rule(pick=st.integers(0, 99))
    def deliver_to_daemon(self, pick: int) -> None:
        channels = [c for c in self.world.channels.values() if c.to_daemon]
        if channels:
            self._hear(channels[pick % len(channels)].pilot_id)

    @rule(pick=st.integers(0, 99), times=st.integers(1, 8))
    def work(self, pick: int, times: int) -> None:
        for _ in range(times):
            moves = self.world.moves()
            if moves:
                self.world.move(*moves[pick % len(moves)])

    @rule(pick=st.integers(0, 99))
    def train(self, pick: int) -> None:
        workers = sorted(self.world.workers)
        if workers:
            self.world.train(workers[pick % len(workers)])

    @rule(rounds=st.integers(1, 30))
    def run_smoothly(self, rounds: int) -> None:
        for _ in range(rounds):
            self._round()

    @rule(seconds=st.sampled_from([0.1, 0.6, 1.1, 5.0]))
    def wait(self, seconds: float) -> None:
        self._tick(seconds)

    # ---- things go wrong ------------------------------------------------------------------

    @precondition(lambda self: self.machine.forming is not None)
    @rule(pick=st.integers(0, 99), rounds=st.integers(0, 3))
    def worker_dies_in_formation(self, pick: int, rounds: int) -> None:
        for _ in range(rounds):
            self._round()
        workers = sorted(self.world.workers)
        if workers:
            self.world.die(workers[pick % len(workers)], -9)
        self.run_smoothly(rounds)

    @precondition(lambda self: self.world.workers)
    @rule(pick=st.integers(0, 99), returncode=st.sampled_from([-9, -15, 1, 0]))
    def worker_dies(self, pick: int, returncode: int) -> None:
        workers = sorted(self.world.workers)
        self.world.die(workers[pick % len(workers)], returncode)

    @precondition(lambda self: self.pilot_of)
    @rule(pick=st.integers(0, 99), is_replaced=st.booleans())
    def agent_is_lost(self, pick: int, *, is_replaced: bool) -> None:
        node = sorted(self.pilot_of)[pick % len(self.pilot_of)]
        pilot_id = self.pilot_of.pop(node)
        self.world.lose_agent(pilot_id)
        self._handle(stimuli.AgentLost(pilot_id=pilot_id))
        if is_replaced:
            self._connect(node)
        for straggler, awaited in list(self.staying.items()):
            if node in (straggler, awaited):  # as the decision does when either is lost
                del self.staying[straggler]
                if node == awaited:
                    self.wanted = (self.wanted - {awaited}) | {straggler}
        self._retarget()

    @precondition(lambda self: self.world.workers)
    @rule(pick=st.integers(0, 99), others=st.sets(st.sampled_from(NODES)), rounds=st.integers(0, 9))
    def nodes_are_not_reached(self, pick: int, others: set[str], rounds: int) -> None:
        """An agent says which nodes it cannot reach; none of ``others``: all."""
        workers = sorted(self.world.workers)
        body = protocol.Unreachable(nodes=tuple(sorted(others)))
        self._handle(stimuli.WorkerMessage(worker_id=workers[pick % len(workers)], message=body))
        self.run_smoothly(rounds)

    # ---- the plan changes --------------------------------------------------------------------

    @rule(node=st.sampled_from(NODES), rounds=st.integers(0, 20))
    def plan_one_more_or_fewer(self, node: str, rounds: int) -> None:
        self.plan(self.wanted ^ {node})
        self.run_smoothly(rounds)

    @rule(rounds=st.integers(0, 20))
    def plan_other_nodes(self, rounds: int) -> None:
        self.plan(set(NODES) - self.wanted)
        self.run_smoothly(rounds)

    @rule(nodes=st.sets(st.sampled_from(NODES)))
    def plan_anything(self, nodes: set[str]) -> None:
        self.plan(nodes)

    @precondition(lambda self: self.machine.crew.members and self.wanted < set(NODES))
    @rule(pick=st.integers(0, 99), rounds=st.integers(0, 20))
    def plan_a_replacement(self, pick: int, rounds: int) -> None:
        workers = self.machine.crew.workers
        nodes = sorted({workers[m].node for m in self.machine.crew.members} & self.wanted)
        # A decision gives nobody more than n_max; of more, the awaited one might never be chosen.
        if nodes and len(self.wanted) <= self.machine.size_range.n_max:
            straggler = nodes[pick % len(nodes)]
            free = sorted(set(NODES) - self.wanted)
            awaited = free[pick % len(free)]
            self.plan((self.wanted - {straggler}) | {awaited}, {straggler: awaited})
            self.run_smoothly(rounds)

    @rule(n_min=st.integers(1, 3), extra=st.integers(0, 3), rounds=st.integers(0, 20))
    def change_sizes(self, n_min: int, extra: int, rounds: int) -> None:
        self.sizes += [n_min, n_min + extra]
        self._handle(stimuli.SizesSet(n_min=n_min, n_max=n_min + extra))
        self._plan_within()
        self.run_smoothly(rounds)

    @rule(batches=st.lists(st.integers(1, 4), min_size=len(NODES), max_size=len(NODES)))
    def plan_other_batches(self, batches: list[int]) -> None:
        self.batches = tuple(batches)
        self._retarget()

    def _plan_within(self) -> None:
        """Plan as the next decision does: a size that it may have, or none."""
        nodes = sorted(self.wanted & self.pilot_of.keys())[: self.machine.size_range.n_max]
        self.plan(set(nodes) if len(nodes) >= self.machine.size_range.n_min else set())

    def plan(self, nodes: set[str], staying: dict[str, str] | None = None) -> None:
        self.wanted, self.staying = nodes, staying or {}
        for node in sorted(nodes - self.pilot_of.keys()):
            self._connect(node)
        self._retarget()

    # ---- invariants -----------------------------------------------------------------------------

    @invariant()
    def members_are_distinct_and_within_bounds(self) -> None:
        if not hasattr(self, "machine"):
            return
        members = self.machine.crew.members
        assert len(set(members)) == len(members)
        forming = self.machine.forming
        if forming is not None:
            self._check_roster(forming.roster)

    @invariant()
    def steps_never_go_back_while_somebody_has_the_state(self) -> None:
        for worker in self.world.workers.values():
            assert worker.group is None or worker.step != NO_STATE

    # ---- helpers ----------------------------------------------------------------------

    def _connect(self, node: str) -> None:
        pilot_id = f"p{next(self.pilots)}"
        self.pilot_of[node] = pilot_id
        self.world.add_agent(pilot_id, node)

    def _offers(self) -> list[NodeOffer]:
        return [offer(n, self.pilot_of[n]) for n in sorted(self.wanted) if n in self.pilot_of]

    def _retarget(self) -> None:
        self._handle(
            stimuli.TargetsSet(
                offers=tuple(self._offers()), staying=dict(self.staying), batches=self.batches
            )
        )

    def _tick(self, seconds: float) -> None:
        self.now_s += seconds
        self._handle(stimuli.TimePassed())

    def _hear(self, pilot_id: str) -> None:
        worker_id, what = self.world.channels[pilot_id].to_daemon.popleft()
        if isinstance(what, int):
            self._handle(stimuli.WorkerEnded(worker_id=worker_id, returncode=what, cause=""))
        else:
            self._handle(stimuli.WorkerMessage(worker_id=worker_id, message=what))

    def _round(self) -> bool:
        """Deliver and do one of everything; return whether anything happened."""
        busy = False
        for channel in list(self.world.channels.values()):
            while channel.to_agent:
                self.world.deliver_to_agent(channel.pilot_id)
                busy = True
        moves = self.world.moves()
        if moves:
            self.world.move(*moves[0])
            busy = True
        for channel in list(self.world.channels.values()):
            while channel.to_daemon:
                self._hear(channel.pilot_id)
                busy = True
        return busy

    def _check_roster(self, roster: Sequence[str]) -> None:
        workers = self.machine.crew.workers
        assert len(set(roster)) == len(roster), "a worker has two ranks"
        nodes = [workers[w].node for w in roster]
        assert len(set(nodes)) == len(nodes), "a node has two ranks"
        assert min(self.sizes) <= len(roster) <= max(self.sizes)
        only = self.machine.size_range.sizes
        assert not only or len(roster) in only or len(self.sizes) > 2

    def _check_commit(self, commit: protocol.Commit) -> None:
        key = (commit.generation, commit.attempt)
        roster = tuple(m.worker_id for m in commit.members)
        if key in self.rosters:
            assert self.rosters[key] == roster, "a generation was committed twice"
        else:
            assert commit.token not in self.tokens
            assert commit.generation > max((g for g, _ in self.rosters), default=0)
            self.tokens.add(commit.token)
            self.rosters[key] = roster
        assert [m.rank for m in commit.members] == list(range(len(roster)))
        assert commit.generation == self.announced
        if not roster:
            return
        self._check_roster(roster)
        assert commit.batch == (self.batches[len(roster) - 1] if self.batches else 0)
        workers = self.machine.crew.workers
        alive = {WorkerPhase.WARM, WorkerPhase.MEMBER, WorkerPhase.LEAVING}
        assert all(workers[w].phase in alive for w in roster)
        present = {
            m for m in self.machine.crew.members if m in workers and workers[m].is_alive
        }  # those that leave have passed their state on already
        staying = {m for m in present if workers[m].phase is not WorkerPhase.LEAVING}
        assert not staying or staying & set(roster), "nobody brings the state along"
        assert commit.store_port

    def _handle(self, stimulus: stimuli.Stimulus) -> None:
        self._carry_out(self.log.handle(stimulus, self.now_s))

    def _carry_out(self, instructions: Sequence[Instruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, Announced):
                assert instruction.generation == self.announced + 1
                self.announced = instruction.generation
            elif isinstance(instruction, Tell):
                body = protocol.from_body(dict(instruction.body))
                if isinstance(body, protocol.Commit):
                    self._check_commit(body)
                elif isinstance(body, protocol.Prepare):
                    assert body.generation == self.announced
                    assert self.machine.forming is not None
                    roster = self.machine.forming.roster
                    key = (body.generation, body.attempt)
                    assert key not in self.rosters
                    assert self.prepared.setdefault(key, roster) == roster
            elif isinstance(instruction, Rescaled):
                assert instruction.size_before == self.size
                self.size = instruction.size
                roster = self.rosters[instruction.generation, instruction.attempt]
                assert roster == self.machine.crew.members
            elif isinstance(instruction, Parked):
                assert instruction.size_before == self.size
                self.size = 0
            elif isinstance(instruction, Kill):
                assert not self.machine.crew.workers[instruction.worker_id].is_alive
        self.world.carry_out(instructions)

    # ---- liveness ----------------------------------------------------------------------

    def teardown(self) -> None:
        if not hasattr(self, "machine"):
            return
        quiet = 0
        if len(self.sizes) > 2:
            self._plan_within()
        while self.machine.apart.present(self.now_s):  # until they reach each other again
            while self._round():
                pass
            self._tick(30.0)
        self._retarget()
        for _ in range(DRAIN_ROUNDS):
            quiet = 0 if self._round() else quiet + 1
            if quiet > 1:
                self._tick(1.0)
            if quiet > 70:  # longer than every patience and backoff
                break
        targets = {o.node for o in self._offers()}
        machine, workers = self.machine, self.machine.crew.workers
        goal = largest_size(
            len(targets),
            machine.size_range.n_min,
            machine.size_range.n_max,
            machine.size_range.sizes,
        )
        assert machine.forming is None, machine.forming
        if machine.crew.members:
            assert machine.crew.batch == (
                self.batches[len(machine.crew.members) - 1] if self.batches else 0
            )
        assert not machine.course.is_parking
        nodes = {workers[m].node for m in machine.crew.members}
        if goal < machine.size_range.n_min:
            assert machine.crew.members == ()
            there = {w.worker_id for w in self.world.workers.values() if w.group is not None}
            assert not there
        else:
            assert len(nodes) == goal
            assert nodes <= targets
            groups = {str(self.world.workers[m].group) for m in machine.crew.members}
            assert len(groups) == 1
            for worker in self.world.workers.values():
                assert worker.group is None or worker.worker_id in machine.crew.members
        known = {w.worker_id for w in workers.values() if w.is_alive}
        assert known == set(self.world.workers), "ghosts or strays"
        self._wind_up()

    def _wind_up(self) -> None:
        """Cancelled, it ends by itself, with its state on disk, and starts nobody."""
        steps = [w.step for w in self.world.workers.values()]
        before = set(self.machine.crew.workers)
        self._handle(stimuli.WindUp(grace_s=30.0))
        self._retarget()
        for _ in range(DRAIN_ROUNDS):
            if self.machine.has_wound_up(self.now_s):
                break
            if not self._round():
                self._tick(0.1)
        assert self.machine.has_wound_up(self.now_s)
        assert self.now_s < (self.machine.course.ends_by_s or 0.0)
        while self._round():  # what was killed ends
            pass
        assert not self.world.workers
        assert set(self.machine.crew.workers) == before
        assert self.world.checkpoint >= max(steps, default=0)


Generations.TestCase.settings = settings(
    max_examples=examples(200, of=4),
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestGenerations = Generations.TestCase
