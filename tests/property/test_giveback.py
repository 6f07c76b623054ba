"""Give-back held against a scheduler of its own: nobody is harmed, nothing goes in vain.

Random small clusters. The scheduler here knows nothing of ``bftrainer.decide``: it takes
jobs in order of priority, lets later ones pass a blocked one where they do not delay it, and
finds nodes by trying every choice. Where and when the blocked ones are planned it takes from
``bftrainer.decide.queue`` (tests/unit/decide/test_backfill.py): of several choices Slurm's own
counts.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bftrainer.decide.draft import Draft
from bftrainer.model.cluster import Job, NodeState
from bftrainer.model.decision import Memory
from tests.support.examples import examples
from tests.support.snapshots import T0, given_back, held, node, pending, running, snapshot

FEATURES = ("", "a", "b", "a&b", "a|b")
PLACES = (NodeState.IDLE, NodeState.ALLOCATED, NodeState.COMPLETING)  # free, ours, a job's


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Nodes, whose they are, and the queue."""

    features: Mapping[str, tuple[str, ...]]
    free: frozenset[str]
    ours: frozenset[str]
    ends_s: Mapping[str, float]  # of the jobs on the other nodes
    queue: tuple[Job, ...]  # in order of priority


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    names = [f"n{k}" for k in range(draw(st.integers(1, 6)))]
    has = st.sampled_from([(), ("a",), ("b",), ("a", "b"), ("z",)])
    places = {name: draw(st.sampled_from(PLACES)) for name in names}
    jobs = [
        replace(
            pending(
                str(number),
                draw(st.integers(1, 4)),
                limit_s=draw(st.sampled_from([100.0, 500.0, 2000.0])),
                features=draw(st.sampled_from(FEATURES)),
                priority=-float(number),
                is_entitled=draw(st.sampled_from([True, True, True, False])),
            ),
            excluded_nodes=tuple(draw(st.lists(st.sampled_from(names), max_size=1))),
        )
        for number in range(draw(st.integers(1, 5)))
    ]
    return Cluster(
        features={name: draw(has) for name in names},
        free=frozenset(n for n in names if places[n] is NodeState.IDLE),
        ours=frozenset(n for n in names if places[n] is NodeState.ALLOCATED),
        ends_s={
            n: T0 + draw(st.sampled_from([50.0, 300.0, 1000.0]))
            for n in names
            if places[n] is NodeState.COMPLETING
        },
        queue=tuple(jobs),
    )


# ---- the scheduler ---------------------------------------------------------------------


def suits(cluster: Cluster, job: Job, name: str) -> bool:
    if name in job.excluded_nodes:
        return False
    has = set(cluster.features[name])
    if not has:  # a node that does not say is never ruled out
        return True
    wanted = {name for way in job.wants for name in way.everywhere}
    return bool(has & wanted) if "|" in wanted else has >= wanted - {"&"}


@dataclass(frozen=True, kw_only=True)
class Blocked:
    """A job that cannot start yet, and what is planned for it."""

    job: Job
    start_s: float
    nodes: frozenset[str]


def can_all_start(
    cluster: Cluster, jobs: Sequence[Job], nodes: Collection[str], blocked: Sequence[Blocked]
) -> bool:
    """Try every choice of nodes for the first job, and so on."""
    if not jobs:
        return True
    job, *rest = jobs
    may_use = [n for n in sorted(nodes) if suits(cluster, job, n) and spares(job, n, blocked)]
    return any(
        can_all_start(cluster, rest, set(nodes) - set(chosen), blocked)
        for chosen in itertools.combinations(may_use, job.n_nodes)
    )


def spares(job: Job, name: str, blocked: Sequence[Blocked]) -> bool:
    """Whether the job is gone when one before it is to start there."""
    return all(
        T0 + (job.time_limit_s or 0.0) <= one.start_s
        for one in blocked
        if one.job.priority > job.priority and name in one.nodes
    )


def schedule(
    cluster: Cluster, nodes: Collection[str], blocked: Sequence[Blocked] = ()
) -> list[Job]:
    """One pass over the queue: who starts."""
    started: list[Job] = []
    for job in cluster.queue:
        if job.is_entitled and can_all_start(cluster, [*started, job], nodes, blocked):
            started.append(job)
    return started


# ---- what we do ------------------------------------------------------------------------


def ours_gives(cluster: Cluster, *, are_assigned: bool = True) -> Draft:
    """Ask for releases."""
    nodes = [
        node(
            name,
            NodeState.IDLE if name in cluster.free else NodeState.ALLOCATED,
            features=cluster.features[name],
        )
        for name in cluster.features
    ]
    elsewhere = [
        replace(running(f"on-{name}", name), time_limit_s=end_s - T0)
        for name, end_s in cluster.ends_s.items()
    ]
    assignment = dict.fromkeys(cluster.ours, "t1") if are_assigned else {}
    memory = Memory(assignment=assignment)
    seen = snapshot(nodes, [*elsewhere, *cluster.queue])
    return given_back(seen, held(*sorted(cluster.ours)), memory)


