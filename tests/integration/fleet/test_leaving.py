"""A worker ends when it is told to, and with its pilot, whatever its script is in the middle of."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

from bftrainer.elastic.process import worker_keeper
from bftrainer.fleet.wire.messages import Ending, Hello, Leave, Leaving, TellWorker
from bftrainer.ground.protocol import Commit, Member, Prepare, Stop, to_body
from tests.integration.agent_harness import Daemon, Lab, in_lab, until
from tests.support.processes import below, is_running

SCRIPT = """
import sys, time
from pathlib import Path
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, get_worker_info
import bftrainer.elastic as elastic
from bftrainer.elastic.process import control

what, mark = sys.argv[1], Path("in-" + control.current().config.worker_id)

class Data(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        if what == "stalled loader" and get_worker_info() is not None:
            mark.touch()
            time.sleep(600)
        return torch.randn(4)

def endless():
    mark.touch()
    with torch.no_grad():
        while True:
            model(torch.randn(256, 4))

model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
workers = 2 if what == "stalled loader" else 0
run = elastic.Run(model, optimizer, DataLoader(Data(), batch_size=8, num_workers=workers), epochs=2)
for epoch in run.epochs():
    for x in run.batches():
        if what == "warm-up":
            endless()
        if run.step_count and what == "compilation":
            mark.touch()
            kinds = (nn.Linear(4, 4), nn.GELU(), nn.Softmax())
            layers = [layer for _ in range(20) for layer in kinds]
            torch.compile(nn.Sequential(*layers))(x).sum().backward()
        if run.step_count and what == "evaluation":
            endless()
        model(x).sum().backward()
        run.step()
"""
PLACES = [
    "evaluation",
    *(
        pytest.param(p, marks=pytest.mark.long)
        for p in ("warm-up", "stalled loader", "compilation")
    ),
]


def compiles(pid: int) -> bool:
    """Whether a compiler runs below this process."""
    return any(_name(child) == "cc1plus" for child in below(pid))


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


async def inside(lab: Lab, daemon: Daemon, worker_id: str, what: str) -> None:
    """Start a worker and wait until it is where it stays."""
    assert lab.agent is not None
    script = lab.script("train.py", SCRIPT)
    daemon.send(lab.order(worker_id, script, args=(what,), interpreter=sys.executable))
    if what != "warm-up":
        await until(lambda: daemon.said(worker_id, "Warm"), "warm")
        daemon.send(TellWorker(worker_id=worker_id, body=to_body(alone(worker_id))))
    await until((lab.directory / f"in-{worker_id}").exists, f"it is inside its {what}")
    if what == "compilation":
        pid = lab.agent.pid
        await until(lambda: compiles(pid), "a compiler runs")


def alone(worker_id: str) -> Commit:
    me = Member(worker_id=worker_id, rank=0, node="n1", address="127.0.0.1")
    return Commit(generation=1, attempt=1, token="t", members=(me,))  # noqa: S106 - no secret


@pytest.mark.parametrize("what", PLACES)
def test_a_worker_and_its_pilot_leave_from_anywhere(tmp_path: Path, what: str) -> None:
    if what == "compilation" and not shutil.which("g++"):
        pytest.skip("torch.compile needs a C++ compiler")

    async def scenario(lab: Lab) -> None:
        daemon = await lab.start_daemon()
        agent = lab.start_agent()
        await until(lambda: daemon.of(Hello), "hello")
        await inside(lab, daemon, "w1", what)
        prepare = Prepare(generation=2, attempt=1)
        daemon.send(TellWorker(worker_id="w1", body=to_body(prepare)))
        await until(lambda: daemon.said("w1", "Ready"), "it answers")
        [template] = worker_keeper.children(agent.pid)
        pids = below(template)
        daemon.send(TellWorker(worker_id="w1", body=to_body(Stop(reason="test"))))
        end = await until(lambda: daemon.exited("w1"), "it has ended")
        assert end.returncode == 0
        assert not any(map(is_running, pids)), "and all that it started"
        await inside(lab, daemon, "w2", what)
        pids = below(agent.pid)
        daemon.send(Leave(reason="test"))
        assert await lab.agent_ended() == 0
        await until(lambda: not any(map(is_running, pids)), "all have ended")

    in_lab(tmp_path, scenario)


ON_DEVICES = """
import sys, threading
from pathlib import Path
from bftrainer.elastic.process import control
from bftrainer.ground import protocol
own = control.current()
control.leave_end_to_agent(True)
own.send(protocol.Warm(warm_up_s=0.5))
own.send(protocol.Entered(generation=1, attempt=1, rank=0, size=2, step=1, epoch=0, samples=8,
                          pause_s=0.0, transfer_s=0.0, backend="nccl"))
commit = own.wait_newer((-1, -1))
if sys.argv[1] == "in time":
    own.send(protocol.Left(generation=commit.generation, step=2))
    control.die("left", status=0)
threading.Event().wait()
"""


@pytest.mark.parametrize(
    ("how", "when"),
    [
        ("told", "in time"),
        ("signal", "in time"),
        pytest.param("told", "never", marks=pytest.mark.long),
        pytest.param("signal", "never", marks=pytest.mark.long),
    ],
)
def test_a_pilot_lets_collectives_of_devices_come_to_a_step_boundary(
    tmp_path: Path, how: str, when: str
) -> None:
    """The daemon hears of a signal at once, and has it leave; at the limit all are killed.

    The worker only says that its collectives are a device's.
    """

    async def scenario(lab: Lab) -> None:
        daemon = await lab.start_daemon()
        agent = lab.start_agent()
        await until(lambda: daemon.of(Hello), "hello")
        daemon.send(lab.order("w1", lab.script("device.py", ON_DEVICES), args=(when,)))
        await until(lambda: daemon.said("w1", "Entered"), "it trains")
        pids = below(agent.pid)
        if how == "told":
            daemon.send(Leave(reason="test"))
        else:
            workers = worker_keeper.children(worker_keeper.children(agent.pid)[0])
            for pid in (*(c for w in workers for c in worker_keeper.children(w)), agent.pid):
                os.kill(pid, signal.SIGTERM)
            await until(lambda: daemon.of(Ending), "the daemon is told")
        daemon.send(TellWorker(worker_id="w1", body=to_body(alone("w2"))))
        assert await lab.agent_ended() == 0
        [leaving] = await until(lambda: daemon.of(Leaving), "last words")
        assert leaving.reason == how
        if when == "in time":
            end = await until(lambda: daemon.exited("w1"), "its end")
            assert end.returncode == 0
            assert daemon.said("w1", "Left")
        await until(lambda: not any(map(is_running, pids)), "all have ended")

    in_lab(tmp_path, scenario)
