"""Accidents of LSF, played on the stand-in: daemons and hosts that vanish, limits, refusals."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bftrainer.batch.batch_system import PilotObservation, PilotRequest
from bftrainer.model.cluster import JobState, NodeState, Presence, Snapshot
from bftrainer.model.errors import BatchSystemError
from lsf_adapters.adapter import LsfBatchSystem
from lsf_adapters.testcluster import LsfTestCluster, Parameters, client
from lsf_adapters.testcluster.config import Queue
from tests.conformance.words import (
    job_in,
    launch_and_wait,
    log_lines,
    node_states,
    observe,
    pilot,
    wait_absent,
    wait_all_idle,
    wait_running,
    whole,
)
from tests.integration.lsf_fixtures import (
    DIALECTS,
    PARAMETERS,
    LsfDriver,
    lsf_adapter,
    lsf_cluster,
    lsf_system,
    running_lsf,
)
from tests.support.waiting import wait_for

__all__ = ["lsf_cluster", "lsf_system"]

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="jobs of other users need root")


@pytest.fixture
def lsf(lsf_cluster: LsfTestCluster, lsf_system: LsfBatchSystem) -> Iterator[LsfTestCluster]:
    """A cluster that works; and works again, empty, when the next test comes."""
    yield lsf_cluster
    lsf_cluster.start_lim()
    lsf_cluster.start_controller()
    for name in lsf_cluster.node_names:
        lsf_cluster.start_host(name)
    wait_for(lambda: lsf_system.snapshot().is_complete, what="a complete snapshot")
    lsf_cluster.command("bkill", "-r", "-u", "all", "0")
    wait_for(lambda: lsf_system.snapshot().jobs == (), what="an empty queue")
    wait_all_idle(lsf_system)


@pytest.fixture
def hasty(lsf: LsfTestCluster) -> LsfBatchSystem:
    """An adapter that has seen the cluster, and gives up soon."""
    system = lsf_adapter(lsf, command_timeout_s=2)
    wait_for(lambda: system.snapshot().is_complete, what="a complete snapshot")
    system.commands.timeout_s = 0.4
    return system


# -- daemons ---------------------------------------------------------------------------------


@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "stopped"])
def test_without_mbatchd_nothing_is_known_and_nothing_is_left(
    lsf: LsfTestCluster, hasty: LsfBatchSystem, *, is_killed: bool
) -> None:
    job_id = hasty_launch(hasty, pilot(LsfDriver(lsf), "n1"))
    before = processes_of(lsf)
    (lsf.kill_controller if is_killed else lsf.stop_controller)()
    seen = hasty.snapshot()
    assert (seen.nodes, seen.jobs) == (None, None)
    assert not seen.is_complete
    assert observe(hasty, job_id).presence is Presence.UNKNOWN
    with pytest.raises(BatchSystemError) as caught:
        hasty.cancel_pilots([job_id])
    assert caught.value.code == "BFT-1207"
    # Each command was killed at the time-out, with its process group.
    assert processes_of(lsf) == before
    lsf.start_controller()
    hasty.commands.timeout_s = 5.0
    if is_killed:  # nobody listened, so nothing of it was heard
        assert observe(hasty, job_id).phase == "running"
        assert job_in(whole(hasty), job_id) is not None
    else:  # what was asked is carried out late
        wait_absent(hasty, job_id)


def hasty_launch(system: LsfBatchSystem, request: PilotRequest) -> str:
    """Launch with patience."""
    limit_s, system.commands.timeout_s = system.commands.timeout_s, 5.0
    job_id = launch_and_wait(system, request)
    system.commands.timeout_s = limit_s
    return job_id


def processes_of(cluster: LsfTestCluster) -> set[int]:
    """All processes of the cluster but its server: jobs and commands."""
    here = f"LSF_ENVDIR={cluster.config.conf}".encode()
    found = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if here in (folder / "environ").read_bytes().split(b"\0"):
                    found.add(int(folder.name))
            except OSError:
                continue  # it has ended
    return found


def test_lim_is_away_at_first_contact(lsf: LsfTestCluster) -> None:
    system = lsf_adapter(lsf, command_timeout_s=2)
    lsf.stop_lim()
    seen = system.snapshot()
    assert (seen.nodes, seen.jobs) == (None, None)
    assert seen.failures[0].endswith("LIM is down; try later.")
    request = pilot(LsfDriver(lsf), "n1")
    with pytest.raises(BatchSystemError) as caught:
        system.launch_pilot(request)
    assert caught.value.code == "BFT-1208"
    lsf.start_lim()
    assert whole(system).jobs == ()
    launch_and_wait(system, request)
    # Later it is away again: the dialect is known, nothing else.
    system.commands.timeout_s = 0.3
    lsf.stop_lim()
    seen = system.snapshot()
    assert (seen.nodes, seen.jobs) == (None, None)
    lsf.start_lim()


@pytest.mark.long
def test_lsid_fails_once_and_nothing_is_missing_later(lsf: LsfTestCluster) -> None:
    for how in ("garbage", "error", "empty"):
        system = lsf_adapter(lsf)
        lsf.spoil("lsid", how)
        seen = system.snapshot()
        assert (seen.nodes, seen.jobs) == (None, None)
        lsf.spoil("lsid", None)
        seen = system.snapshot()
        assert seen.is_complete
        assert {node.node_type for node in seen.nodes or ()} == {"IntelI5"}


# -- hosts -------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_pilot_on_a_dead_host_is_unknown_never_gone(
    lsf: LsfTestCluster, lsf_system: LsfBatchSystem
) -> None:
    job_id = launch_and_wait(lsf_system, pilot(LsfDriver(lsf), "n1"))
    whole(lsf_system)
    lsf.kill_host("n1")

    def look(condition: Callable[[PilotObservation, Snapshot], bool]) -> bool:
        seen, observed = whole(lsf_system), observe(lsf_system, job_id)
        job = job_in(seen, job_id)
        assert observed.presence is not Presence.ABSENT
        assert job is not None
        assert job.pilot_id is not None
        assert job.nodes == ("n1",)
        return condition(observed, seen)

    wait_for(
        lambda: look(lambda one, _: one.presence is Presence.UNKNOWN), what="UNKWN", interval_s=0.01
    )
    wait_for(lambda: look(lambda one, _: one.reason.startswith("ZOMBI")), what="ZOMBI")
    seen = whole(lsf_system)
    assert node_states(seen)["n1"] is NodeState.DOWN
    if lsf.config.is_ibm:  # its cancellation cannot reach it: no error, and it stays unknown
        lsf_system.cancel_pilots([job_id])
        assert look(lambda one, _: one.presence is Presence.UNKNOWN)
    lsf.start_host("n1")
    wait_absent(lsf_system, job_id)
    assert not observe(lsf_system, job_id).has_failed
    wait_all_idle(lsf_system)
    # What was read of the host while it was away is not kept.
    assert {node.node_type for node in whole(lsf_system).nodes or ()} == {"IntelI5"}


@pytest.mark.long
def test_a_daemon_that_comes_while_a_host_is_away_knows_it_later(lsf: LsfTestCluster) -> None:
    system = lsf_adapter(lsf)
    lsf.kill_host("n2")
    wait_for(lambda: down(whole(system), "n2", "unavail"), what="unavail")
    late = lsf_adapter(lsf)
    assert {node.node_type for node in whole(late).nodes or ()} == {"IntelI5", "UNKNOWN"}
    lsf.start_host("n2")
    wait_all_idle(late)
    assert {node.node_type for node in whole(late).nodes or ()} == {"IntelI5"}


def down(seen: Snapshot, name: str, words: str) -> bool:
    (node,) = (node for node in seen.nodes or () if node.name == name)
    return node.state is NodeState.DOWN and words in node.reason


def test_sbatchd_alone_is_dead(lsf: LsfTestCluster, lsf_system: LsfBatchSystem) -> None:
    job_id = launch_and_wait(lsf_system, pilot(LsfDriver(lsf), "n1"))
    lsf.kill_sbatchd("n1")
    wait_for(lambda: down(whole(lsf_system), "n1", "unreach"), what="unreach")
    wait_for(lambda: observe(lsf_system, job_id).reason.startswith("UNKWN"), what="UNKWN")
    assert observe(lsf_system, job_id).presence is Presence.UNKNOWN
    lsf.start_host("n1")
    assert wait_running(lsf_system, job_id).node == "n1"


# -- what users and administrators do ------------------------------------------------------------


@pytest.mark.long
def test_a_suspended_pilot_keeps_its_node_and_can_be_ended(
    lsf: LsfTestCluster, lsf_system: LsfBatchSystem
) -> None:
    request = pilot(LsfDriver(lsf), "n1")
    job_id = launch_and_wait(lsf_system, request)
    assert lsf.command("bstop", job_id).is_ok
    job = job_in(whole(lsf_system), job_id)
    assert job is not None
    assert job.state is JobState.OTHER
    assert job.nodes == ("n1",)
    assert node_states(whole(lsf_system))["n1"] is NodeState.ALLOCATED
    assert observe(lsf_system, job_id).presence is Presence.PRESENT
    lsf_system.cancel_pilots([job_id])
    wait_absent(lsf_system, job_id)
    assert log_lines(request)[-1] == "asked to leave"
    # One that waits is held, and is no running pilot.
    blocker = launch_and_wait(lsf_system, pilot(LsfDriver(lsf), "n1"))
    held = lsf_system.launch_pilot(pilot(LsfDriver(lsf), "n1"))
    assert lsf.command("bstop", held).is_ok
    assert observe(lsf_system, held).phase == "pending"
    lsf_system.cancel_pilots([held, blocker])
    wait_absent(lsf_system, held)


def test_a_pilot_that_somebody_kills_has_not_failed(
    lsf: LsfTestCluster, lsf_system: LsfBatchSystem
) -> None:
    names = iter(lsf.node_names)
    # volclava does not say that a job was removed by force, nor by whom.
    for options in ((), ("-s", "TERM"), *((("-r",),) if lsf.config.is_ibm else ())):
        job_id = launch_and_wait(lsf_system, pilot(LsfDriver(lsf), next(names)))
        assert lsf.command("bkill", *options, job_id).is_ok
        wait_absent(lsf_system, job_id)
        assert not observe(lsf_system, job_id).has_failed, options


@pytest.mark.long
def test_a_queue_that_is_closed_inactive_or_removed(
    lsf: LsfTestCluster, lsf_system: LsfBatchSystem
) -> None:
    driver = LsfDriver(lsf)
    lsf.command("badmin", "qclose", "bf")
    assert refusal(lsf_system, pilot(driver, "n1")) == "bf: Queue has been closed"
    lsf.command("badmin", "qopen", "bf")
    lsf.command("badmin", "qinact", "bf")
    try:
        job_id = lsf_system.launch_pilot(pilot(driver, "n1"))
        wait_for(
            lambda: "inactivated" in observe(lsf_system, job_id).reason, what="why it is pending"
        )
        (own,) = (one for one in whole(lsf_system).partitions if one.name == "bf")
        assert not own.can_start
    finally:
        lsf.command("badmin", "qact", "bf")
    wait_running(lsf_system, job_id)
    gone = lsf_adapter(lsf, pilot_queue="gone")
    seen = gone.snapshot()
    assert seen.nodes is None
    assert "There is no queue gone." in seen.failures
    assert refusal(gone, pilot(driver, "n2")) == "gone: No such queue"


def refusal(system: LsfBatchSystem, request: PilotRequest) -> str:
    """LSF's words to a pilot that it refuses."""
    with pytest.raises(BatchSystemError) as caught:
        system.launch_pilot(request)
    assert caught.value.code == "BFT-1204"
    return caught.value.cause.rpartition("255: ")[2].partition(". Job not")[0]


