"""The agent as a real process, with a real template, real workers and a real wire."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from bftrainer.batch import process
from bftrainer.fleet.wire.keys import KeyPair, generate_pair
from bftrainer.fleet.wire.messages import (
    Heartbeat,
    Hello,
    KillWorker,
    Leave,
    Leaving,
    Refused,
    TellWorker,
    WorkerExited,
    WorkerSaid,
)
from bftrainer.fleet.wire.peers import PeerStanding, Surveyed, SurveyTrainer, ask
from bftrainer.ground.protocol import Commit, Member, Prepare, Stop, to_body
from tests.integration.agent_harness import (
    Daemon,
    Lab,
    children,
    in_lab,
    readable_secrets,
    until,
    write_executable,
)
from tests.support.old_python import old_python
from tests.support.processes import is_running
from trainers.agent.start import KEEP_FREED_MEMORY

# Lives until it is killed or told to stop; its control thread answers by itself.
WAITING = """
import subprocess, sys, threading
from bftrainer.elastic.process import control
from bftrainer.ground import protocol
child = subprocess.Popen(["sleep", "600"])
print("child", child.pid, flush=True)
control.current().send(protocol.Warm(warm_up_s=0.5))
threading.Event().wait()
"""
# Takes exactly one commit, reports, and ends as its argument says.
ENDING = """
import sys, time
from bftrainer.elastic.process import control
from bftrainer.ground import protocol
ours = control.current()
ours.send(protocol.Warm(warm_up_s=0.25))
commit = ours.wait_newer((0, 0))
ours.send(protocol.Finished(generation=commit.generation, step=9, epoch=1, samples=90))
ours.is_over = True
sys.exit(int(sys.argv[1]))
"""

# An ordinary training script on made-up data.
TRAINING = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import bftrainer.elastic as elastic
torch.manual_seed(0)
model = nn.Linear(4, 2)
optimizer = torch.optim.Adam(model.parameters())
data = TensorDataset(torch.randn(64, 4), torch.randint(0, 2, (64,)))
run = elastic.Run(model, optimizer, DataLoader(data, batch_size=8, shuffle=True), epochs=2)
for epoch in run.epochs():
    for x, y in run.batches():
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        run.step()
print("steps", run.step_count, "size", run.size)
"""


def commit(generation: int, *members: Member) -> dict[str, object]:
    return to_body(Commit(generation=generation, attempt=0, token="t", members=members))  # noqa: S106


START = """
import json
import os
import sys
from pathlib import Path
environ = [v for v in Path("/proc/self/environ").read_bytes().decode().split("\\0") if v]
Path(sys.argv[1]).write_text(json.dumps(dict(v.split("=", 1) for v in environ)))
"""