def planned(cluster: Cluster, draft: Draft) -> list[Blocked]:
    """What the queue model plans for those who cannot start."""
    jobs = {job.job_id: job for job in cluster.queue}
    return [
        Blocked(
            job=jobs[end.by],
            start_s=end.at_s,
            nodes=frozenset(n.name for n in draft.queue.sets.members(nodes)),
        )
        for end, nodes in draft.planned_starts
    ]


def starting(cluster: Cluster, draft: Draft) -> list[str]:
    """Who could start, in order."""
    return [job.job_id for job in cluster.queue if job.job_id not in draft.refused]


def latest_s(cluster: Cluster, job: Job, started: Sequence[Job]) -> float:
    """When a blocked job can start even if those that start are all on its nodes till then."""
    until = {**dict.fromkeys(cluster.features, T0), **cluster.ends_s}
    ends = {T0 + (other.time_limit_s or 0.0) for other in started}
    return min(
        at_s
        for at_s in {*until.values(), *ends}
        if sum(suits(cluster, job, name) and end_s <= at_s for name, end_s in until.items())
        - sum(other.n_nodes for other in started if T0 + (other.time_limit_s or 0.0) > at_s)
        >= job.n_nodes
    )


def subsets(names: Collection[str]) -> Iterator[frozenset[str]]:
    """By size, the smallest first."""
    for size in range(len(names) + 1):
        yield from map(frozenset, itertools.combinations(sorted(names), size))


_patient = settings(
    deadline=None, max_examples=examples(250), suppress_health_check=[HealthCheck.too_slow]
)


@_patient
@given(cluster=clusters(), are_assigned=st.booleans())
def test_who_would_start_without_us_starts_and_no_node_goes_in_vain(
    cluster: Cluster, *, are_assigned: bool
) -> None:
    draft = ours_gives(cluster, are_assigned=are_assigned)
    blocked = planned(cluster, draft)
    started = schedule(cluster, cluster.free | cluster.ours, blocked)
    released = {release.node for release in draft.releases}
    assert released <= cluster.ours
    # What is said of each job is what the other scheduler found.
    assert starting(cluster, draft) == [job.job_id for job in started]
    # Nobody is harmed: in this very pass all of them start on what is free now.
    assert can_all_start(cluster, started, cluster.free | released, blocked)
    # And no choice of fewer nodes would have done.
    fewest = next(
        some
        for some in subsets(cluster.ours)
        if can_all_start(cluster, started, cluster.free | some, blocked)
    )
    assert len(released) == len(fewest)


@_patient
@given(cluster=clusters())
def test_a_job_is_planned_on_nodes_that_suit_it_and_not_before_they_are_free(
    cluster: Cluster,
) -> None:
    draft = ours_gives(cluster)
    start = starting(cluster, draft)
    for one in planned(cluster, draft):
        assert one.job.job_id not in start
        assert len(one.nodes) == one.job.n_nodes
        assert all(suits(cluster, one.job, name) for name in one.nodes)
        assert all(cluster.ends_s.get(name, T0) <= one.start_s for name in one.nodes)
    for first in planned(cluster, draft)[:1]:
        started = [job for job in cluster.queue if job.job_id in start]
        assert first.start_s <= latest_s(cluster, first.job, started)


@_patient
@given(cluster=clusters())
def test_nobody_before_the_first_blocked_job_is_harmed_whatever_is_planned(
    cluster: Cluster,
) -> None:
    """Without any plan the first that cannot start is the same, and those before it start."""
    draft = ours_gives(cluster)
    everybody = [job for job in cluster.queue if job.is_entitled]
    started = schedule(cluster, cluster.free | cluster.ours)
    before = [job for job, other in zip(everybody, [*started, None], strict=False) if job is other]
    assert starting(cluster, draft)[: len(before)] == [job.job_id for job in before]
    released = {release.node for release in draft.releases}
    assert can_all_start(cluster, before, cluster.free | released, ())


@_patient
@given(cluster=clusters())
def test_jobs_get_what_they_lack_in_their_order(cluster: Cluster) -> None:
    """Every release says for whom, and with what is free it is as many as the job asks for."""
    draft = ours_gives(cluster)
    sizes = {job.job_id: job.n_nodes for job in cluster.queue}
    for job_id, size in sizes.items():
        own = [r.node for r in draft.releases if r.for_job == job_id]
        assert len(set(own)) == len(own) <= size
    left_to_jobs = draft.for_jobs - {r.node for r in draft.releases}
    assert left_to_jobs <= cluster.free
    n_starting = sum(sizes[job_id] for job_id in starting(cluster, draft))
    assert len(draft.releases) + len(left_to_jobs) == n_starting
