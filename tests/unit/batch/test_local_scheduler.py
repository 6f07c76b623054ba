"""The local batch system's scheduler: its promises, for any queue."""

from __future__ import annotations

import heapq
import itertools
from dataclasses import replace
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from bftrainer.batch.local.scheduler import (
    HeadReservation,
    LocalAllocation,
    PendingJob,
    SchedulerPass,
    run_pass,
)
from bftrainer.batch.local.workload import PastJob, delays_s, start_times_s
from tests.support.examples import examples

CYCLE_S = 5.0
NODES = ("n1", "n2", "n3", "n4")


def held(job_id: str, *nodes: str, start_s: float = 0.0, limit_s: float = 10.0) -> LocalAllocation:
    return LocalAllocation(job_id=job_id, nodes=nodes, start_s=start_s, ends_by_s=start_s + limit_s)


def held_pilot(
    job_id: str, node: str, *, start_s: float = 0.0, is_ending: bool = False
) -> LocalAllocation:
    return LocalAllocation(
        job_id=job_id,
        nodes=(node,),
        start_s=start_s,
        ends_by_s=start_s + 100,
        is_pilot=True,
        is_ending=is_ending,
    )


def waiting(
    job_id: str, n_nodes: int, limit_s: float = 10.0, claim: tuple[str, ...] = ()
) -> PendingJob:
    return PendingJob(job_id=job_id, n_nodes=n_nodes, limit_s=limit_s, claim=claim)


def one_pass(
    *queue: PendingJob,
    held: tuple[LocalAllocation, ...] = (),
    pilots: tuple[PendingJob, ...] = (),
    nodes: tuple[str, ...] = NODES,
    is_full: bool = True,
) -> SchedulerPass:
    return run_pass(
        now_s=0.0, nodes=nodes, held=held, waiting=queue, pilots=pilots, is_full=is_full
    )


def test_jobs_start_in_order_on_free_nodes() -> None:
    decided = one_pass(waiting("a", 1), waiting("b", 2), is_full=False)
    assert decided.starts == {"a": ("n1",), "b": ("n2", "n3")}
    assert decided.plan is None


def test_blocked_head_is_planned_and_short_jobs_fill_the_gap() -> None:
    queue = (waiting("head", 4), waiting("long", 1, 11.0), waiting("short", 1, 10.0))
    busy = (held("r", "n1", "n2", "n3"),)
    decided = one_pass(*queue, held=busy)
    assert decided.starts == {"short": ("n4",)}
    assert decided.plan is not None
    assert (decided.plan.job_id, decided.plan.start_s) == ("head", 10.0)
    assert sorted(decided.plan.nodes) == list(NODES)
    # Without backfill nothing passes the head.
    assert one_pass(*queue, held=busy, is_full=False).starts == {}


def test_long_job_may_use_nodes_the_head_does_not_need() -> None:
    decided = one_pass(
        waiting("head", 3),
        waiting("long", 1, 500.0),
        waiting("long2", 1, 500.0),
        held=(held("r", "n1", "n2"),),
    )
    assert decided.starts == {"long": ("n3",)}
    assert decided.plan is not None
    assert sorted(decided.plan.nodes) == ["n1", "n2", "n4"]


def test_job_wider_than_what_is_up_holds_nobody_up() -> None:
    decided = one_pass(waiting("wide", 4), waiting("next", 1), nodes=NODES[:3], is_full=False)
    assert decided.starts == {"next": ("n1",)}


def test_pilots_make_way_the_youngest_first_and_only_as_many_as_needed() -> None:
    pilots = tuple(held_pilot(f"p{i}", f"n{i}", start_s=float(i)) for i in (1, 2, 3))
    decided = one_pass(waiting("a", 2), held=pilots)
    assert decided.claims == {"a": ("n4", "n3")}
    assert decided.preempted == ["p3"]
    assert decided.starts == {}


def test_a_job_that_may_not_preempt_leaves_time_to_give_back() -> None:
    pilots = tuple(held_pilot(f"p{i}", f"n{i}") for i in (1, 2, 3))

    def patient(job_id: str, n_nodes: int) -> PendingJob:
        return PendingJob(job_id=job_id, n_nodes=n_nodes, limit_s=10.0, may_preempt=False)

    queue = (patient("free", 1), patient("a", 2), waiting("b", 1))
    decided = one_pass(*queue, held=pilots)
    assert decided.starts == {"free": ("n4",)}
    assert (decided.claims, decided.preempted, decided.plan) == ({}, [], None)
    # A pilot that is leaving is in nobody's way.
    leaving = (*pilots[:2], held_pilot("p3", "n3", is_ending=True))
    assert one_pass(patient("a", 2), held=leaving).claims == {"a": ("n4", "n3")}


