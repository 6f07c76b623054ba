"""Gap ends of random queues: nothing planned is overlooked, and nothing is bounded in vain."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from bftrainer.decide.queue.models import PrintedQueue
from bftrainer.model.census import census_of
from bftrainer.model.cluster import Job, Node, NodeState, Reservation, Snapshot
from tests.support.examples import examples
from tests.support.snapshots import T0, node, pending, running, snapshot

CYCLE_S = 30.0
NAMES = tuple(f"n{k}" for k in range(8))
TIMES = st.integers(-40, 400).map(lambda s: T0 + s)
SOME = st.lists(st.sampled_from(NAMES), max_size=4, unique=True).map(tuple)
STATES = st.sampled_from([NodeState.IDLE, NodeState.PLANNED, NodeState.ALLOCATED])


@st.composite
def clusters(draw: st.DrawFn) -> Snapshot:
    """Eight nodes, running jobs on some, planned jobs and reservations over them."""
    busy = draw(SOME)
    states = {n: NodeState.ALLOCATED if n in busy else draw(STATES) for n in NAMES}
    jobs: list[Job] = [
        replace(running(f"r{n}", n, start_s=T0 - 10), time_limit_s=float(draw(st.integers(1, 400))))
        for n in busy
    ]
    for k in range(draw(st.integers(0, 4))):
        start_s = draw(st.none() | TIMES)
        jobs.append(pending(f"p{k}", draw(st.integers(1, 4)), start_s=start_s, planned=draw(SOME)))
    reservations = [
        Reservation(name="m", start_s=start_s, end_s=start_s + 100, nodes=draw(SOME))
        for start_s in draw(st.lists(TIMES, max_size=2))
    ]
    nodes = [node(n, states[n]) for n in NAMES]
    return snapshot(nodes, draw(st.permutations(jobs)), reservations=reservations)


@settings(max_examples=examples(200), deadline=None)
@given(clusters())
def test_no_plan_and_no_reservation_is_overlooked(seen: Snapshot) -> None:
    ends = PrintedQueue(census_of(seen), T0, CYCLE_S).gap_ends
    for reservation in seen.reservations or ():
        for name in reservation.nodes:
            assert ends[name].at_s <= reservation.start_s
    for job in seen.jobs or ():
        if job.job_id.startswith("p") and job.start_s is not None:
            for name in job.planned_nodes:
                assert ends[name].at_s <= job.start_s


@settings(max_examples=examples(200), deadline=None)
@given(clusters())
def test_every_end_is_somebodys_plan(seen: Snapshot) -> None:
    planned = {(n, r.start_s) for r in seen.reservations or () for n in r.nodes}
    planned |= {(n, j.start_s or 0.0) for j in seen.jobs or () for n in j.planned_nodes}
    for name, end in PrintedQueue(census_of(seen), T0, CYCLE_S).gap_ends.items():
        assert (name, end.at_s) in planned


@settings(max_examples=examples(100), deadline=None)
@given(clusters(), st.randoms(use_true_random=False))
def test_the_order_in_which_things_are_read_does_not_matter(
    seen: Snapshot, chance: random.Random
) -> None:
    nodes: list[Node] = list(seen.nodes or ())
    jobs: list[Job] = list(seen.jobs or ())
    first = PrintedQueue(census_of(seen), T0, CYCLE_S).gap_ends
    chance.shuffle(nodes)
    chance.shuffle(jobs)
    mixed = replace(seen, nodes=tuple(nodes), jobs=tuple(jobs))
    again = PrintedQueue(census_of(mixed), T0, CYCLE_S).gap_ends
    assert {n: e.at_s for n, e in again.items()} == {n: e.at_s for n, e in first.items()}
