"""What every batch system must do: one test class, subclassed by each implementation.

A subclass gives two fixtures: ``system`` (the BatchSystem under test) and ``cluster``
(a ClusterDriver of at least four idle nodes of one type, reused between the tests).
Limits are whole minutes, the coarsest granularity a batch system has.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bftrainer.batch.batch_system import BatchSystem
from bftrainer.model.cluster import EndedBy, JobState, NodeState, Presence, Snapshot
from bftrainer.model.errors import BatchSystemError
from tests.conformance.words import (
    ClusterDriver,
    assert_good_error,
    block_the_queue,
    hostile_request,
    job_in,
    launch_and_wait,
    log_lines,
    make_empty,
    node_states,
    observe,
    pilot,
    started_with,
    wait_absent,
    wait_all_idle,
    wait_for_whole_cycle,
    wait_running,
    whole,
)
from tests.support.waiting import wait_for

__all__ = ["BatchSystemConformance", "ClusterDriver"]

NEVER_USED_ID = "999999"


class BatchSystemConformance:
    """The tests themselves; subclasses start with ``Test``."""

    @pytest.fixture(autouse=True)
    def _tidy(self, system: BatchSystem, cluster: ClusterDriver) -> Iterator[None]:
        """Each test begins and ends with an empty queue and idle nodes."""
        make_empty(system, cluster)
        yield
        cluster.start_controller()
        make_empty(system, cluster)

    # -- looking ---------------------------------------------------------------

    def test_snapshot_of_an_idle_cluster_is_complete(
        self, system: BatchSystem, cluster: ClusterDriver
    ) -> None:
        seen = system.snapshot()
        assert seen.is_complete
        assert seen.failures == ()
        assert seen.jobs == ()
        assert seen.nodes is not None
        assert sorted(n.name for n in seen.nodes) == sorted(cluster.node_names())
        assert {n.state for n in seen.nodes} == {NodeState.IDLE}
        assert {n.gpus for n in seen.nodes} == {cluster.gpus_per_node}
        assert all(n.node_type for n in seen.nodes)
        assert len({n.node_type for n in seen.nodes}) == 1
        assert all(n.cpus >= 1 for n in seen.nodes)

    def test_snapshots_are_ordered_by_time(self, system: BatchSystem) -> None:
        first, second = system.snapshot(), system.snapshot()
        assert first.taken_at_s < second.taken_at_s
        assert abs(second.taken_at_s - time.time()) < 60

    def test_requests_to_a_controller_are_counted_by_kind(self, system: BatchSystem) -> None:
        before = system.request_counts()
        first = system.snapshot()
        between = system.request_counts()
        assert all(between[kind] >= count for kind, count in before.items())
        # What nothing waits for is not asked for, and what was known of it stays.
        second = system.snapshot(wants_cycle=False)
        assert system.request_counts().get("cycle") == between.get("cycle")
        assert (first.cycle is None) == (second.cycle is None)
        assert second.is_complete

    def test_it_says_who_it_is(self, system: BatchSystem) -> None:
        assert system.name
        assert system.idle_confirmations >= 1
        assert system.cycle_s > 0

    # -- pilots ----------------------------------------------------------------

    def test_pilot_runs_where_it_was_sent(
        self, system: BatchSystem, cluster: ClusterDriver
    ) -> None:
        node = cluster.node_names()[1]
        before_s = time.time()
        request = pilot(cluster, node, environment={"BFT_CONFORMANCE": "hello"})
        job_id = system.launch_pilot(request)
        assert observe(system, job_id).presence is Presence.PRESENT
        running = wait_running(system, job_id)
        assert running.node == node
        assert running.start_s is not None
        assert before_s - 2 <= running.start_s <= time.time() + 2

        job = job_in(whole(system), job_id)
        assert job is not None
        assert job.pilot_id == request.pilot_id
        assert not job.is_ordinary
        assert job.state is JobState.RUNNING
        assert job.nodes == (node,)
        assert job.n_nodes == 1
        assert job.time_limit_s is not None
        assert 0 < job.time_limit_s <= request.time_limit_s
        states = node_states(whole(system))
        assert states[node] is NodeState.ALLOCATED
        assert {s for n, s in states.items() if n != node} == {NodeState.IDLE}
        assert started_with(request) == {"argv": ["live"], "value": "hello"}

    def test_cancelled_pilot_gets_sigterm_and_its_node_is_idle_again(
        self, system: BatchSystem, cluster: ClusterDriver
    ) -> None:
        request = pilot(cluster, cluster.node_names()[0])
        job_id = launch_and_wait(system, request)
        system.cancel_pilots([job_id])
        wait_absent(system, job_id)
        wait_for(
            lambda: log_lines(request)[-1:] == ["asked to leave"],
            what="the request in the pilot's log",
        )
        wait_all_idle(system)
        assert job_in(whole(system), job_id) is None

    def test_cancelling_what_is_gone_is_no_error(
        self, system: BatchSystem, cluster: ClusterDriver
    ) -> None:
        gone = launch_and_wait(system, pilot(cluster, cluster.node_names()[0]))
        stays = launch_and_wait(system, pilot(cluster, cluster.node_names()[1]))
        system.cancel_pilots([gone])
        wait_absent(system, gone)
        system.cancel_pilots([gone])
        system.cancel_pilots([gone, NEVER_USED_ID], force=True)
        system.cancel_pilots([])
        assert observe(system, stays).phase == "running"
        # An id that is gone must not keep the others from being cancelled.
        system.cancel_pilots([gone, stays, NEVER_USED_ID])
        wait_absent(system, stays)

    def test_pilot_that_leaves_by_itself_is_absent(
        self, system: BatchSystem, cluster: ClusterDriver
    ) -> None:
        request = pilot(cluster, cluster.node_names()[2], "leave")
        job_id = system.launch_pilot(request)
        wait_for(lambda: log_lines(request), what="the pilot's log")
        wait_absent(system, job_id)
        wait_all_idle(system)

    def test_only_a_pilot_that_nobody_ended_has_failed(
        self, system: BatchSystem, cluster: ClusterDriver
    ) -> None:
        names = cluster.node_names()
        died = system.launch_pilot(pilot(cluster, names[0], "die"))
        left = system.launch_pilot(pilot(cluster, names[1], "leave"))
        asked, forced = (launch_and_wait(system, pilot(cluster, n)) for n in names[2:4])
        system.cancel_pilots([asked])
        system.cancel_pilots([forced], force=True)
        ids = [died, left, asked, forced]
        for job_id in ids:
            wait_absent(system, job_id)
        states = system.pilot_states(ids)
        has_failed = {i: seen.has_failed for i, seen in states.items()}
        assert has_failed == {died: True, left: False, asked: False, forced: False}
        by_itself = {states[i].ended_by for i in (died, left)}
        assert by_itself <= {EndedBy.ITSELF, EndedBy.UNKNOWN}
        assert all(states[i].ended_by is not EndedBy.PREEMPTED for i in ids)

    def test_second_pilot_of_a_node_waits_for_the_first(
        self, system: BatchSystem, cluster: ClusterDriver
    ) -> None:
        node = cluster.node_names()[0]
        first = launch_and_wait(system, pilot(cluster, node))
        second = system.launch_pilot(pilot(cluster, node))
        assert first != second
        wait_for_whole_cycle(system)
        assert observe(system, second).phase == "pending"
        assert observe(system, first).phase == "running"
        system.cancel_pilots([first])
        assert wait_running(system, second).node == node

    def test_pending_pilot_can_be_cancelled(
        self, system: BatchSystem, cluster: ClusterDriver
    ) -> None:
        node = cluster.node_names()[0]
        first = launch_and_wait(system, pilot(cluster, node))
        second = system.launch_pilot(pilot(cluster, node))
        system.cancel_pilots([second])
        wait_absent(system, second)
        assert observe(system, first).phase == "running"

    def test_unknown_ids_are_absent(self, system: BatchSystem, cluster: ClusterDriver) -> None:
        known = launch_and_wait(system, pilot(cluster, cluster.node_names()[0]))
        seen = system.pilot_states([NEVER_USED_ID, known])
        assert seen[NEVER_USED_ID].presence is Presence.ABSENT
        assert seen[NEVER_USED_ID].phase == ""
        assert seen[known].presence is Presence.PRESENT
        assert dict(system.pilot_states([])) == {}

    def test_pilot_for_a_node_that_does_not_exist_is_refused(
        self, system: BatchSystem, cluster: ClusterDriver
    ) -> None:
        with pytest.raises(BatchSystemError) as caught:
            system.launch_pilot(pilot(cluster, "no-such-node"))
        assert_good_error(caught.value)
        assert system.snapshot().jobs == ()

    # -- ordinary jobs -----------------------------------------------------------

    def test_running_and_blocked_jobs_are_seen_with_their_plan(
        self, system: BatchSystem, cluster: ClusterDriver
    ) -> None:
        names = cluster.node_names()
        runs, blocked = block_the_queue(system, cluster)

        def planned() -> Snapshot | None:
            seen = whole(system)  # a pass of the scheduler may just be making its plan anew
            job = job_in(seen, blocked)
            if job is None or job.start_s is None or len(job.planned_nodes) != len(names):
                return None
            return seen

        seen = wait_for(planned, what="a planned start of the blocked job on all nodes")
        running, pending = job_in(seen, runs), job_in(seen, blocked)
        assert running is not None
        assert pending is not None
        assert running.is_ordinary
        assert running.state is JobState.RUNNING
        assert running.n_nodes == len(running.nodes) == len(names) - 1
        assert running.time_limit_s == 600
        assert running.start_s is not None
        assert running.user
        assert running.partitions
        assert pending.is_ordinary
        assert pending.state is JobState.PENDING
        assert pending.n_nodes == len(names)
        assert pending.time_limit_s == 120
        assert pending.submit_s is not None
        assert abs(pending.submit_s - time.time()) < 60
        assert sorted(pending.planned_nodes) == sorted(names)
        # Schedulers plan in steps of up to a minute.
        assert pending.start_s == pytest.approx(running.start_s + 600, abs=61)
        (left_over,) = set(names) - set(running.nodes)
        assert node_states(seen)[left_over] in (NodeState.IDLE, NodeState.PLANNED)
        assert {node_states(seen)[n] for n in running.nodes} == {NodeState.ALLOCATED}

    def test_ended_job_is_gone_and_its_nodes_are_idle(
        self, system: BatchSystem, cluster: ClusterDriver
    ) -> None:
        job_id = cluster.submit_ordinary(n_nodes=2, limit_s=60, duration_s=1)
        wait_for(lambda: cluster.job_started_s(job_id), what="the start of the job")
        wait_for(lambda: system.snapshot().jobs == (), what="an empty queue")
        wait_all_idle(system)

    def test_scheduler_cycle_is_seen_while_jobs_wait(
        self, system: BatchSystem, cluster: ClusterDriver
    ) -> None:
        if whole(system).cycle is None:
            pytest.skip("it does not report its cycles")
        before_s = time.time()
        block_the_queue(system, cluster)

        def later_cycle() -> bool:
            cycle = system.snapshot().cycle
            return cycle is not None and cycle.ended_s is not None and cycle.ended_s >= before_s

        wait_for(later_cycle, what="a whole scheduler pass")

    def test_pilot_fits_into_the_gap_or_waits(
        self, system: BatchSystem, cluster: ClusterDriver
    ) -> None:
        runs, _ = block_the_queue(system, cluster)
        running = job_in(whole(system), runs)
        assert running is not None
        (left_over,) = set(cluster.node_names()) - set(running.nodes)
        too_long = system.launch_pilot(pilot(cluster, left_over, time_limit_s=3600))
        wait_for_whole_cycle(system)
        assert observe(system, too_long).phase == "pending"
        system.cancel_pilots([too_long])
        wait_absent(system, too_long)
        fits = system.launch_pilot(pilot(cluster, left_over, time_limit_s=60))
        assert wait_running(system, fits).node == left_over

    def test_ordinary_job_preempts_a_pilot_and_starts(
        self, system: BatchSystem, cluster: ClusterDriver
    ) -> None:
        if not cluster.preempts:
            pytest.skip("it has no preemption")
        requests = {
            system.launch_pilot(r): r for r in [pilot(cluster, n) for n in cluster.node_names()]
        }
        for job_id in requests:
            wait_running(system, job_id)
        for request in requests.values():
            started_with(request)
        ordinary = cluster.submit_ordinary(n_nodes=1, limit_s=60, duration_s=60)
        wait_for(lambda: cluster.job_started_s(ordinary), what="the start of the ordinary job")
        states = system.pilot_states(list(requests))
        gone = [i for i, s in states.items() if s.presence is Presence.ABSENT]
        assert len(gone) == 1, states
        assert not states[gone[0]].has_failed
        assert states[gone[0]].ended_by in (EndedBy.PREEMPTED, EndedBy.UNKNOWN)
        its_lines = functools.partial(log_lines, requests[gone[0]])
        wait_for(
            lambda: its_lines()[-1:] == ["asked to leave"], what="the request in the pilot's log"
        )
        job = job_in(whole(system), ordinary)
        assert job is not None
        assert job.nodes == (requests[gone[0]].node,)
        kept = [i for i, s in states.items() if s.phase == "running"]
        assert len(kept) == len(requests) - 1

    def test_ordinary_job_prefers_a_free_node_to_preempting(
        self, system: BatchSystem, cluster: ClusterDriver
    ) -> None:
        *borrowed, free = cluster.node_names()
        ids = [launch_and_wait(system, pilot(cluster, n)) for n in borrowed]
        ordinary = cluster.submit_ordinary(n_nodes=1, limit_s=60, duration_s=60)
        wait_for(lambda: cluster.job_started_s(ordinary), what="the start of the ordinary job")
        job = job_in(whole(system), ordinary)
        assert job is not None
        assert job.nodes == (free,)
        assert {s.phase for s in system.pilot_states(ids).values()} == {"running"}

    # -- trouble -----------------------------------------------------------------

    def test_controller_down_is_unknown_and_recovers(
        self, system: BatchSystem, cluster: ClusterDriver
    ) -> None:
        node, other = cluster.node_names()[:2]
        job_id = launch_and_wait(system, pilot(cluster, node))
        started_s = observe(system, job_id).start_s
        cluster.stop_controller()
        seen = system.snapshot()
        assert not seen.is_complete
        assert seen.nodes is None
        assert seen.jobs is None
        assert seen.failures
        assert all(sentence.strip() for sentence in seen.failures)
        assert observe(system, job_id).presence is Presence.UNKNOWN
        with pytest.raises(BatchSystemError) as refused:
            system.launch_pilot(pilot(cluster, other))
        assert_good_error(refused.value)
        with pytest.raises(BatchSystemError) as unheard:
            system.cancel_pilots([job_id])
        assert_good_error(unheard.value)

        cluster.start_controller()
        wait_for(lambda: system.snapshot().is_complete, what="a complete snapshot")
        again = wait_running(system, job_id)
        assert again.node == node
        assert again.start_s == started_s

    @pytest.mark.parametrize(
        "field", ["pilot_id", "log_path", "agent_argv", "environment"], ids=str
    )
    @pytest.mark.parametrize(
        "hostile",
        ["$(touch pwned)`touch pwned`;touch pwned", "x' \"y\\ a, b=%j %x", "n\ntouch pwned"],
        ids=["shell", "quoting", "newline"],
    )
    def test_hostile_characters_are_refused_or_taken_verbatim(
        self, system: BatchSystem, cluster: ClusterDriver, field: str, hostile: str
    ) -> None:
        node = cluster.node_names()[0]
        request = hostile_request(cluster, node, field, hostile)
        try:
            job_id = system.launch_pilot(request)
        except BatchSystemError as refusal:
            assert_good_error(refusal)
            assert system.snapshot().jobs == ()
        else:
            wait_running(system, job_id)
            given = started_with(request)
            assert given["argv"] == list(request.agent_argv[3:])
            assert given["value"] == request.environment["BFT_CONFORMANCE"]
            job = job_in(whole(system), job_id)
            assert job is not None
            assert job.pilot_id == request.pilot_id
        assert not list(cluster.directory.rglob("pwned"))
        assert not Path("pwned").exists()