def test_workers_start_with_what_their_trainer_says(tmp_path: Path) -> None:
    async def scenario(lab: Lab) -> None:
        daemon = await lab.start_daemon(interpreters=(lab.torchless,))
        lab.start_agent()
        await until(lambda: daemon.of(Hello), "hello")
        script = lab.script("start.py", START)
        own = {"MALLOC_TRIM_THRESHOLD_": "1000000", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
        for worker_id, environment in (("w1", {}), ("w2", own)):
            out = str(tmp_path / worker_id)
            daemon.send(
                lab.order(worker_id, script, args=(out,), environment=tuple(environment.items()))
            )
        usual = {**KEEP_FREED_MEMORY, **os.environ}
        for worker_id, expected in (("w1", usual), ("w2", {**usual, **own})):
            await until(partial(daemon.exited, worker_id), "exit")
            started = json.loads((tmp_path / worker_id).read_text())
            for name in ("GLIBC_TUNABLES", *KEEP_FREED_MEMORY):
                assert started.get(name) == expected.get(name), name

    in_lab(tmp_path, scenario)


def test_a_workers_life(tmp_path: Path) -> None:
    async def scenario(lab: Lab) -> None:
        daemon = await lab.start_daemon(interpreters=(lab.torchless,))
        agent = lab.start_agent()
        hello = await until(lambda: daemon.of(Hello), "hello")
        assert (hello[0].node, hello[0].pid, hello[0].workers) == ("n1", agent.pid, [])
        visible = b"".join(readable_secrets(agent.pid)).decode(errors="replace")
        assert str(lab.config_file) in visible
        assert lab.agent_keys.secret not in visible
        assert lab.daemon_keys.public not in visible

        ending = lab.script("ending.py", ENDING)
        daemon.send(lab.order("w1", ending, args=("3",)))
        daemon.send(lab.order("w1", ending, args=("3",)))  # said twice, forked once
        started = await until(lambda: daemon.started("w1"), "fork")
        await until(lambda: daemon.said("w1", "Warm"), "its first word")
        assert os.getpgid(started.pid) == started.pid
        await until(
            lambda: any(beat.workers == ["w1"] for beat in daemon.of(Heartbeat)), "heartbeat"
        )
        daemon.send(TellWorker(worker_id="w1", body={"type": "Nonsense"}))
        daemon.send(TellWorker(worker_id="w1", body={"type": "Warm", "warm_up_s": 1}))
        daemon.send(TellWorker(worker_id="w9", body=to_body(Stop(reason="nobody"))))
        prepare = to_body(Prepare(generation=4, attempt=0))
        daemon.send(TellWorker(worker_id="w1", body=prepare))
        ready = await until(lambda: daemon.said("w1", "Ready"), "answer")
        assert ready["generation"] == 4
        daemon.send(TellWorker(worker_id="w1", body=commit(4)))
        end = await until(lambda: daemon.exited("w1"), "exit")
        assert (end.returncode, end.cause) == (3, "")
        kinds = [
            m.body["type"] if isinstance(m, WorkerSaid) else "exit"
            for m in daemon.heard
            if isinstance(m, WorkerSaid | WorkerExited)
        ]
        # Last words before the end; a status of its own has its reason told.
        assert kinds == ["Warm", "Ready", "Finished", "Failed", "exit"]

        daemon.send(lab.order("w2", lab.script("broken.py", "raise RuntimeError('boom')")))
        end = await until(lambda: daemon.exited("w2"), "failure")
        assert end.returncode == 1
        failed = daemon.said("w2", "Failed")
        assert failed is not None
        assert "boom" in failed["cause"]
        assert "RuntimeError: boom" in (tmp_path / "w2.log").read_text()

        daemon.send(lab.order("w3", lab.script("waiting.py", WAITING)))
        daemon.send(KillWorker(worker_id="w3"))  # before it is known to be forked
        assert (await until(lambda: daemon.exited("w3"), "kill")).returncode == -signal.SIGKILL
        daemon.send(Leave(reason="done"))
        assert await lab.agent_ended() == 0
        await until(lambda: daemon.of(Leaving), "last words")
        assert daemon.of(Leaving)[0].reason == "told"

    in_lab(tmp_path, scenario)


def test_two_elastic_workers_train_together(tmp_path: Path) -> None:
    async def scenario(lab: Lab) -> None:
        daemon = await lab.start_daemon(interpreters=(sys.executable,))
        lab.start_agent()
        await until(lambda: daemon.of(Hello), "hello")
        script = lab.script("train.py", TRAINING)
        names = ("w1", "w2")
        for name in names:
            daemon.send(lab.order(name, script, interpreter=sys.executable))
        await until(lambda: all(daemon.said(n, "Warm") for n in names), "both warm")
        for name in names:
            prepare = Prepare(generation=1, attempt=0, open_store=name == "w1")
            daemon.send(TellWorker(worker_id=name, body=to_body(prepare)))
        await until(lambda: all(daemon.said(n, "Ready") for n in names), "both ready")
        ready = daemon.said("w1", "Ready")
        assert ready is not None
        members = tuple(
            Member(worker_id=name, rank=rank, node="n1", address="127.0.0.1")
            for rank, name in enumerate(names)
        )
        generation = Commit(
            generation=1, attempt=0, token="t", members=members,  # noqa: S106 - no secret
            store_host="127.0.0.1", store_port=ready["store_port"], incarnation=1,
        )  # fmt: skip
        for name in names:
            daemon.send(TellWorker(worker_id=name, body=to_body(generation)))
        ends = [
            await until(lambda name=name: daemon.exited(name), name)  # type: ignore[misc]  # mypy: default in lambda
            for name in names
        ]
        assert [(end.returncode, end.cause) for end in ends] == [(0, "")] * 2
        for name in names:
            entered, finished = daemon.said(name, "Entered"), daemon.said(name, "Finished")
            assert entered is not None
            assert finished is not None
            assert (entered["size"], finished["step"], finished["samples"]) == (2, 16, 128)
        # Only rank 0 goes past the loops.
        assert "steps 16 size 2" in (tmp_path / "w1.log").read_text()
        assert (tmp_path / "w2.log").read_text() == ""

    in_lab(tmp_path, scenario)


def test_workers_that_cannot_start(tmp_path: Path) -> None:
    async def scenario(lab: Lab) -> None:
        daemon = await lab.start_daemon()
        lab.start_agent()
        await until(lambda: daemon.of(Hello), "hello")
        script = lab.script("x.py", "print('never')")
        bare = f'#!/bin/sh\nexec {sys.executable} -S "$@"\n'  # no site-packages
        no_torch = str(write_executable(tmp_path / "bare", bare))
        daemon.send(lab.order("w1", script, interpreter="/nowhere/python"))
        daemon.send(lab.order("w2", script, interpreter=no_torch))
        daemon.send(lab.order("w3", script, interpreter="/bin/false"))
        daemon.send(lab.order("w7", script, interpreter=old_python(tmp_path, "3.9.18")))
        wrong = lab.order("w4", script)
        daemon.send(wrong.model_copy(update={"config": {"worker_id": "w4", "bad": 1}}))
        daemon.send(wrong.model_copy(update={"worker_id": "w5"}))
        daemon.send(lab.order("w6", script, args=("x" * 200_000,)))
        causes = {}
        for name in ("w1", "w2", "w3", "w4", "w5", "w6", "w7"):
            end = await until(lambda name=name: daemon.exited(name), name)  # type: ignore[misc]  # mypy: default in lambda
            assert end.returncode != 0
            causes[name] = end.cause
        assert "/nowhere/python cannot be run" in causes["w1"]
        assert "BFT-1409" in causes["w2"]
        assert "/bin/false ended" in causes["w3"]
        assert "BFT-1301" in causes["w4"]
        assert "another worker" in causes["w5"]
        assert "exceed" in causes["w6"]
        assert "BFT-1006" in causes["w7"]
        assert "has Python 3.9.18; a trainer needs Python 3.10" in causes["w7"]
        assert not daemon.of(WorkerSaid)

    in_lab(tmp_path, scenario)


async def _start_waiting(lab: Lab, daemon: Daemon, worker_id: str = "w1") -> tuple[int, int, int]:
    """Start a worker with a child of its own; return their pids and the template's."""
    assert lab.agent is not None
    daemon.send(lab.order(worker_id, lab.script("waiting.py", WAITING)))
    await until(lambda: daemon.said(worker_id, "Warm"), "worker is up")
    started = await until(lambda: daemon.started(worker_id), "its agent says so, too")
    child = int((lab.directory / f"{worker_id}.log").read_text().split()[1])
    (template,) = filter(is_running, children(lab.agent.pid))  # not those it is still to reap
    return started.pid, child, template


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        *(pytest.param(n, marks=pytest.mark.long) for n in (signal.SIGUSR1, signal.SIGUSR2)),
    ],
)
def test_a_signal_ends_everything_and_is_announced(tmp_path: Path, number: int) -> None:
    async def scenario(lab: Lab) -> None:
        daemon = await lab.start_daemon()
        agent = lab.start_agent()
        await until(lambda: daemon.of(Hello), "hello")
        pids = await _start_waiting(lab, daemon)
        os.kill(pids[0], signal.SIGSTOP)  # a hung worker must go as well
        agent.send_signal(signal.SIGCONT)  # as Slurm does, together with SIGTERM
        agent.send_signal(number)
        assert await lab.agent_ended() == 0
        await until(lambda: daemon.order[-1] == "lost:disconnected", "loss")
        ends = [kind for kind in daemon.order if kind.startswith(("leaving", "lost"))]
        assert ends == ["leaving", "lost:disconnected"]  # its worker may speak in between
        assert daemon.of(Leaving)[0].reason == "signal"
        await until(lambda: not any(map(is_running, pids)), "worker, its child and template gone")

    in_lab(tmp_path, scenario)