@pytest.fixture(scope="module", params=DIALECTS)
def strict(request: pytest.FixtureRequest) -> Iterator[LsfTestCluster]:
    """A cluster that refuses this and that, and of slow ends."""
    queues = (
        Queue(name="normal", priority=30, is_default=True, reserve_passes=1000, backfills=True),
        Queue(name="bf", priority=1, max_limit_s=7200, backfills=True),
        Queue(name="theirs", priority=1, users=("nobody-else",)),
        Queue(name="few", priority=1, max_slots_per_user=4),
        Queue(name="elsewhere", priority=1, hosts=("n1",)),
    )
    with running_lsf(
        dialect=request.param, n_nodes=3, queues=queues, parameters=PARAMETERS
    ) as cluster:
        yield cluster


def test_refusals_are_told_in_lsfs_words(strict: LsfTestCluster) -> None:
    driver = LsfDriver(strict)
    theirs, elsewhere = (lsf_adapter(strict, pilot_queue=q) for q in ("theirs", "elsewhere"))
    assert refusal(theirs, pilot(driver, "n1")) == "theirs: User cannot use the queue"
    said = refusal(elsewhere, pilot(driver, "n2"))
    assert said == "n2: Host or host group is not used by the queue"
    assert [node.name for node in whole(elsewhere).nodes or ()] == ["n1"]
    long = pilot(driver, "n1", time_limit_s=3 * 3600)
    assert refusal(lsf_adapter(strict), long).startswith("RUNLIMIT: Cannot exceed")
    assert whole(lsf_adapter(strict)).jobs == ()


