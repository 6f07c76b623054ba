"""One warm template for all agents of a host: who is served, who is not, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bftrainer.batch.local.client import LocalClient, LocalServer, start_server
from bftrainer.ground import protocol
from tests.integration.batch.test_local import processes_of
from tests.support.processes import is_running, parent_of
from tests.support.waiting import wait_for

# What an agent does with its template, and no more: asks for one, has it fork a worker.
AGENT = """
import json, os, signal, socket, sys, time
from pathlib import Path
from trainers.agent.start import start_template

out, config = Path(sys.argv[1]), json.loads(sys.argv[2])
started = start_template(sys.executable, json.loads(sys.argv[3]), out.with_suffix(".log"))
ours, theirs = socket.socketpair()
started.channel.settimeout(60)
socket.send_fds(started.channel, [json.dumps({"fork": config}).encode()], [theirs.fileno()])
theirs.close()
said = []
while not said or "forked" not in said[-1]:
    said.append(json.loads(started.channel.recv(65536)))
found = {"is_shared": started.child is None, "said": said, "pid": os.getpid()}
out.with_suffix(".part").write_text(json.dumps(found))
out.with_suffix(".part").rename(out)
time.sleep(600)
"""
# A worker that leaves behind a process which nothing but the batch system can find.
WORKER = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open(sys.argv[1] + ".stray", "w").write(str(os.getpid()))
        time.sleep(600)
    os._exit(0)
modules = [name for name in ("torch", "json.tool") if name in sys.modules]
open(sys.argv[1], "w").write(" ".join(map(str, [os.getpid(), os.getppid(), *modules])))
time.sleep(600)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    directory = tmp_path_factory.mktemp("s")
    with _warm_server(directory) as found:
        yield found
    assert not processes_of(directory)


def _warm_server(directory: Path) -> LocalServer:
    server = start_server(
        directory, n_nodes=4, cycle_s=0.2, kill_wait_s=1, more_options=("--warm", "json.tool")
    )
    server.await_warm()
    return server


class Started:
    """An agent on a node, and its worker."""

    def __init__(self, client: LocalClient, directory: Path, **environment: str) -> None:
        directory.mkdir()
        (directory / "agent.py").write_text(AGENT)
        (directory / "worker.py").write_text(WORKER)
        config = protocol.WorkerConfig(
            trainer_id="t1",
            worker_id="w1",
            node="n1",
            script=str(directory / "worker.py"),
            args=(str(directory / "worker"),),
            cwd=str(directory),
        )
        argv = (
            *(sys.executable, "-I", str(directory / "agent.py"), str(directory / "found")),
            *(json.dumps(protocol.to_body(config)), json.dumps(environment)),
        )
        self.client = client
        self.job_id = client.submit(n_nodes=1, limit_s=600, argv=argv)
        wait_for((directory / "worker").exists, what="a worker")
        wait_for((directory / "worker.stray").exists, what="its stray child")
        found = json.loads(wait_for((directory / "found").read_text))
        self.is_shared, self.pid = found["is_shared"], found["pid"]
        worker = wait_for((directory / "worker").read_text).split()
        self.worker, self.keeper = int(worker[0]), int(worker[1])
        self.template = parent_of(self.keeper)
        self.modules = worker[2:]
        self.stray = int(wait_for((directory / "worker.stray").read_text))

    def all(self) -> list[int]:
        return [self.pid, self.template, self.keeper, self.worker, self.stray]

    def are_gone(self) -> bool:
        return not any(is_running(pid) for pid in self.all())


def test_workers_of_two_nodes_come_from_one_import(server: LocalServer, tmp_path: Path) -> None:
    one = Started(server.client, tmp_path / "1")
    two = Started(server.client, tmp_path / "2")
    assert one.is_shared
    assert two.is_shared
    assert one.template != two.template
    assert one.modules == two.modules == ["torch", "json.tool"]
    for agent in (one, two):
        for pid in (agent.template, agent.worker, agent.stray):
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            assert f"BFT_LOCAL_JOB_ID={agent.job_id}".encode() in variables
    server.client.cancel([one.job_id])
    wait_for(one.are_gone, what="the end of all of the first job")
    assert all(is_running(pid) for pid in two.all()), "the other is not touched"
    os.kill(two.pid, signal.SIGKILL)
    wait_for(two.are_gone, what="the end of all of a job whose agent was killed")


def test_an_agent_with_another_environment_has_its_own(server: LocalServer, tmp_path: Path) -> None:
    agent = Started(server.client, tmp_path / "1", OMP_NUM_THREADS="2")
    assert not agent.is_shared
    assert agent.modules == ["torch"]
    server.client.cancel([agent.job_id])
    wait_for(agent.are_gone, what="the end of all of the job")


def test_garbage_does_not_disturb_the_template(server: LocalServer, tmp_path: Path) -> None:
    for packet in (b"{", b"[]", b'{"serve": {}}', b'{"serve": 1, "run": 2}', b""):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
            channel.connect(str(server.template_path))
            channel.send(packet)
            channel.settimeout(30)
            assert channel.recv(64) == b"", packet
    agent = Started(server.client, tmp_path / "1")
    assert agent.is_shared
    server.client.cancel([agent.job_id])


def test_a_script_runs_as_under_python(server: LocalServer, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import os, sys\nprint(__name__, sys.argv, os.environ['MINE'])\n1 / 0\n")
    run = {
        "argv": [str(script), "x"],
        "environment": {"MINE": "yes"},
        "log": str(tmp_path / "log"),
    }
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
        channel.connect(str(server.template_path))
        channel.send(json.dumps({"run": run}).encode())
        channel.settimeout(30)
        assert channel.recv(64) == b""
    said = (tmp_path / "log").read_text()
    assert said.startswith(f"__main__ ['{script}', 'x'] yes\n")
    assert "ZeroDivisionError" in said


@pytest.mark.long
@pytest.mark.parametrize("how", ["stop", "SIGKILL"])
def test_all_of_it_ends_with_the_batch_system(tmp_path: Path, how: str) -> None:
    server = _warm_server(tmp_path / "s")
    agent = Started(server.client, tmp_path / "1")
    assert agent.is_shared
    if how == "SIGKILL":
        os.kill(server.pid, signal.SIGKILL)
        wait_for(agent.are_gone, what="the end of all of the job")
    server.stop()
    wait_for(lambda: agent.are_gone() and not processes_of(tmp_path / "s"), what="no process")


@pytest.mark.long
def test_without_the_template_agents_start_their_own(tmp_path: Path) -> None:
    with _warm_server(tmp_path / "s") as server:
        (template,) = processes_of(tmp_path / "s")
        os.kill(template, signal.SIGKILL)
        wait_for(lambda: not is_running(template), what="the end of the template")
        agent = Started(server.client, tmp_path / "1")
        assert not agent.is_shared
    wait_for(agent.are_gone, what="the end of all")