def test_a_daemon_that_is_lost_within_the_grace_time_keeps_no_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen failing before: it stayed until its lease was over, or the batch system killed it."""
    monkeypatch.setenv("BFT_GRACE_S", "600")

    async def scenario(lab: Lab) -> None:
        daemon = await lab.start_daemon()
        agent = lab.start_agent()
        await until(lambda: daemon.of(Hello), "hello")
        pids = await _start_waiting(lab, daemon)
        agent.send_signal(signal.SIGUSR1)  # as the herald does
        await until(lambda: "ending" in daemon.order, "it says so")
        await daemon.stop()
        assert await lab.agent_ended() == 0
        assert "left: signal" in lab.log()
        await until(lambda: not any(map(is_running, pids)), "worker, its child and template gone")

    in_lab(tmp_path, scenario)


def test_a_killed_agent_leaves_nothing_behind(tmp_path: Path) -> None:
    async def scenario(lab: Lab) -> None:
        daemon = await lab.start_daemon()
        agent = lab.start_agent()
        await until(lambda: daemon.of(Hello), "hello")
        worker, child, template = await _start_waiting(lab, daemon)
        agent.kill()
        await until(lambda: "lost:disconnected" in daemon.order, "loss")
        assert not daemon.of(Leaving)
        pids = (worker, child, template)
        await until(lambda: not any(map(is_running, pids)), "worker, its child and template gone")

    in_lab(tmp_path, scenario)


def test_a_stopped_worker_is_killed_after_its_lease(tmp_path: Path) -> None:
    async def scenario(lab: Lab) -> None:
        daemon = await lab.start_daemon()
        lab.start_agent(worker_lease_s=5.0)
        await until(lambda: daemon.of(Hello), "hello")
        worker, child, _ = await _start_waiting(lab, daemon)
        os.kill(worker, signal.SIGSTOP)
        end = await until(lambda: daemon.exited("w1"), "exit reported")
        assert end.returncode == -signal.SIGKILL
        assert "worker_lease_s" in end.cause
        await until(lambda: not is_running(child), "its child is gone, too")

    in_lab(tmp_path, scenario)


@pytest.mark.parametrize(
    ("number", "counts_as"),
    [
        (signal.SIGKILL, -signal.SIGKILL),
        # As if the batch system took the node.
        pytest.param(signal.SIGTERM, -signal.SIGTERM, marks=pytest.mark.long),
        pytest.param(signal.SIGINT, -signal.SIGTERM, marks=pytest.mark.long),  # so LSF begins
    ],
)
def test_a_template_that_dies_is_replaced(tmp_path: Path, number: int, counts_as: int) -> None:
    async def scenario(lab: Lab) -> None:
        daemon = await lab.start_daemon()
        lab.start_agent()
        await until(lambda: daemon.of(Hello), "hello")
        worker, child, template = await _start_waiting(lab, daemon)
        os.kill(template, number)
        end = await until(lambda: daemon.exited("w1"), "exit reported")
        assert end.returncode == counts_as
        assert "template" in end.cause
        await until(lambda: not is_running(worker) and not is_running(child), "worker gone")
        second = await _start_waiting(lab, daemon, "w2")
        assert second[2] != template

    in_lab(tmp_path, scenario)


def test_a_returning_daemon_learns_everything(tmp_path: Path) -> None:
    async def scenario(lab: Lab) -> None:
        first = await lab.start_daemon(incarnation=5)
        lab.start_agent(incarnation=5)
        hello = (await until(lambda: first.of(Hello), "hello"))[0]
        peer = generate_pair()
        member = Member(
            worker_id="w1", rank=0, node="n1", address="127.0.0.1",
            agent_endpoint=hello.peer_endpoint, agent_public_key=peer.public,
        )  # fmt: skip
        worker, _, _ = await _start_waiting(lab, first)
        assert await _asks(hello, peer, timeout_s=0.3) is None  # not in a roster yet
        body = commit(3, member)
        first.send(TellWorker(worker_id="w1", body=body))
        first.send(TellWorker(worker_id="w1", body=to_body(Prepare(generation=4, attempt=0))))
        first.send(lab.order("w2", lab.script("ending.py", ENDING), args=("0",)))
        await until(lambda: first.said("w1", "Ready"), "ready")
        await until(lambda: first.said("w2", "Warm"), "the second is up")
        answer = await _asks(hello, peer, timeout_s=15.0)
        assert answer is not None
        assert answer[0].worker_id == "w1"
        assert answer[0].commit is not None
        assert (answer[0].commit.generation, answer[0].ready) == (3, (4, 0))

        # The daemon dies right after an order. The worker's last words may still have reached it.
        first.send(TellWorker(worker_id="w2", body=commit(3, member)))
        w2 = first.started("w2")
        assert w2 is not None
        await until(lambda: not is_running(w2.pid), "it has ended")
        first.is_talking = False
        await first.stop()
        port = int(lab.endpoint.rsplit(":", 1)[1])
        second = await lab.start_daemon(incarnation=6, port=port)
        again = (await until(lambda: second.of(Hello), "hello again"))[0]
        report, *others = again.workers
        assert {w.worker_id for w in others} <= {"w2"}  # whose end may be on its way
        assert (report.worker_id, report.trainer_id, report.pid) == ("w1", "t1", worker)
        assert report.commit is not None
        # 5: it was stuck between 3 and 4 for as long as the agent knew of no daemon, and went on.
        assert report.commit["generation"] in (3, 5)
        assert [b["type"] for b in report.latest] == ["Warm", "Ready"]
        assert (await until(lambda: second.exited("w2"), "its end")).returncode == 0
        assert first.said("w2", "Finished") or second.said("w2", "Finished")
        assert is_running(worker)
        assert lab.agent is not None
        await until(lambda: second.of(Heartbeat), "heartbeats go on")
        assert second.of(Heartbeat)[0].incarnation == 6

    in_lab(tmp_path, scenario)


async def _asks(hello: Hello, keys: KeyPair, timeout_s: float) -> list[PeerStanding] | None:
    answer = await ask(
        hello.peer_endpoint,
        SurveyTrainer(trainer_id="t1", generation=3, attempt=1),
        public_key=hello.peer_public_key,
        keys=keys,
        timeout_s=timeout_s,
    )
    return answer.workers if isinstance(answer, Surveyed) else None


def test_a_silent_daemon_is_greeted_again(tmp_path: Path) -> None:
    async def scenario(lab: Lab) -> None:
        daemon = await lab.start_daemon()
        lab.start_agent()
        await until(lambda: daemon.of(Heartbeat), "welcomed")
        daemon.is_talking = False
        await until(lambda: len(daemon.of(Hello)) >= 2, "second hello")

    in_lab(tmp_path, scenario)


def test_the_lease_ends(tmp_path: Path) -> None:
    async def scenario(lab: Lab) -> None:
        daemon = await lab.start_daemon()
        lab.start_agent(lease_s=600.0)
        await until(lambda: daemon.of(Heartbeat), "welcomed")
        pids = await _start_waiting(lab, daemon)
        daemon.welcome = daemon.welcome.model_copy(update={"lease_s": 0.5})
        daemon.send(daemon.welcome)  # the last it hears
        daemon.is_talking = False
        assert await lab.agent_ended() == 0
        await until(lambda: daemon.of(Leaving), "last words")
        assert daemon.of(Leaving)[0].reason == "lease"
        await until(lambda: not any(map(is_running, pids)), "all gone")

    in_lab(tmp_path, scenario)


def test_the_lease_ends_when_no_daemon_was_ever_there(tmp_path: Path) -> None:
    async def scenario(lab: Lab) -> None:
        lab.endpoint = "tcp://127.0.0.1:9"  # discard: nobody listens
        lab.start_agent(lease_s=0.3)
        assert await lab.agent_ended() == 0
        assert "left: lease" in lab.log()

    in_lab(tmp_path, scenario)


def test_the_time_limit_comes(tmp_path: Path) -> None:
    async def scenario(lab: Lab) -> None:
        daemon = await lab.start_daemon()
        for limit_s in (8.0, 80.0):  # where starting is slow, the first ends before it connects
            lab.config_file.unlink(missing_ok=True)
            lab.start_agent(end_s=time.time() + limit_s)
            assert await lab.agent_ended() == 0
            if daemon.of(Leaving):
                break
        await until(lambda: daemon.of(Leaving), "last words")
        assert daemon.of(Leaving)[0].reason == "time-limit"

    in_lab(tmp_path, scenario)


def test_refused_and_signalled_early(tmp_path: Path) -> None:
    async def scenario(lab: Lab) -> None:
        daemon = await lab.start_daemon()
        agent = lab.start_agent()
        await until(lambda: daemon.of(Hello), "hello")
        daemon.send(Refused(reason="unknown pilot"))
        assert await lab.agent_ended() == 0
        assert "BFT-1301: the daemon refused us: unknown pilot" in lab.log()
        lab.config_file.unlink()
        agent = lab.start_agent()
        agent.send_signal(signal.SIGTERM)  # wherever it is in its start-up
        assert await lab.agent_ended() in (0, -signal.SIGTERM)  # the latter: before Python ran

    in_lab(tmp_path, scenario)


@pytest.mark.parametrize(
    "verb", [["-I", "-m", "trainers.agent"], ["-m", "bftrainer.cli.main", "agent"]]
)
def test_bad_configurations_are_explained(tmp_path: Path, verb: list[str]) -> None:
    lab = Lab(tmp_path)
    lab.endpoint = "tcp://127.0.0.1:9"

    def complaint() -> str:
        argv = [sys.executable, *verb, "--config", str(lab.config_file)]
        done = process.run(argv, timeout_s=60)
        assert done.returncode not in (0, None)
        assert "Traceback" not in done.stderr
        assert "next: " in done.stderr
        return done.stderr

    assert "BFT-1302" in complaint()
    lab.config_file.write_text("{}")
    lab.config_file.chmod(0o644)
    assert "0644" in complaint()
    lab.config_file.chmod(0o600)
    assert "BFT-1303" in complaint()
    lab.config_file.unlink()
    agent = lab.start_agent(address="192.0.2.1")  # of nobody
    assert agent.wait(60) != 0
    assert "BFT-1306" in lab.log()