def test_pilots_share_a_node_by_its_gpus() -> None:
    def pilot(job_id: str, gpus: int) -> PendingJob:
        return PendingJob(job_id=job_id, claim=("n1",), limit_s=1.0, gpus=gpus)

    there = replace(held_pilot("p1", "n1"), gpus=2)
    asking = [pilot("three", 3), pilot("whole", 0), pilot("one", 1), pilot("last", 1)]
    decided = run_pass(
        now_s=0.0,
        nodes=NODES,
        held=[there],
        waiting=(),
        pilots=[*asking, pilot("none", 1)],
        is_full=True,
        gpus_per_node=4,
    )
    assert decided.starts == {"one": ("n1",), "last": ("n1",)}
    beside_whole = run_pass(
        now_s=0.0,
        nodes=("n1",),
        held=[held_pilot("p1", "n1")],
        waiting=(),
        pilots=[pilot("one", 1)],
        is_full=True,
        gpus_per_node=4,
    )
    assert not beside_whole.starts
    ordinary = one_pass(waiting("j", 1), held=(there, replace(there, job_id="p2")), nodes=("n1",))
    assert sorted(ordinary.preempted) == ["p1", "p2"]
    assert ordinary.claims == {"j": ("n1",)}


def test_pilot_on_its_way_out_is_preferred_and_not_preempted_again() -> None:
    pilots = (
        held_pilot("p1", "n1", start_s=9),
        held_pilot("p2", "n2", is_ending=True),
        *(held_pilot(f"p{i}", f"n{i}", start_s=9) for i in (3, 4)),
    )
    decided = one_pass(waiting("a", 1), held=pilots)
    assert decided.claims == {"a": ("n2",)}
    assert decided.preempted == []


def test_claimed_nodes_are_nobody_elses() -> None:
    claim = waiting("a", 2, claim=("n1", "n2"))
    leaving = held_pilot("p", "n1", is_ending=True)
    pilots = (PendingJob(job_id="q", claim=("n2",), limit_s=1),)
    decided = one_pass(waiting("first", 3), claim, held=(leaving,), pilots=pilots)
    assert decided.starts == {}
    assert decided.claims == {"a": ("n1", "n2")}
    assert decided.plan is not None
    assert decided.plan.job_id == "first"
    # The pilot has left: the claim becomes a start.
    assert one_pass(waiting("first", 3), claim).starts == {"a": ("n1", "n2")}
    # A claimed node went down: back into the queue.
    assert one_pass(claim, nodes=NODES[1:]).starts == {"a": ("n2", "n3")}


def test_pilot_starts_only_behind_all_and_within_the_gap() -> None:
    pilots = (
        PendingJob(job_id="too-long", claim=("n4",), limit_s=10.1),
        PendingJob(job_id="fits", claim=("n4",), limit_s=10.0),
        PendingJob(job_id="same-node", claim=("n4",), limit_s=1.0),
        PendingJob(job_id="busy", claim=("n1",), limit_s=1.0),
        PendingJob(job_id="no-such", claim=("n9",), limit_s=1.0),
    )
    busy = (held("r", "n1", "n2", "n3"),)
    assert one_pass(waiting("head", 4), held=busy, pilots=pilots).starts == {"fits": ("n4",)}
    # The pass for the head of the queue does not come as far as the pilots.
    assert one_pass(waiting("head", 4), held=busy, pilots=pilots, is_full=False).starts == {}
    assert one_pass(held=busy, pilots=pilots, is_full=False).starts == {"too-long": ("n4",)}


# -- any queue -------------------------------------------------------------------------

times = st.integers(0, 400).map(lambda x: x / 10)
spans = st.integers(1, 200).map(lambda x: x / 10)


@st.composite
def past_jobs(draw: st.DrawFn) -> list[PastJob]:
    jobs = []
    for number in range(draw(st.integers(0, 8))):
        limit_s = draw(spans)
        jobs.append(
            PastJob(
                job_id=f"j{number}",
                n_nodes=draw(st.integers(1, 4)),
                limit_s=limit_s,
                submit_s=draw(times),
                duration_s=min(limit_s, draw(spans)),
            )
        )
    return sorted(jobs, key=lambda j: j.submit_s)


