"""Core files of agents and workers on each batch system: none, unless a preamble wants them."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from bftrainer.api.client import Client
from bftrainer.fleet.wire.messages import Hello
from bftrainer.lab.demo.sidecar import DaemonProcess
from slurm_plugins.testcluster import FAST_CYCLE
from tests.integration.agent_harness import Lab, in_lab, until
from tests.integration.daemon_scripts import trainer_spec
from tests.integration.lsf_fixtures import PARAMETERS, running_lsf
from tests.integration.slurm_fixtures import daemon_on, running_cluster
from tests.support import core_files
from tests.support.core_files import core_files_allowed
from tests.support.processes import is_running, parent_of
from tests.support.site import Site
from tests.support.waiting import wait_for

__all__ = ["core_files_allowed"]
pytestmark = pytest.mark.usefixtures("core_files_allowed")

LIFTING = "ulimit -Sc hard\n"
CRASHING = "import os; os.abort()\n"
# Ends when it is told to; tells who it is.
WAITING = """\
import os, time
print("PID", os.getpid(), flush=True)
print("BFT step=1 samples=1", flush=True)
time.sleep(600)
"""
POLICY = "poll_interval_s: 0.2\nreserve_nodes_per_type: 0\nfailure_budget: 1\nexplore_budget: 0\n"


@pytest.mark.parametrize(
    "preamble",
    [
        "",
        pytest.param("true\n", marks=pytest.mark.long),
        pytest.param(LIFTING, marks=pytest.mark.long),
    ],
)
def test_a_worker_that_crashes_leaves_a_core_file_only_if_its_preamble_wants_one(
    tmp_path: Path, preamble: str
) -> None:
    async def scenario(lab: Lab) -> None:
        daemon = await lab.start_daemon()
        agent = lab.start_agent()
        await until(lambda: daemon.of(Hello), "hello")
        assert core_files.limits_of(agent.pid)[0] == "0"
        daemon.send(lab.order("w1", lab.script("crash.py", CRASHING), preamble=preamble))
        ended = await until(lambda: daemon.exited("w1"), "it has ended")
        assert ended.returncode == -signal.SIGABRT

    in_lab(tmp_path, scenario)
    left = list(tmp_path.glob("core*"))
    for core in left:
        core.unlink()
    assert bool(left) is (preamble == LIFTING and core_files.are_written_beside())


@contextlib.contextmanager
def _embedded(base: Path) -> Iterator[DaemonProcess]:
    with Site.open(base, n_nodes=1, policy=POLICY, options=()) as site:
        yield site.sidecar


@contextlib.contextmanager
def _lsf(base: Path) -> Iterator[DaemonProcess]:
    with running_lsf(dialect="ibm", n_nodes=1, parameters=PARAMETERS) as cluster:
        sidecar = DaemonProcess(
            base / "state",
            batch_system="lsf",
            batch_options=cluster.config.batch_options(),
            policy=POLICY,
        )
        with sidecar:
            yield sidecar


@contextlib.contextmanager
def _slurm(base: Path) -> Iterator[DaemonProcess]:
    settings = {"n_nodes": 1, "bf_interval_s": 2, "scheduler_parameters": FAST_CYCLE}
    with running_cluster(**settings) as cluster, daemon_on(cluster, base, POLICY) as sidecar:
        yield sidecar


@pytest.mark.long
@pytest.mark.parametrize(
    "opened",
    [
        pytest.param(_embedded, id="embedded"),
        pytest.param(_lsf, id="lsf"),
        pytest.param(_slurm, id="slurm", marks=pytest.mark.slurm),
    ],
)
def test_pilots_of_every_batch_system_write_no_core_files(
    tmp_path: Path, opened: Callable[[Path], AbstractContextManager[DaemonProcess]]
) -> None:
    """Seen failing before: all of them had the pilot's limit, which was raised here."""
    with opened(tmp_path) as sidecar:
        trainer, worker = _trained(sidecar.client, tmp_path / "usual", "")
        agent = _agent_of(worker)
        for pid in (sidecar.pid, agent, worker):
            assert core_files.limits_of(pid)[0] == "0", pid
        _crash(worker)
        sidecar.client.cancel(trainer, now=True)
        _, lifted = _trained(sidecar.client, tmp_path / "lifted", LIFTING)
        soft, hard = core_files.limits_of(lifted)
        assert soft == hard != "0"
        assert core_files.limits_of(_agent_of(lifted))[0] == "0"
        _crash(lifted)
    assert not list((tmp_path / "usual").glob("core*"))
    left = list((tmp_path / "lifted").glob("core*"))
    for core in left:
        core.unlink()
    assert bool(left) is core_files.are_written_beside()


def _trained(client: Client, directory: Path, preamble: str) -> tuple[str, int]:
    """Submit a program that waits; return the trainer, and the program's pid."""
    spec = trainer_spec(
        directory, WAITING, runtime="command", epochs=None, n_max=1, preamble=preamble
    )
    program = dataclasses.replace(spec, script=sys.executable, args=(spec.script,), interpreter="")
    trainer = client.submit(program).record.trainer_id

    def pid() -> int | None:
        logs = [Path(file.path).read_text() for file in client.logs(trainer)]
        told = [line for log in logs for line in log.splitlines() if line.startswith("PID ")]
        return int(told[0].split()[1]) if told else None

    return trainer, wait_for(pid, what="it runs")


def _agent_of(pid: int) -> int:
    while b"trainers.agent" not in Path(f"/proc/{pid}/cmdline").read_bytes():
        pid = parent_of(pid)
    return pid


def _crash(pid: int) -> None:
    os.kill(pid, signal.SIGABRT)
    wait_for(lambda: not is_running(pid), what="it has ended")