def test_a_limit_of_slots_keeps_the_second_pilot_waiting(strict: LsfTestCluster) -> None:
    system, driver = lsf_adapter(strict, pilot_queue="few"), LsfDriver(strict)
    first = launch_and_wait(system, pilot(driver, "n1"))
    second = system.launch_pilot(pilot(driver, "n2"))
    wait_for(lambda: "limit" in observe(system, second).reason, what="why it is pending")
    assert observe(system, second).phase == "pending"
    assert node_states(whole(system))["n2"] is NodeState.IDLE
    system.cancel_pilots([first])
    wait_running(system, second)
    system.cancel_pilots([second], force=True)
    wait_for(lambda: system.snapshot().jobs == (), what="an empty queue")


def test_a_pending_pilot_that_can_end_in_time_no_longer_is_removed(
    strict: LsfTestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if its request had been made minutes ago: ``-t`` is no longer later than ``-W``."""
    system, driver = lsf_adapter(strict), LsfDriver(strict)
    whole(system)
    blocker = launch_and_wait(system, pilot(driver, "n1"))
    stays = system.launch_pilot(pilot(driver, "n1"))
    with monkeypatch.context() as patch:
        now = time.time
        patch.setattr("lsf_adapters.launcher.calendar_s", lambda: now() - 180)
        late = system.launch_pilot(pilot(driver, "n1"))
    wait_absent(system, late)
    assert not observe(system, late).has_failed
    assert observe(system, stays).phase == "pending"
    system.cancel_pilots([stays, blocker], force=True)
    wait_for(lambda: system.snapshot().jobs == (), what="an empty queue")


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_pending_pilot_is_removed_at_its_latest_end(strict: LsfTestCluster) -> None:
    system, driver = lsf_adapter(strict, environment={"TZ": "America/New_York"}), LsfDriver(strict)
    whole(system)
    blocker = launch_and_wait(system, pilot(driver, "n1"))
    late = system.launch_pilot(pilot(driver, "n1", time_limit_s=60))
    assert observe(system, late).phase == "pending"
    wait_for(
        lambda: observe(system, late).presence is Presence.ABSENT, timeout_s=250, what="its end"
    )
    assert observe(system, blocker).phase == "running"
    system.cancel_pilots([blocker], force=True)
    wait_for(lambda: system.snapshot().jobs == (), what="an empty queue")


@pytest.mark.long
@pytest.mark.timeout(400)
def test_at_the_run_limit_a_pilot_leaves_and_a_deaf_one_is_killed(strict: LsfTestCluster) -> None:
    system, driver = lsf_adapter(strict), LsfDriver(strict)
    plain = pilot(driver, "n1", time_limit_s=60)
    script = "trap 'echo USR2' USR2; echo started; while :; do sleep 0.2; done"
    deaf = replace(
        pilot(driver, "n2", time_limit_s=60),
        agent_argv=("/bin/sh", "-c", f"trap '' INT TERM; {script}"),
    )
    ids = [system.launch_pilot(plain), system.launch_pilot(deaf)]
    for job_id in ids:
        wait_running(system, job_id)
    wait_for(lambda: observe(system, ids[0]).presence is Presence.ABSENT, what="it leaves")
    wait_for(lambda: "USR2" in log_lines(deaf), what="the signal")
    wait_absent(system, ids[1])
    assert not observe(system, ids[0]).has_failed
    if strict.config.is_ibm:  # volclava does not say why it killed the other
        assert not observe(system, ids[1]).has_failed


@needs_root
def test_jobs_of_root_are_refused() -> None:
    with running_lsf(dialect="volclava", n_nodes=1, root_may_submit=False) as cluster:
        said = refusal(lsf_adapter(cluster), pilot(LsfDriver(cluster), "n1"))
        assert said == "User permission denied"


# -- plans, many jobs, two daemons ---------------------------------------------------------------


@pytest.mark.long
def test_a_broken_plan_file_costs_claims_and_nothing_else() -> None:
    parameters = Parameters(sequential_signal=True, allocation_planner=True)
    with running_lsf(dialect="ibm", n_nodes=3, parameters=parameters) as cluster:
        file = cluster.config.logdir / "lsb.allocation.plan.json"
        system = lsf_adapter(cluster, plan_file=str(file))
        runs = cluster.submit(n_nodes=2, duration_s=600, limit_s=600)
        wait_for(lambda: cluster.started_s(runs), what="the first job")
        blocked = cluster.submit(n_nodes=3, duration_s=1, limit_s=60)

        def planned(reader: LsfBatchSystem) -> tuple[str, ...]:
            job = job_in(reader.snapshot(), blocked)
            return job.planned_nodes if job and job.start_s else ()

        names = list(cluster.node_names)
        wait_for(lambda: sorted(planned(system)) == names, what="the plan")
        # A file that the scheduler does not write: it is spoiled for as long as the test looks.
        own = cluster.directory / "plan.json"
        text = file.read_text()
        for spoiled in (text[: len(text) // 2], "", "null", '{"PLANS": [{"JOB_ID": "lab@1"}]}'):
            own.write_text(spoiled)
            other = lsf_adapter(cluster, plan_file=str(own))
            seen = other.snapshot()
            assert seen.unread == ("plan",), spoiled
            assert len(seen.failures) == 1
            assert sorted(planned(other)) == names  # by bjobs
            assert NodeState.IDLE not in node_states(seen).values()
        own.write_text(text)
        assert other.snapshot().is_complete
        own.unlink()
        assert other.snapshot().unread == ("plan",)


@pytest.mark.long
@pytest.mark.parametrize("dialect", ["ibm", pytest.param("volclava", marks=pytest.mark.long)])
def test_an_array_of_a_thousand_and_a_thousand_jobs(
    dialect: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with running_lsf(dialect=dialect, n_nodes=2) as cluster:
        system = lsf_adapter(cluster, command_timeout_s=60)
        whole(system)
        before = job_in_all(cluster, monkeypatch, n=1000)
        seen = whole(system)
        began_s = seen.taken_at_s
        took_s = time.time() - began_s
        with capsys.disabled():
            n = len(seen.jobs or ())
            sys.stdout.write(f"\n{dialect}: a snapshot of {n} jobs took {took_s:.2f} s\n")
        jobs = [job for job in seen.jobs or () if job.state is JobState.PENDING]
        assert len({job.job_id for job in jobs}) == len(jobs) == 2000
        families = {job.family for job in jobs}
        assert families == {"", before}
        assert sum(job.family == before for job in jobs) == 1000
        assert all(job.is_ordinary and job.n_nodes == 1 for job in jobs)


def job_in_all(cluster: LsfTestCluster, monkeypatch: pytest.MonkeyPatch, *, n: int) -> str:
    """Submit an array of ``n`` and ``n`` jobs that wait; return the array's id."""
    monkeypatch.setattr(client, "ROOT", str(cluster.directory))
    monkeypatch.setattr(client, "NAME", "bsub")

    def bsub(*argv: str) -> str:
        answer = client.ask(client.request([], b"", [*argv, "true"]), 30.0)
        assert answer is not None
        assert answer[0] == 0, answer
        return answer[1].decode().partition("<")[2].partition(">")[0]

    later = ("-b", "12:31:23:59", "-o", "/dev/null")  # none of them starts
    array = bsub("-J", f"many[1-{n}]", *later)
    for _ in range(n):
        bsub(*later)
    return array