pilot_wishes = st.lists(
    st.tuples(times, st.sampled_from(NODES), spans, spans), max_size=10
)  # submit, node, limit, duration


class Simulation:
    """A cluster with pilots that leave at once, in virtual time; checks every pass."""

    def __init__(self, jobs: list[PastJob], pilots: list[tuple[float, str, float, float]]) -> None:
        self.starts: dict[str, float] = {}
        self.order = itertools.count()
        self.events: list[tuple[float, int, str, str]] = []
        self.jobs = {j.job_id: j for j in jobs}
        self.queue: dict[str, PendingJob] = {}
        self.pilots = {f"p{i}": p for i, p in enumerate(pilots)}
        self.pilot_queue: dict[str, PendingJob] = {}
        self.running: dict[str, LocalAllocation] = {}
        for job in jobs:
            self.at(job.submit_s, "submit", job.job_id)
        for pilot_id, pilot in self.pilots.items():
            self.at(pilot[0], "pilot", pilot_id)
        self.next_cycle = 0

    def at(self, when_s: float, kind: str, job_id: str) -> None:
        heapq.heappush(self.events, (when_s, next(self.order), kind, job_id))

    def run(self) -> dict[str, float]:
        while self.events or self.queue:
            cycle_s = self.next_cycle * CYCLE_S
            now_s = min([cycle_s, *(e[0] for e in self.events[:1])])
            while self.events and self.events[0][0] <= now_s:
                self.happen(*heapq.heappop(self.events)[2:])
            self.make_pass(now_s, is_full=False)
            if now_s == cycle_s:
                self.make_pass(now_s, is_full=True)
                self.next_cycle += 1
        return self.starts

    def happen(self, kind: str, job_id: str) -> None:
        if kind == "submit":
            job = self.jobs[job_id]
            self.queue[job_id] = waiting(job_id, job.n_nodes, job.limit_s)
        elif kind == "pilot":
            _, node, limit_s, _ = self.pilots[job_id]
            self.pilot_queue[job_id] = PendingJob(job_id=job_id, claim=(node,), limit_s=limit_s)
        else:
            self.running.pop(job_id, None)  # a pilot may have been preempted before

    def make_pass(self, now_s: float, *, is_full: bool) -> None:
        decided = run_pass(
            now_s=now_s,
            nodes=NODES,
            held=list(self.running.values()),
            waiting=list(self.queue.values()),
            pilots=list(self.pilot_queue.values()),
            is_full=is_full,
        )
        for job_id in decided.preempted:
            assert self.running.pop(job_id).is_pilot
        for job_id, nodes in decided.claims.items():
            job = self.queue[job_id]
            self.queue[job_id] = waiting(job_id, job.n_nodes, job.limit_s, claim=nodes)
        for job_id, nodes in decided.starts.items():
            self.start(now_s, job_id, nodes, decided.plan)
        if decided.claims:  # the preempted pilots are gone already
            self.make_pass(now_s, is_full=False)

    def start(
        self, now_s: float, job_id: str, nodes: tuple[str, ...], plan: HeadReservation | None
    ) -> None:
        in_use = {n for h in self.running.values() for n in h.nodes}
        claimed = {n for w in self.queue.values() if w.job_id != job_id for n in w.claim}
        assert not in_use & set(nodes)
        assert not claimed & set(nodes)
        assert len(set(nodes)) == len(nodes)
        assert set(nodes) <= set(NODES)
        is_pilot = job_id in self.pilots
        if is_pilot:
            _, node, limit_s, duration_s = self.pilots[job_id]
            assert nodes == (node,)
            if plan is not None and node in plan.nodes:
                assert now_s + limit_s <= plan.start_s
            del self.pilot_queue[job_id]
        else:
            job = self.jobs[job_id]
            limit_s, duration_s = job.limit_s, job.duration_s
            assert len(nodes) == job.n_nodes
            del self.queue[job_id]
            self.starts[job_id] = now_s
        self.running[job_id] = LocalAllocation(
            job_id=job_id,
            nodes=nodes,
            start_s=now_s,
            ends_by_s=now_s + limit_s,
            is_pilot=is_pilot,
        )
        self.at(now_s + min(limit_s, duration_s), "end", job_id)


