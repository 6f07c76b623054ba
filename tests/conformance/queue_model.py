"""What every queue model must do: one test class, from which each model's own derives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import reduce

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bftrainer.decide.queue.backfill import BackfillPlan
from bftrainer.decide.queue.models import QueueModel
from bftrainer.model.canonical import from_plain, to_plain
from bftrainer.model.census import NodeCensus, census_of, why_it_waits
from bftrainer.model.cluster import (
    Job,
    JobState,
    Node,
    NodeLeft,
    NodeState,
    Partition,
    Reservation,
    Snapshot,
    Way,
)
from bftrainer.model.queue import GapEnd, JobNeeds, earliest
from tests.support.examples import examples
from tests.support.snapshots import T0, pending, running, snapshot

CYCLE_S = 30.0
NAMES = tuple(f"n{k}" for k in range(6))
SOME = st.lists(st.sampled_from(NAMES), max_size=3, unique=True).map(tuple)
TIMES = st.integers(-100, 2000).map(lambda s: T0 + s)
WANTS = st.sampled_from(
    [
        (),
        (Way(everywhere=("a", "|", "b")),),
        (Way(everywhere=("a",)), Way(everywhere=("b",))),
        (Way(counted=((("a",), 1), (("b",), 1))),),
    ]
)
PARTITIONS = st.sampled_from([(), ("batch",), ("batch", "short"), ("none",)])


@st.composite
def nodes(draw: st.DrawFn, name: str) -> Node:
    return Node(
        name=name,
        state=draw(st.sampled_from(NodeState)),
        cpus=draw(st.sampled_from([1, 4, 16])),
        memory_mb=draw(st.sampled_from([0, 4000])),
        gpus=draw(st.sampled_from([0, 2])),
        features=draw(st.sampled_from([(), ("a",), ("a", "b"), ("z",)])),
        partitions=draw(st.sampled_from([(), ("batch",), ("short",), ("batch", "short")])),
        left=draw(st.sampled_from([None, NodeLeft(cpus=1)])),
    )


@st.composite
def jobs(draw: st.DrawFn, number: int) -> Job:
    job = pending(
        str(number),
        draw(st.integers(1, 4)),
        limit_s=draw(st.sampled_from([None, 100.0, 1000.0])),
        reason=draw(st.sampled_from(["", "Resources"])),
        is_entitled=draw(st.sampled_from([True, True, False])),
        priority=draw(st.integers(0, 3).map(float)),
        start_s=draw(st.none() | TIMES),
        planned=draw(SOME),
        required=draw(SOME),
    )
    return replace(
        job,
        partitions=draw(PARTITIONS),
        wants=draw(WANTS),
        together=draw(st.sampled_from(["", "", "50"])),
        excluded_nodes=draw(SOME),
        reservations=draw(st.sampled_from([(), ("r",)])),
        n_nodes_max=draw(st.sampled_from([None, 5])),
        begin_s=draw(st.none() | TIMES),
        cpus=draw(st.sampled_from([0, 9])),
        memory_per_cpu_mb=draw(st.sampled_from([0, 500])),
        gpus=draw(st.sampled_from([0, 3])),
        can_share=draw(st.booleans()),
    )


@st.composite
def looks(draw: st.DrawFn) -> Snapshot:
    reservations = [
        Reservation(name=name, start_s=start_s, end_s=start_s + 500, nodes=draw(SOME))
        for name, start_s in [("r", draw(TIMES)), ("m", draw(TIMES))]
    ]
    pilot = replace(draw(jobs(90)), pilot_id="p1")
    queue = [draw(jobs(k)) for k in range(draw(st.integers(0, 6)))]
    seen = snapshot(
        [draw(nodes(name)) for name in NAMES],
        [*queue, running("80", "n1"), pilot],
        reservations=reservations,
    )
    partitions = (Partition(name="batch"), Partition(name="short", tier=1, time_limit_s=500.0))
    resolution_s = draw(st.sampled_from([0.0, 60.0]))
    return replace(seen, partitions=partitions, plan_resolution_s=resolution_s)


# Each model has a class of its own, which runs the same tests (differing_executors).
_patient = settings(
    deadline=None,
    max_examples=examples(60),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.differing_executors],
)
Told = dict[str, tuple[JobNeeds, str]]


class QueueModelConformance:
    """The tests themselves; ``model`` looks at a snapshot, at a time, for cycles of a length."""

    model: Callable[[NodeCensus, float, float], QueueModel]

    def looked(self, seen: Snapshot) -> QueueModel:
        return type(self).model(census_of(seen), T0, CYCLE_S)

    def told(self, seen: Snapshot) -> Told:
        """All that is said of each job."""
        queue = self.looked(seen)
        return {
            job.job_id: (queue.requests.of(job), why_it_waits(job, queue.now_s))
            for job in queue.jobs
        }

    def planned(self, seen: Snapshot) -> BackfillPlan:
        """The next plan, if nobody can start now and every node is free."""
        queue = self.looked(seen)
        plan = queue.next_plan(reduce(int.__or__, queue.sets.bit_of.values(), 0))
        for job in queue.jobs:
            request = queue.requests.of(job)
            plan.wait(job, request if request.ways else None)
        return plan

    def planned_ends(self, seen: Snapshot) -> dict[str, GapEnd]:
        """The next planned start on each node."""
        return earliest(self.planned(seen).planned_starts, self.looked(seen).sets)

    @_patient
    @given(seen=looks())
    def test_it_has_each_pending_ordinary_job_once_and_no_other(self, seen: Snapshot) -> None:
        waits = [j for j in seen.jobs or () if j.is_ordinary and j.state is JobState.PENDING]
        assert sorted(self.told(seen)) == sorted(job.job_id for job in waits)

    @_patient
    @given(seen=looks())
    def test_a_job_can_start_in_some_way_or_it_is_said_why_not(self, seen: Snapshot) -> None:
        queue = self.looked(seen)
        everywhere = reduce(int.__or__, queue.sets.bit_of.values())
        for job in queue.jobs:
            request = queue.requests.of(job)
            assert bool(request.ways) != bool(request.why_not)
            for sentence in (request.why_not, why_it_waits(job, queue.now_s)):
                assert sentence == "" or sentence.endswith(".")
            if why_it_waits(job, queue.now_s) and not job.together:
                assert request.why_not, "what is plain at a glance is plain at a second"
            for way in request.ways:
                assert way
                assert all(0 < one.count <= one.among.bit_count() for one in way)
                assert all(one.among & ~everywhere == 0 <= one.n_more for one in way)

    @_patient
    @given(seen=looks())
    def test_who_is_not_entitled_or_has_not_begun_asks_for_nothing(self, seen: Snapshot) -> None:
        queue = self.looked(seen)
        for job in queue.jobs:
            if not job.is_entitled or (job.begin_s or 0.0) > T0:
                assert why_it_waits(job, queue.now_s)
                assert queue.requests.of(job).ways == ()

    @_patient
    @given(seen=looks())
    def test_of_jobs_that_start_together_one_asks_for_all(self, seen: Snapshot) -> None:
        queue = self.looked(seen)
        parts = [job for job in queue.jobs if job.together]
        asking = [job for job in parts if queue.requests.of(job).ways]
        assert len(asking) <= 1
        for job in asking:
            sizes = {sum(one.count for one in way) for way in queue.requests.of(job).ways}
            assert min(sizes) >= sum(part.n_nodes for part in parts)

    @_patient
    @given(seen=looks())
    def test_a_gap_ends_no_later_than_what_is_known_to_come(self, seen: Snapshot) -> None:
        ends = self.looked(seen).gap_ends
        for end in ends.values():
            assert end.last_end_s <= end.at_s
            assert end.by in end.sentence(T0)
            assert end.sentence(T0).endswith(".")
        for one in seen.reservations or ():
            if one.end_s > T0:
                assert all(ends[name].at_s <= one.start_s for name in one.nodes)

    @_patient
    @given(seen=looks())
    def test_who_starts_now_keeps_off_what_is_planned_the_more_the_longer(
        self, seen: Snapshot
    ) -> None:
        plan, sets = self.planned(seen), self.looked(seen).sets
        off = [plan.kept_off(limit_s, is_in_reservation=False) for limit_s in (1.0, 600.0, 1e9)]
        assert off[0] & ~off[1] == off[1] & ~off[2] == 0
        assert sets.named(tuple(self.planned_ends(seen))) & ~off[2] == 0
        assert plan.kept_off(None, is_in_reservation=False) == 0
        for end in self.planned_ends(seen).values():
            assert end.last_end_s <= end.at_s
            assert end.at_s >= T0

    @_patient
    @given(seen=looks(), data=st.data())
    def test_the_order_in_which_things_are_read_does_not_matter(
        self, seen: Snapshot, data: st.DataObject
    ) -> None:
        mixed = replace(
            seen,
            nodes=tuple(data.draw(st.permutations(seen.nodes or ()))),
            jobs=tuple(data.draw(st.permutations(seen.jobs or ()))),
        )
        assert list(self.told(mixed).items()) == list(self.told(seen).items())
        assert self.planned_ends(mixed) == self.planned_ends(seen)

    @_patient
    @given(seen=looks())
    def test_a_look_that_was_journalled_says_the_same(self, seen: Snapshot) -> None:
        again = from_plain(to_plain(seen), Snapshot)
        assert list(self.told(again).items()) == list(self.told(seen).items())
        assert self.looked(again).gap_ends.keys() == self.looked(seen).gap_ends.keys()
        assert self.planned_ends(again) == self.planned_ends(seen)

    @pytest.mark.parametrize("seen", [snapshot([]), snapshot([], [pending("7", 1)])])
    def test_without_nodes_nobody_starts(self, seen: Snapshot) -> None:
        queue = self.looked(seen)
        assert all(queue.requests.of(job).why_not for job in queue.jobs)
        assert queue.gap_ends == {}
