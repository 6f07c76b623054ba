"""The local batch system as a real server process with real jobs."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from bftrainer.batch.batch_system import BatchSystem, PilotRequest, load_batch_system
from bftrainer.batch.local.adapter import create
from bftrainer.batch.local.client import LocalClient, LocalServer, start_server
from bftrainer.batch.local.server import main as server_main
from bftrainer.batch.local.workload import JobWorkload, WorkItem, delays_s, workload_to_json
from bftrainer.batch.process import run
from bftrainer.model.cluster import NodeState, Presence
from bftrainer.model.errors import BatchSystemError, BftError, UsageError
from tests.conformance.batch_system import BatchSystemConformance
from tests.conformance.words import (
    job_in,
    make_empty,
    node_states,
    observe,
    pilot,
    started_with,
    wait_absent,
    wait_running,
    whole,
)
from tests.support.waiting import wait_for


class LocalDriver:
    """What tests do to the cluster behind the adapter's back."""

    def __init__(self, server: LocalServer, *, gpus: int) -> None:
        self.server = server
        self.client = server.client
        self.directory = server.directory
        self.gpus_per_node = gpus
        self.preempts = True

    def node_names(self) -> tuple[str, ...]:
        return tuple(self.client.info()["nodes"])

    def submit_ordinary(self, *, n_nodes: int, limit_s: float, duration_s: float) -> str:
        return self.client.submit(n_nodes=n_nodes, limit_s=limit_s, duration_s=duration_s)

    def job_started_s(self, job_id: str) -> float | None:
        record = next(j for j in self.client.history() if j["job_id"] == job_id)
        started_s: float | None = record["start_s"]
        return started_s

    def cancel(self, job_id: str) -> None:
        self.client.cancel([job_id])

    def stop_controller(self) -> None:
        self.client.pause()

    def start_controller(self) -> None:
        self.client.resume()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalDriver]:
    directory = tmp_path_factory.mktemp("local")
    with start_server(directory, n_nodes=4, gpus=2, cycle_s=0.2, kill_wait_s=3) as server:
        yield LocalDriver(server, gpus=2)
    assert not processes_of(directory)


@pytest.fixture(scope="module")
def system(cluster: LocalDriver) -> Iterator[BatchSystem]:
    found = load_batch_system("local", {"socket": str(cluster.server.socket_path)})
    yield found
    found.close()


class TestLocalConformance(BatchSystemConformance):
    """The shared tests."""


@pytest.fixture
def empty(system: BatchSystem, cluster: LocalDriver) -> Iterator[LocalDriver]:
    make_empty(system, cluster)
    yield cluster
    cluster.start_controller()
    make_empty(system, cluster)


def says(path: Path, word: str) -> bool:
    return path.exists() and word in path.read_text()


def processes_of(directory: Path) -> list[int]:
    """Processes that run in a directory, as everything our server starts does."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                where = (entry / "cwd").readlink()
            except OSError:
                continue  # gone, or a zombie
            if where == directory:
                found.append(int(entry.name))
    return found


# -- what only the local system promises -------------------------------------------------


def test_blocked_head_marks_its_nodes_planned(system: BatchSystem, empty: LocalDriver) -> None:
    running = empty.submit_ordinary(n_nodes=3, limit_s=600, duration_s=600)
    blocked = empty.submit_ordinary(n_nodes=4, limit_s=600, duration_s=600)
    wait_for(lambda: empty.job_started_s(running), what="the start of the first job")
    job = job_in(whole(system), blocked)
    assert job is not None
    assert job.reason == "Resources"
    states = list(node_states(whole(system)).values())
    assert sorted(states) == [NodeState.ALLOCATED] * 3 + [NodeState.PLANNED]


def test_stubborn_pilot_is_killed_and_the_job_starts_on_its_claimed_nodes(
    system: BatchSystem, empty: LocalDriver
) -> None:
    source = "import signal,time\nsignal.signal(15, signal.SIG_IGN)\nprint('deaf', flush=True)\n"
    ids = []
    for number, node in enumerate(empty.node_names()):
        log_path = empty.directory / f"deaf-{number}.log"
        request = PilotRequest(
            pilot_id=f"deaf-{number}",
            node=node,
            time_limit_s=600,
            agent_argv=(sys.executable, "-I", "-c", source + "while True: time.sleep(60)"),
            log_path=log_path,
        )
        ids.append(system.launch_pilot(request))
        wait_for(partial(says, log_path, "deaf"), what="the pilot's first word")
    ordinary = empty.submit_ordinary(n_nodes=4, limit_s=60, duration_s=60)
    wait_for(
        lambda: {o.phase for o in system.pilot_states(ids).values()} == {"ending"},
        what="all pilots ending",
    )
    waiting = job_in(whole(system), ordinary)
    assert waiting is not None
    assert sorted(waiting.planned_nodes) == sorted(empty.node_names())
    submitted_s = time.time()
    wait_for(lambda: empty.job_started_s(ordinary), what="the start of the ordinary job")
    assert time.time() - submitted_s >= 1.0  # the kill wait was granted
    ended = system.pilot_states(ids)
    assert {o.presence for o in ended.values()} == {Presence.ABSENT}
    assert {o.reason for o in ended.values()} == {"PREEMPTED"}


def test_time_limits_are_enforced(system: BatchSystem, empty: LocalDriver) -> None:
    late = pilot(empty, empty.node_names()[0], time_limit_s=0.5)
    job_id = system.launch_pilot(late)
    wait_absent(system, job_id)
    assert observe(system, job_id).reason == "TIMEOUT"
    ordinary = empty.submit_ordinary(n_nodes=2, limit_s=0.5, duration_s=60)
    wait_for(lambda: record(empty.client, ordinary)["end_s"], what="the end of the job")
    assert record(empty.client, ordinary)["reason"] == "TIMEOUT"


def test_what_a_job_leaves_behind_is_killed(system: BatchSystem, empty: LocalDriver) -> None:
    # The leader ends; its children, one of them in a session of its own and the other
    # without the environment it was given, do not.
    mark = empty.directory / "left.txt"
    script = f"""