@given(past_jobs(), pilot_wishes)
@example(
    [
        PastJob(job_id="j0", n_nodes=3, limit_s=10, submit_s=0, duration_s=10),
        PastJob(job_id="j1", n_nodes=4, limit_s=10, submit_s=1, duration_s=5),
        PastJob(job_id="j2", n_nodes=1, limit_s=5, submit_s=2, duration_s=5),
    ],
    [(0.0, n, 20.0, 20.0) for n in NODES],
)
@example(  # a full pass at the very first submission
    [
        PastJob(job_id=f"j{i}", n_nodes=n, limit_s=0.1, submit_s=0, duration_s=0.1)
        for i, n in enumerate((1, 4, 1))
    ],
    [],
)
@example(  # no full pass between two cycles after the queue was empty for a while
    [
        PastJob(job_id=f"j{i}", n_nodes=n, limit_s=limit_s, submit_s=at_s, duration_s=limit_s)
        for i, (n, limit_s, at_s) in enumerate([(1, 20, 6), (4, 1, 7.5), (1, 1, 7.5)])
    ],
    [],
)
@settings(max_examples=examples(400), deadline=None)
def test_no_ordinary_job_starts_later_because_of_pilots(
    jobs: list[PastJob], pilots: list[tuple[float, str, float, float]]
) -> None:
    alone = start_times_s(jobs, nodes=NODES, cycle_s=CYCLE_S)
    assert set(alone) == {j.job_id for j in jobs}
    assert Simulation(jobs, pilots).run() == alone
    # Any full pass tells when the others are, a late one too.
    assert start_times_s(jobs, nodes=NODES, cycle_s=CYCLE_S, cycle_at_s=50.0) == alone
    assert all(alone[j.job_id] >= j.submit_s for j in jobs)


@given(past_jobs())
@settings(max_examples=examples(200), deadline=None)
def test_backfill_never_delays_the_head_of_the_queue(jobs: list[PastJob]) -> None:
    # A planned start is a promise: later passes may only improve it.
    simulation = Simulation(jobs, [])
    promised: dict[str, float] = {}
    make_pass = simulation.make_pass

    def checked_pass(now_s: float, *, is_full: bool) -> None:
        make_pass(now_s, is_full=is_full)
        decided = run_pass(
            now_s=now_s,
            nodes=NODES,
            held=list(simulation.running.values()),
            waiting=list(simulation.queue.values()),
            pilots=(),
            is_full=False,
        )
        if decided.plan is not None:
            job_id = decided.plan.job_id
            assert decided.plan.start_s <= promised.get(job_id, decided.plan.start_s)
            promised[job_id] = decided.plan.start_s

    simulation.make_pass = checked_pass  # type: ignore[method-assign]  # observes each pass
    starts = simulation.run()
    for job_id, start_s in promised.items():
        assert starts[job_id] <= start_s


def test_withdrawn_head_makes_way_at_once() -> None:
    jobs = [
        PastJob(job_id="a", n_nodes=3, limit_s=50, submit_s=0, duration_s=50),
        PastJob(job_id="b", n_nodes=4, limit_s=9, submit_s=1, duration_s=9, withdrawn_s=6),
        PastJob(job_id="c", n_nodes=1, limit_s=90, submit_s=2, duration_s=9),
    ]
    assert start_times_s(jobs, nodes=NODES, cycle_s=CYCLE_S) == {"a": 0, "c": 6}


def test_delays_are_measured_against_a_cluster_without_pilots() -> None:
    def past(
        job_id: str, submit_s: float, start_s: float | None, end_s: float | None
    ) -> dict[str, Any]:
        return {
            "job_id": job_id,
            "n_nodes": 2,
            "limit_s": 10.0,
            "submit_s": submit_s,
            "start_s": start_s,
            "end_s": end_s,
        }

    history = [
        past("1", 0.0, 0.0, 4.0),
        past("2", 1.0, 5.5, 8.0),  # 1.5 s after the first one ended
        past("3", 2.0, None, 3.0),  # withdrawn while it waited
        past("4", 3.0, 8.0, None),  # still running
        past("5", 4.0, None, None),  # still waiting
    ]
    assert delays_s(history, n_nodes=2, cycle_s=1.0) == {"1": 0.0, "2": 1.5, "4": 1.5}
    assert delays_s([], n_nodes=2, cycle_s=1.0) == {}
