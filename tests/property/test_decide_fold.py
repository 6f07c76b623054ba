"""The decision folded over random histories of a small cluster.

After every step: one trainer per node, sizes within bounds, at most one pilot per node,
claims on free nodes only, a reason for every release, no harm to the head of the queue.
And when nothing changes any more, nothing is asked for any more.
"""

from __future__ import annotations

from collections import Counter

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from bftrainer.model.cluster import NodeState, Snapshot
from bftrainer.model.decision import Plan, Settings
from bftrainer.model.trainer import TrainerRecord
from tests.support.examples import examples
from tests.support.sim_cluster import SimCluster
from tests.support.snapshots import Fold, claimed, record, without

TYPES = {**{f"c{k}": "cpu" for k in range(1, 6)}, "g1": "gpu", "g2": "gpu"}
CYCLE_S = 30.0
FREE = {NodeState.IDLE, NodeState.PLANNED}


class Decisions(RuleBasedStateMachine):
    """A fold of ``decide``, the cluster it acts on, and its users."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = SimCluster(types=TYPES)
        self.trainers: dict[str, TrainerRecord] = {}
        self.fold = Fold()
        self.count = 0
        self.slow: dict[str, float] = {}  # nodes that are, for anyone
        self.training: dict[str, str] = {}  # node -> trainer

    @initialize(
        reserve=st.integers(0, 2),
        confirmations=st.integers(1, 2),
        p_jmax=st.integers(1, 3),
        threshold=st.sampled_from([0.8, 0.8, 0.0]),
        first_size=st.integers(0, 4),
    )
    def begin(
        self, reserve: int, confirmations: int, p_jmax: int, threshold: float, first_size: int
    ) -> None:
        self.fold = Fold(
            settings=Settings(
                reserve_nodes_per_type=reserve,
                idle_confirmations=confirmations,
                p_jmax=p_jmax,
                cycle_s=CYCLE_S,
                straggler_threshold=threshold,
                straggler_memory_s=1e9,  # what fades calls for something in the end
            )
        )
        if first_size > 1:
            self.submit_trainer(2, first_size - 2)
        self.decide()

    # ---- the world ---------------------------------------------------------------------

    @rule(
        n_nodes=st.integers(1, 8),
        limit_s=st.sampled_from([60.0, 400.0, 4000.0]),
        is_hopeless=st.sampled_from([False, False, False, True]),
    )
    def submit_job(self, n_nodes: int, limit_s: float, *, is_hopeless: bool) -> None:
        self.cluster.submit(n_nodes, limit_s, is_hopeless=is_hopeless)
        self.decide()

    @precondition(lambda self: self.cluster.jobs)
    @rule(pick=st.integers(0, 99))
    def job_ends(self, pick: int) -> None:
        ids = sorted(self.cluster.jobs)
        del self.cluster.jobs[ids[pick % len(ids)]]
        self.decide()

    @rule(node=st.sampled_from(sorted(TYPES)))
    def drain_or_resume(self, node: str) -> None:
        self.cluster.drained ^= {node}
        self.decide()

    @rule(n_min=st.integers(1, 3), extra=st.integers(0, 4))
    def submit_trainer(self, n_min: int, extra: int) -> None:
        self.count += 1
        self.trainers[f"t{self.count}"] = record(f"t{self.count}", n_min=n_min, n_max=n_min + extra)
        self.decide()

    @precondition(lambda self: self.trainers)
    @rule(pick=st.integers(0, 99))
    def trainer_ends(self, pick: int) -> None:
        ids = sorted(self.trainers)
        del self.trainers[ids[pick % len(ids)]]
        self.decide()

    @rule(seconds=st.sampled_from([1.0, 7.0, 40.0, 500.0]))
    def time_passes(self, seconds: float) -> None:
        self.cluster.pass_time(seconds)
        self.decide()

    @rule(times=st.integers(1, 3))
    def scheduler_runs(self, times: int) -> None:
        for _ in range(times):
            self.cluster.cycle()
            self.cluster.connect_agents()
            self.decide()
            self.cluster.pass_time(CYCLE_S)
            self.decide()

    @rule(node=st.sampled_from(sorted(TYPES)), fraction=st.sampled_from([0.25, 0.5, 0.75, 1.0]))
    def node_changes_speed(self, node: str, fraction: float) -> None:
        self.slow[node] = fraction
        self.decide()

    @precondition(lambda self: self.trainers)
    @rule(pick=st.integers(0, 99), fraction=st.sampled_from([0.25, 0.5, 0.75]))
    def a_member_turns_slow(self, pick: int, fraction: float) -> None:
        self.cluster.jobs.clear()
        self.scheduler_runs(1)
        self.workers_join()
        nodes = sorted(self._training())
        if nodes:
            self.slow[nodes[pick % len(nodes)]] = fraction
            self.decide()

    @rule()
    def workers_join(self) -> None:
        """Whoever was to join trains, and who only waited for that has left."""
        memory = self.fold.memory
        held = {p.node for p in self.cluster.views() if p.is_held}
        before = self.training
        self.training = {n: t for n, t in memory.assignment.items() if n in held}
        for node, pair in memory.replacing.items():
            if pair.node not in self.training and node in before:
                self.training[node] = before[node]
        self.decide()

    @rule()
    def decide_again(self) -> None:
        """Asked a second time about the very same, it wants nothing more."""
        self.decide()
        plan = self.decide(is_new=False)
        assert (plan.claims, plan.releases) == ((), ())

    @rule()
    def reservations_cannot_be_read(self) -> None:
        assert self.decide(without(self.cluster.snapshot(), "reservations")).claims == ()

    @rule(source=st.sampled_from(["nodes", "jobs"]))
    def batch_system_is_silent(self, source: str) -> None:
        before = self.fold.memory
        self.cluster.pass_time(100.0)
        blind = without(self.cluster.snapshot(), source)
        plan = self.fold.decide(
            blind, self.cluster.views(), tuple(self.trainers.values()), at_s=self.cluster.now_s
        )
        assert (plan.claims, plan.releases, plan.memory) == ((), (), before)

    # ---- judgement ------------------------------------------------------------------------

    def decide(self, seen: Snapshot | None = None, *, is_new: bool = True) -> Plan:
        seen = seen or self.cluster.snapshot()
        plan = self.fold.decide(
            seen,
            self.cluster.views(),
            tuple(self.trainers.values()),
            at_s=self.cluster.now_s,
            is_new=is_new,
            training=self._training(),
            speeds={n: self.slow[n] for n in self._training() if n in self.slow},
        )
        self._check_assignment(plan)
        self._check_stragglers(plan)
        self._check_claims(plan, seen)
        self._check_releases(plan)
        self._check_head(plan)
        self._check_plan(plan)
        self._check_haste(plan)
        self.cluster.carry_out(plan)
        return plan

    def _check_assignment(self, plan: Plan) -> None:
        pool = {n.name for n in plan.pool}
        assert set(plan.assignment) <= pool
        assert pool | set(plan.not_used) == set(TYPES)
        assert not pool & set(plan.not_used)
        sizes = Counter(plan.assignment.values())
        assert len(sizes) <= self.fold.settings.p_jmax
        for trainer_id, size in sizes.items():
            spec = self.trainers[trainer_id].spec
            assert spec.n_min <= size <= spec.n_max

    def _training(self) -> dict[str, str]:
        held = {p.node for p in self.cluster.views() if p.is_held and not p.is_leaving}
        return {n: t for n, t in self.training.items() if n in held and t in self.trainers}

    def _check_haste(self, plan: Plan) -> None:
        """In haste the same is given back, and everything else stays as it was."""
        hasty = self.fold.in_haste
        assert hasty is not None
        assert hasty.releases == tuple(r for r in plan.releases if r.for_job)
        assert hasty.claims == ()
        assert not {r.node for r in hasty.releases} & hasty.assignment.keys()

    def _check_stragglers(self, plan: Plan) -> None:
        """Who is replaced stays, is nobody else's, and somebody is to come for it."""
        memory = plan.memory
        unwanted = {r.node for r in plan.releases if r.reason == "No trainer wants it."}
        for node, pair in memory.replacing.items():
            assert node not in plan.assignment
            assert node not in unwanted
            assert plan.assignment[pair.node] == pair.trainer_id
            assert self._training()[node] == pair.trainer_id
            assert node in memory.slow_nodes
        if not self.fold.settings.straggler_threshold:
            assert (memory.slow_nodes, memory.replacing) == ({}, {})

    def _check_claims(self, plan: Plan, seen: Snapshot) -> None:
        states = {n.name: n.state for n in seen.nodes or ()}
        nodes = [c.node for c in plan.claims]
        assert len(set(nodes)) == len(nodes)
        assert not set(nodes) & {p.node for p in self.cluster.pilots.values()}
        limits = self.fold.settings
        for claim in plan.claims:
            assert states[claim.node] in FREE
            assert plan.assignment[claim.node] == claim.for_trainer
            assert limits.min_gap_s <= claim.time_limit_s <= limits.pilot_time_limit_s
        for node_type in set(TYPES.values()):
            free = {n for n in self.cluster.free() if TYPES[n] == node_type}
            free -= {p.node for p in self.cluster.pilots.values()}
            if free & claimed(plan):
                assert len(free - claimed(plan)) >= limits.reserve_nodes_per_type

    def _check_releases(self, plan: Plan) -> None:
        ids = [r.pilot_id for r in plan.releases]
        assert len(set(ids)) == len(ids)
        for release in plan.releases:
            pilot = self.cluster.pilots[release.pilot_id]
            assert not pilot.is_leaving
            assert pilot.node == release.node
            assert release.reason.endswith(".")
            assert release.node not in plan.assignment
            if release.for_job:
                assert self.cluster.jobs[release.for_job].start_s is None
                assert release.node in plan.memory.held_off

    def _check_head(self, plan: Plan) -> None:
        """The first job in the queue finds what it needs, if we are all that is in its way."""
        head = next(iter(self.cluster.waiting()), None)
        if head is None:
            return
        free = set(self.cluster.free())
        ours = {
            p.node
            for p in self.cluster.pilots.values()
            if (p.start_s is not None or p.node in free) and p.node not in self.cluster.drained
        }
        leaving = {p.node for p in self.cluster.pilots.values() if p.is_leaving}
        given = {r.node for r in plan.releases} | leaving
        # A free node with a pilot waiting for it does not hurt: ordinary jobs go first.
        if len(free | ours) < head.n_nodes or len(free | (ours & given)) >= head.n_nodes:
            return
        known = plan.memory.vain.get(head.job_id)
        assert known is not None, "the head of the queue got nothing"
        assert known.refused_s is not None

    def _check_plan(self, plan: Plan) -> None:
        """Nothing of ours stays where somebody is planned within the margin."""
        planned_s, planned = self.cluster.head_plan()
        margin_s = self.fold.settings.gap_margin_s
        if planned_s is None or planned_s - self.cluster.now_s > margin_s:
            return
        given = {r.node for r in plan.releases}
        for pilot in self.cluster.pilots.values():
            if pilot.node in planned and not pilot.is_leaving:
                assert pilot.node in given
        assert not claimed(plan) & set(planned)

    # ---- quiescence --------------------------------------------------------------------------

    def teardown(self) -> None:
        self.cluster.is_frozen = True
        # Who is kept from starting by what we cannot see is tried again, if ever more seldom.
        hopeless = [job_id for job_id, job in self.cluster.jobs.items() if job.is_hopeless]
        for job_id in hopeless:
            del self.cluster.jobs[job_id]
        asked: list[int] = []
        for _ in range(40):
            self.cluster.cycle()
            self.cluster.connect_agents()
            plan = self.decide()
            self.cluster.pass_time(CYCLE_S)
            asked.append(len(plan.claims) + len(plan.releases))
        assert not any(asked[-12:]), asked


Decisions.TestCase.settings = settings(
    max_examples=examples(60, of=4),
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestDecisions = Decisions.TestCase
