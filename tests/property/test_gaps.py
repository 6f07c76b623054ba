"""Gap ends of random queues: nothing planned is overlooked, and nothing is bounded in vain."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from bftrainer.decide.gaps import Then, gap_ends
from bftrainer.poll.snapshot import Job, Node, NodeState, Reservation, Snapshot
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


def _free(seen: Snapshot, ours: frozenset[str]) -> set[str]:
    usable = (NodeState.IDLE, NodeState.PLANNED)
    return {n.name for n in seen.nodes or () if n.state in usable or n.name in ours}


@settings(max_examples=200, deadline=None)
@given(clusters(), st.frozensets(st.sampled_from(NAMES)))
def test_no_plan_and_no_reservation_is_overlooked(seen: Snapshot, ours: frozenset[str]) -> None:
    ends = gap_ends(seen, T0, CYCLE_S, ours)
    for reservation in seen.reservations or ():
        for name in reservation.nodes:
            assert ends[name].at_s <= reservation.start_s
    for job in seen.jobs or ():
        if job.job_id.startswith("p") and job.start_s is not None:
            for name in job.planned_nodes:
                assert ends[name].at_s <= job.start_s


@settings(max_examples=200, deadline=None)
@given(clusters(), st.frozensets(st.sampled_from(NAMES)), st.integers(1, 8), TIMES)
def test_a_job_that_may_take_any_node_finds_what_it_needs_and_we_lose_no_more(
    seen: Snapshot, ours: frozenset[str], n_nodes: int, start_s: float
) -> None:
    """We are off the bounded nodes when it starts, and for ever on all others we could use."""
    jobs = seen.jobs or ()
    named = [j for j in jobs if j.start_s is not None and (j.nodes or j.planned_nodes)]
    ours -= {n for j in named for n in j.nodes}
    known = gap_ends(replace(seen, jobs=tuple(named)), T0, CYCLE_S, ours)
    any_node = pending("any", n_nodes, start_s=start_s)
    ends = gap_ends(replace(seen, jobs=(*named, any_node)), T0, CYCLE_S, ours)
    bounded = {n for n, e in ends.items() if e.then is Then.ANY_JOB}
    left = {
        n
        for job in named
        for n in job.nodes
        if n not in known and job.start_s is not None
        if job.start_s + (job.time_limit_s or 0.0) <= start_s
    }
    could = {n for n in _free(seen, ours) if n not in known or known[n].at_s > start_s}
    assert bounded <= could
    assert len(bounded) == max(0, min(n_nodes - len(left), len(could)))
    assert all(ends[n].at_s == start_s for n in bounded)


@settings(max_examples=100, deadline=None)
@given(clusters(), st.randoms(use_true_random=False))
def test_the_order_in_which_things_are_read_does_not_matter(
    seen: Snapshot, chance: random.Random
) -> None:
    nodes: list[Node] = list(seen.nodes or ())
    jobs: list[Job] = list(seen.jobs or ())
    first = gap_ends(seen, T0, CYCLE_S)
    chance.shuffle(nodes)
    chance.shuffle(jobs)
    again = gap_ends(replace(seen, nodes=tuple(nodes), jobs=tuple(jobs)), T0, CYCLE_S)
    assert {n: e.at_s for n, e in again.items()} == {n: e.at_s for n, e in first.items()}