import os, subprocess
free = subprocess.Popen(["sleep", "600"], start_new_session=True)
bare = subprocess.Popen(["sleep", "600"], env={{"PATH": os.environ["PATH"]}})
open({str(mark)!r}, "w").write(f"{{free.pid}} {{bare.pid}}\\n")
os._exit(0)
"""
    job_id = empty.client.submit(n_nodes=1, limit_s=600, argv=[sys.executable, "-I", "-c", script])
    wait_for(lambda: record(empty.client, job_id)["end_s"], what="the end of the job")
    for pid in map(int, mark.read_text().split()):
        assert not Path(f"/proc/{pid}").exists()


def test_node_that_vanishes_takes_its_jobs_with_it(system: BatchSystem, empty: LocalDriver) -> None:
    node = empty.node_names()[0]
    request = pilot(empty, node)
    job_id = system.launch_pilot(request)
    wait_running(system, job_id)
    started_with(request)
    try:
        empty.client.set_node(node, is_up=False, reason="Not responding")
        wait_absent(system, job_id)
        assert observe(system, job_id).reason == "NODE_FAIL"
        seen = system.snapshot()
        assert node_states(seen)[node] is NodeState.DOWN
        assert seen.nodes is not None
        assert seen.nodes[0].reason == "Not responding"
        # A job for all nodes must not hold up one that can run.
        wide = empty.submit_ordinary(n_nodes=4, limit_s=60, duration_s=60)
        small = empty.submit_ordinary(n_nodes=1, limit_s=60, duration_s=60)
        wait_for(lambda: empty.job_started_s(small), what="the start of the small job")
        assert empty.job_started_s(wide) is None
    finally:
        empty.client.set_node(node, is_up=True)
    with pytest.raises(BatchSystemError, match="BFT-1253"):
        empty.client.set_node("n99", is_up=False)


def test_cancel_pilots_leaves_ordinary_jobs_alone(system: BatchSystem, empty: LocalDriver) -> None:
    ordinary = empty.submit_ordinary(n_nodes=1, limit_s=60, duration_s=60)
    wait_for(lambda: empty.job_started_s(ordinary), what="the start of the job")
    system.cancel_pilots([ordinary], force=True)
    assert record(empty.client, ordinary)["end_s"] is None
    assert observe(system, ordinary).presence is Presence.ABSENT


def test_launch_asked_while_down_is_never_carried_out(
    system: BatchSystem, empty: LocalDriver
) -> None:
    empty.stop_controller()
    with pytest.raises(BatchSystemError, match="BFT-1251"):
        system.launch_pilot(pilot(empty, empty.node_names()[0]))
    empty.start_controller()
    assert system.snapshot().jobs == ()


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"garbage",
        b"[]",
        b"{}",
        b'{"op": "nonsense"}',
        b'{"op": ["info"]}',
        b'{"op": "submit", "user": "a", "n_nodes": true, "limit_s": 1, "argv": ["x"]}',
        b'{"op": "submit", "user": "a", "n_nodes": 1, "limit_s": NaN, "argv": ["x"]}',
        b'{"op": "submit", "user": "a", "n_nodes": 1, "limit_s": 1, "argv": []}',
        b'{"op": "submit", "user": "a", "n_nodes": 1, "limit_s": 1, "argv": ["a\\u0000b"]}',
        b'{"op": "cancel", "job_ids": "12"}',
        b'{"op": "start_workload", "workload": [{"at_s": -1}]}',
        b"\xff\xfe",
        b"[" * 100_000,
    ],
    ids=range(14),
)
def test_malformed_requests_are_refused(empty: LocalDriver, line: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(str(empty.server.socket_path))
        connection.sendall(line + b"\n")
        answer = json.loads(connection.makefile("rb").readline())
    assert answer["ok"] is False
    assert answer["code"] == "BFT-1252"
    assert empty.client.snapshot()["jobs"] == []


def test_socket_is_for_its_owner_alone(cluster: LocalDriver) -> None:
    assert cluster.server.socket_path.stat().st_mode & 0o777 == 0o600


def test_options_of_the_adapter() -> None:
    for options in ({}, {"socket": 7}, {"socket": "/x", "other": 1}):
        with pytest.raises(UsageError, match="BFT-1256"):
            create(options)


def test_adapter_starts_without_a_server(tmp_path: Path) -> None:
    system = create({"socket": str(tmp_path / "local.sock")})
    seen = system.snapshot()
    assert seen.nodes is None
    assert seen.jobs is None
    assert "did not answer" in seen.failures[0]
    assert system.cycle_s > 0


# -- servers of their own ------------------------------------------------------------------


def record(client: LocalClient, job_id: str) -> dict[str, object]:
    return next(j for j in client.history() if j["job_id"] == job_id)


def test_workload_runs_and_nobody_is_delayed(tmp_path: Path) -> None:
    items = [
        WorkItem(at_s=0.0, n_nodes=2, duration_s=0.5, limit_s=5),
        WorkItem(at_s=0.1, n_nodes=3, duration_s=0.3, limit_s=5, user="bob"),
        WorkItem(at_s=0.2, n_nodes=1, duration_s=0.2, limit_s=1, user="carol"),
    ]
    path = tmp_path / "workload.json"
    path.write_text(json.dumps(workload_to_json(JobWorkload(jobs=tuple(items)))))
    with start_server(tmp_path / "s", n_nodes=3, cycle_s=0.2, workload=path) as server:
        assert server.client.history() == []
        server.client.start_workload()

        def all_ended() -> list[dict[str, object]] | None:
            jobs = server.client.history()
            return jobs if len(jobs) == 3 and all(j["end_s"] for j in jobs) else None

        jobs = wait_for(all_ended, what="the end of the workload")
        assert [j["user"] for j in jobs] == ["alice", "bob", "carol"]
        assert {j["reason"] for j in jobs} == {"COMPLETED"}
        assert set(delays_s(jobs, n_nodes=3, cycle_s=0.2)) == {j["job_id"] for j in jobs}
    assert not processes_of(tmp_path / "s")


def busy_server(directory: Path) -> LocalServer:
    """A server with an ordinary job and a pilot, both alive."""
    server = start_server(directory, n_nodes=2, cycle_s=0.2, kill_wait_s=1)
    driver = LocalDriver(server, gpus=0)
    job_id = driver.submit_ordinary(n_nodes=1, limit_s=600, duration_s=600)
    wait_for(lambda: driver.job_started_s(job_id), what="the start of the job")
    request = pilot(driver, "n2")
    system = create({"socket": server.socket_path})
    wait_running(system, system.launch_pilot(request))
    started_with(request)
    assert len(processes_of(directory)) == 2
    return server


@pytest.mark.parametrize("how", ["stop", "shutdown", "SIGTERM", "SIGINT", "SIGKILL"])
def test_nothing_survives_the_server(tmp_path: Path, how: str) -> None:
    server = busy_server(tmp_path)
    if how == "shutdown":
        server.client.shutdown()
    elif how != "stop":
        os.kill(server.pid, signal.Signals[how])
    if how != "stop":
        wait_for(lambda: not server.is_running(), what="the end of the server")
    server.stop()
    wait_for(lambda: not processes_of(tmp_path), what="no process")
    if how != "SIGKILL":
        assert not server.socket_path.exists()
        assert (tmp_path / "local.pid").read_text() == ""


def test_directory_of_a_killed_server_can_be_used_again(tmp_path: Path) -> None:
    with start_server(tmp_path, n_nodes=1) as first:
        os.kill(first.pid, signal.SIGKILL)
        wait_for(lambda: not first.is_running(), what="the end of the server")
        with start_server(tmp_path, n_nodes=2) as second:
            assert second.client.info()["nodes"] == ["n1", "n2"]


def test_second_server_of_a_directory_is_refused(tmp_path: Path) -> None:
    with start_server(tmp_path, n_nodes=1) as first:
        with pytest.raises(BftError, match="BFT-1255"):
            start_server(tmp_path, n_nodes=1)
        assert first.client.info()["pid"] == first.pid
        assert (tmp_path / "local.pid").read_text() == f"{first.pid}\n"


def test_bad_start_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text('[{"at_s": 0, "n_nodes": 0, "duration_s": 1, "limit_s": 1}]')
    assert server_main(["--dir", str(tmp_path), "--workload", str(bad)]) == 8
    assert "jobs[0]" in capsys.readouterr().err
    assert server_main(["--dir", str(tmp_path / ("x" * 120))]) == 2
    assert "too long" in capsys.readouterr().err
    usage = run(
        [sys.executable, "-m", "bftrainer.batch.local.server", "--nodes", "0"], timeout_s=60
    )
    assert usage.returncode == 2
