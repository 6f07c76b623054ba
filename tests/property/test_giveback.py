"""Give-back held against a scheduler of its own: nobody is harmed, nothing goes in vain.

Random small clusters. The scheduler here knows nothing of ``bftrainer.decide``: it takes
jobs in order of priority, lets later ones pass a blocked head where they do not delay it
(EASY backfill), and finds nodes by trying every choice.
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
from tests.support.snapshots import T0, given_back, held, node, pending, snapshot

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
    """The head of the queue, and what is planned for it."""

    job: Job
    start_s: float
    nodes: frozenset[str]


def can_all_start(
    cluster: Cluster, jobs: Sequence[Job], nodes: Collection[str], head: Blocked | None
) -> bool:
    """Try every choice of nodes for the first job, and so on."""
    if not jobs:
        return True
    job, *rest = jobs
    may_use = [n for n in sorted(nodes) if suits(cluster, job, n) and spares(job, n, head)]
    return any(
        can_all_start(cluster, rest, set(nodes) - set(chosen), head)
        for chosen in itertools.combinations(may_use, job.n_nodes)
    )


def spares(job: Job, name: str, head: Blocked | None) -> bool:
    is_before = head is None or job.priority > head.job.priority
    if is_before or head is None or name not in head.nodes:
        return True
    return T0 + (job.time_limit_s or 0.0) <= head.start_s


def schedule(cluster: Cluster, nodes: Collection[str]) -> tuple[list[Job], Blocked | None]:
    """One pass over the queue: who starts, and who is blocked first."""
    started: list[Job] = []
    head: Blocked | None = None
    for job in cluster.queue:
        if not job.is_entitled:
            continue
        if can_all_start(cluster, [*started, job], nodes, head):
            started.append(job)
        elif head is None:
            head = plan(cluster, job, started, nodes)
    return started, head


def plan(
    cluster: Cluster, job: Job, started: Sequence[Job], nodes: Collection[str]
) -> Blocked | None:
    """When and where the blocked job starts at the latest; ``None``: it never can."""
    until = dict(cluster.ends_s)
    left = sorted(nodes)
    for other in started:  # on the first nodes that suit: any choice is a plan
        for name in [n for n in left if suits(cluster, other, n)][: other.n_nodes]:
            until[name] = T0 + (other.time_limit_s or 0.0)
            left.remove(name)
    suitable = [n for n in (*left, *until) if suits(cluster, job, n)]
    chosen = sorted(suitable, key=lambda n: (until.get(n, T0), n))[: job.n_nodes]
    if len(chosen) < job.n_nodes:
        return None
    start_s = max(until.get(n, T0) for n in chosen)
    return Blocked(job=job, start_s=start_s, nodes=frozenset(chosen)) if start_s > T0 else None


# ---- what we do ------------------------------------------------------------------------


def ours_gives(cluster: Cluster, head: Blocked | None, *, are_assigned: bool) -> Draft:
    """Ask for releases; ``head``: as it is planned."""
    nodes = [
        node(
            name,
            NodeState.IDLE if name in cluster.free else NodeState.ALLOCATED,
            features=cluster.features[name],
        )
        for name in cluster.features
    ]
    queue = [
        replace(job, start_s=head.start_s, planned_nodes=tuple(sorted(head.nodes)))
        if head is not None and job is head.job
        else job
        for job in cluster.queue
    ]
    assignment = dict.fromkeys(cluster.ours, "t1") if are_assigned else {}
    memory = Memory(assignment=assignment)
    return given_back(snapshot(nodes, queue), held(*sorted(cluster.ours)), memory)


def starting(cluster: Cluster, draft: Draft) -> list[str]:
    """Who could start, in order."""
    return [job.job_id for job in cluster.queue if job.job_id not in draft.refused]


def subsets(names: Collection[str]) -> Iterator[frozenset[str]]:
    """By size, the smallest first."""
    for size in range(len(names) + 1):
        yield from map(frozenset, itertools.combinations(sorted(names), size))


_patient = settings(deadline=None, max_examples=250, suppress_health_check=[HealthCheck.too_slow])


@_patient
@given(cluster=clusters(), are_assigned=st.booleans())
def test_who_would_start_without_us_starts_and_no_node_goes_in_vain(
    cluster: Cluster, *, are_assigned: bool
) -> None:
    started, head = schedule(cluster, cluster.free | cluster.ours)
    draft = ours_gives(cluster, head, are_assigned=are_assigned)
    released = {release.node for release in draft.releases}
    assert released <= cluster.ours
    # Nobody is harmed: in this very pass all of them start on what is free now.
    assert can_all_start(cluster, started, cluster.free | released, head)
    assert schedule(cluster, cluster.free | released)[0][: len(started)] == started
    # And no choice of fewer nodes would have done.
    fewest = next(
        some
        for some in subsets(cluster.ours)
        if can_all_start(cluster, started, cluster.free | some, head)
    )
    assert len(released) == len(fewest)
    # What is said of each job is what the other scheduler found.
    assert starting(cluster, draft) == [job.job_id for job in started]


@_patient
@given(cluster=clusters())
def test_without_a_plan_jobs_are_judged_as_if_they_delayed_nobody(cluster: Cluster) -> None:
    """Backfill has not come round yet: what it will not let start may cost us nodes.

    A job behind such a one may find too few left; before it nobody is harmed.
    """
    started, head = schedule(cluster, cluster.free | cluster.ours)
    draft = ours_gives(cluster, None, are_assigned=True)
    released = {r.node for r in draft.releases}
    before = [job for job in started if head is None or job.priority > head.job.priority]
    assert starting(cluster, draft)[: len(before)] == [job.job_id for job in before]
    assert can_all_start(cluster, before, cluster.free | released, head)


@_patient
@given(cluster=clusters())
def test_jobs_get_what_they_lack_in_their_order(cluster: Cluster) -> None:
    """Every release says for whom, and with what is free it is as many as the job asks for."""
    _, head = schedule(cluster, cluster.free | cluster.ours)
    draft = ours_gives(cluster, head, are_assigned=True)
    sizes = {job.job_id: job.n_nodes for job in cluster.queue}
    for job_id, size in sizes.items():
        own = [r.node for r in draft.releases if r.for_job == job_id]
        assert len(set(own)) == len(own) <= size
    left_to_jobs = draft.for_jobs - {r.node for r in draft.releases}
    assert left_to_jobs <= cluster.free
    n_starting = sum(sizes[job_id] for job_id in starting(cluster, draft))
    assert len(draft.releases) + len(left_to_jobs) == n_starting
