"""The ledger over random histories of a small cluster, against what really happened.

Whatever happens: every pilot is settled once at most, a hand-over names a job that really
is on the node and a time within its own precision, nothing is in vain for a job that has
the node, and once nobody waits any more nothing stays open.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from bftrainer.daemon.harm.ledger import Farewell, HarmRecords, How, Ledger, farewell, fold
from bftrainer.decide.decision import decide
from bftrainer.model.decision import DecisionInput, Memory, Settings
from tests.support.examples import examples
from tests.support.sim_cluster import SimCluster
from tests.support.snapshots import ExactPolicy, record

CYCLE_S = 30.0
TYPES = {f"n{k}": "cpu" for k in range(1, 6)}
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(1, 4), st.sampled_from([60.0, 400.0])),
        st.tuples(st.just("hopeless"), st.integers(1, 4), st.just(400.0)),
        st.tuples(st.just("cancel"), st.integers(0, 9), st.just(0.0)),
        st.tuples(st.just("cycle"), st.integers(1, 2), st.just(0.0)),
        st.tuples(st.just("wait"), st.integers(0, 1), st.sampled_from([0.5, 5.0, 70.0])),
        st.tuples(st.just("preempt"), st.integers(0, 4), st.sampled_from([0.0, 1.0])),
    ),
    max_size=25,
)


@dataclass(slots=True)
class World:
    """The cluster, the decisions and the ledger; ``gone``: when pilots really went."""

    cluster: SimCluster = field(default_factory=lambda: SimCluster(types=TYPES))
    memory: Memory = field(default_factory=Memory)
    ledger: Ledger = field(default_factory=Ledger)
    gone: dict[str, tuple[str, float]] = field(default_factory=dict)
    records: list[HarmRecords] = field(default_factory=list)
    is_polite: bool = True  # agents say goodbye
    has_trainers: bool = True

    def decide(self) -> None:
        cluster = self.cluster
        seen = DecisionInput(
            now_s=cluster.now_s,
            snapshot=cluster.snapshot(),
            is_new_snapshot=True,
            pilots=cluster.views(),
            trainers=(record(n_min=1),) if self.has_trainers else (),
            settings=Settings(reserve_nodes_per_type=0, cycle_s=CYCLE_S),
            memory=self.memory,
        )
        plan = decide(seen, ExactPolicy())
        self.memory = plan.memory
        self.ledger, settled = fold(self.ledger, seen, plan, 0.001)
        cluster.carry_out(plan)
        self._judge(settled)

    def let_pass(self, seconds: float) -> None:
        before = dict(self.cluster.pilots)
        self.cluster.pass_time(seconds)
        for pilot_id in before.keys() - self.cluster.pilots.keys():
            if before[pilot_id].start_s is not None:
                self._went(pilot_id, before[pilot_id].node, "told")

    def preempt(self, number: int) -> None:
        started = [p for p in self.cluster.pilots.values() if p.is_held and not p.is_leaving]
        if started:
            pilot = started[number % len(started)]
            del self.cluster.pilots[pilot.pilot_id]
            self._went(pilot.pilot_id, pilot.node, "signal")

    def _went(self, pilot_id: str, node: str, reason: str) -> None:
        now_s = self.cluster.now_s
        self.gone[pilot_id] = (node, now_s)
        if self.is_polite:
            said = Farewell(pilot_id=pilot_id, node=node, reason=reason, told_s=now_s, left_s=now_s)
            self.ledger = farewell(self.ledger, said)

    def _judge(self, settled: HarmRecords) -> None:
        jobs = self.cluster.jobs
        for done in settled.hand_overs:
            node, gone_s = self.gone[done.pilot_id]
            assert done.node == node
            served = jobs[done.job_id]
            if node not in served.nodes:  # preempted for it, and another was given back: too late
                assert done.how is How.PREEMPTED
                assert served.start_s is not None
                assert served.start_s > gone_s
            assert abs(done.freed_s - gone_s) <= done.precision_s + 1e-6
            assert done.delay_s is None or done.delay_s >= 0.0
            assert (done.asked_s is None) <= (done.how is How.PREEMPTED)
        for vain in settled.vain:
            assert self.gone[vain.pilot_id][0] == vain.node
            job = jobs.get(vain.job_id)
            assert job is None or vain.node not in job.nodes
            assert vain.asked_s <= vain.settled_s
        for taken in settled.taken:
            assert self.gone[taken.pilot_id][0] == taken.node
        self.records.append(settled)

    def pilots_settled(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for settled in self.records:
            found.update(h.pilot_id for h in settled.hand_overs)
            found.update(v.pilot_id for v in settled.vain)
            found.update(t.pilot_id for t in settled.taken)
        return found


@settings(max_examples=examples(60), deadline=None)
@given(steps=STEPS, is_polite=st.booleans())
def test_every_end_is_settled_once_and_rightly(
    steps: list[tuple[str, int, float]], is_polite: bool
) -> None:
    world = World(is_polite=is_polite)
    cluster = world.cluster
    for _ in range(2):  # pilots on all nodes
        _cycle(world)
    for what, number, value in steps:
        if what in ("submit", "hopeless"):
            cluster.submit(number, value, is_hopeless=what == "hopeless")
        elif what == "cancel" and cluster.jobs:
            del cluster.jobs[sorted(cluster.jobs)[number % len(cluster.jobs)]]
        elif what == "wait":
            world.let_pass(value)
        elif what == "preempt":
            world.preempt(number)
        elif what == "cycle":
            for _ in range(number):
                _cycle(world)
        world.decide()
        assert max(world.pilots_settled().values(), default=0) <= 1
    world.has_trainers = False
    for job in cluster.jobs.values():
        job.is_hopeless = False
    for _ in range(60):
        _cycle(world)
    assert world.ledger.ends == {}
    assert world.ledger.settled == frozenset()
    assert max(world.pilots_settled().values(), default=0) <= 1
    assert world.pilots_settled().keys() <= world.gone.keys()


def test_a_history_with_both_errors_is_counted() -> None:
    """What the random ones may miss, once for sure."""
    world = World()
    for _ in range(2):
        _cycle(world)
    world.cluster.submit(1, 60.0, is_hopeless=False)
    world.decide()
    world.let_pass(0.5)
    _cycle(world)
    world.cluster.submit(1, 60.0, is_hopeless=True)
    world.decide()
    world.let_pass(0.5)
    for _ in range(3):
        _cycle(world)
    hand_overs = [h for r in world.records for h in r.hand_overs]
    vain = [v for r in world.records for v in r.vain]
    assert [h.how for h in hand_overs] == [How.GIVEN_BACK]
    assert hand_overs[0].delay_s == 0.5
    assert len(vain) == 1


def _cycle(world: World) -> None:
    world.cluster.cycle()
    world.cluster.connect_agents()
    world.decide()
    world.let_pass(CYCLE_S)
    world.decide()
