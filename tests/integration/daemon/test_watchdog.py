"""What a daemon tells systemd: completed cycles feed the watchdog, an outage included."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from bftrainer.api.client import Client
from bftrainer.batch import process
from bftrainer.batch.local.client import LocalServer, start_server
from bftrainer.daemon import systemd
from bftrainer.daemon.systemd import CYCLE_S, ServiceManager
from bftrainer.model.errors import ExitCode
from bftrainer.site.policy.model import SitePolicy
from tests.support.waiting import wait_for

FED, LONG_US = "WATCHDOG=1", 600_000_000
INTERVAL_S = 0.05
POLICY = f"poll_interval_s: {INTERVAL_S}\nrequests_per_minute: 100000\n"


class NotifySocket:
    """Hears what systemd would."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.settimeout(0)
        self.environ = {"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": str(LONG_US)}
        self.heard: list[str] = []

    def hear(self) -> list[str]:
        """All assignments up to now."""
        with contextlib.suppress(BlockingIOError):
            while True:
                self.heard += self._socket.recv(4096).decode().split("\n")
        return self.heard

    def count(self, assignment: str) -> int:
        return self.hear().count(assignment)

    def hears(self, assignment: str, *, times: int = 1) -> None:
        """``times`` more of them come than were heard when somebody last listened."""
        wanted = self.heard.count(assignment) + times
        wait_for(lambda: self.count(assignment) >= wanted, what=f"{assignment} of {self.heard}")

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[NotifySocket]:
    opened = NotifySocket(tmp_path / "notify")
    yield opened
    opened.close()


@contextlib.contextmanager
def running(
    manager: NotifySocket, directory: Path, program: Sequence[str], system: Path
) -> Iterator[int]:
    """A daemon on the local batch system at ``system``, which need not exist; its pid."""
    (directory / "policy.yaml").write_text(POLICY)
    (directory / "policy.yaml").chmod(0o600)
    argv = (
        *(sys.executable, "-m", *program),
        *("--state-dir", str(directory / "state"), "--policy", str(directory / "policy.yaml")),
        *("--batch-system", "local", "--batch-option", f"socket={system}"),
    )
    with (directory / "out").open("wb") as out:
        child = process.spawn(argv, env={**os.environ, **manager.environ}, stdout=out, stderr=out)
    try:
        yield child.pid
        assert child.wait(30) in {ExitCode.OK, -signal.SIGABRT}
    finally:
        child.kill()
        child.wait()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    with start_server(tmp_path_factory.mktemp("site"), n_nodes=2) as started:
        yield started


def test_an_outage_from_the_beginning_feeds_the_watchdog(
    manager: NotifySocket, tmp_path: Path
) -> None:
    daemon = ("bftrainer.cli.main", "daemon")
    with running(manager, tmp_path, daemon, tmp_path / "none") as pid:
        manager.hears("READY=1")
        manager.hears(FED, times=5)
        told = [said for said in manager.hear() if said.startswith("STATUS=holds 0 nodes; inc")]
        assert len(told) >= 5
        os.kill(pid, signal.SIGTERM)
        manager.hears("STOPPING=1")
    assert not any(said.startswith("WATCHDOG_USEC") for said in manager.hear())


@pytest.mark.parametrize("what", ["poll", pytest.param("decision", marks=pytest.mark.long)])
def test_what_hangs_feeds_it_no_more(
    what: str, manager: NotifySocket, server: LocalServer, tmp_path: Path
) -> None:
    stuck = tmp_path / "stuck"
    program = ("tests.support.stuck", what, str(stuck))

    def hang() -> None:
        stuck.touch()
        wait_for(stuck.read_text, what="it hangs")

    with running(manager, tmp_path, program, server.socket_path) as pid:
        manager.hears("READY=1")
        manager.hears(FED, times=3)
        hang()
        client = Client(tmp_path / "state" / "daemon.sock")
        client.status()  # the loops have seen it
        before, until_s = manager.count(FED), time.monotonic() + 20 * INTERVAL_S
        wait_for(lambda: client.status() and time.monotonic() > until_s)  # it seems to live
        assert manager.count(FED) == before
        if what == "decision":
            manager.hears("STATUS=holds 0 nodes", times=3)  # and polls
            assert manager.count(FED) == before
        stuck.unlink()
        manager.hears(FED, times=3)
        hang()
        os.kill(pid, signal.SIGABRT)  # as the watchdog does
    said = (tmp_path / "out").read_text()
    assert "Fatal Python error: Aborted" in said
    assert "in hang" in said, "the log does not say where it was"


def test_a_reload_is_told(manager: NotifySocket) -> None:
    told = ServiceManager(manager.environ)
    assert manager.environ == {}, "children would speak for the daemon"
    told.ready(SitePolicy())
    told.reloading()
    told.ready(SitePolicy())
    first, reloading, since, last = manager.hear()
    assert (first, reloading, last) == ("READY=1", "RELOADING=1", "READY=1")
    assert int(since.removeprefix("MONOTONIC_USEC=")) <= time.monotonic_ns() // 1000


def test_slow_polls_lengthen_the_watchdog(manager: NotifySocket) -> None:
    """A controller that answers slowly is polled less often (docs/howto/slurm-site.md)."""
    told = ServiceManager(manager.environ)
    told.polled(20.0, 3, ())
    told.turned()
    assert manager.hear() == ["STATUS=holds 3 nodes", FED]
    told.polled(200.0, 3, ())
    (longer,) = (said for said in manager.hear() if said.startswith("WATCHDOG_USEC="))
    assert int(longer.partition("=")[2]) > LONG_US
    told.ready(SitePolicy(poll_interval_with_hook_s=3600))
    assert manager.hear()[-1] == f"WATCHDOG_USEC={(2 * 3600 + CYCLE_S) * 1e6:.0f}"


def test_nobody_listens(tmp_path: Path) -> None:
    environ = {"NOTIFY_SOCKET": str(tmp_path / "gone"), "WATCHDOG_USEC": "1", "WATCHDOG_PID": "1"}
    ServiceManager(environ).ready(SitePolicy())
    ServiceManager({}).stopping()


def test_an_end_is_told_although_the_manager_is_behind(
    manager: NotifySocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(systemd, "ROOM_S", 60.0)
    told = ServiceManager(manager.environ)
    for _ in range(1000):  # more than any queue holds
        told.polled(0.0, 3, ())
    ending = threading.Thread(target=told.stopping)
    ending.start()
    wait_for(lambda: manager.count("STOPPING=1"), what="the end is told")
    ending.join()


def test_an_abstract_address(manager: NotifySocket) -> None:
    name = f"bft-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(f"\0{name}")
        listener.settimeout(10)
        ServiceManager({"NOTIFY_SOCKET": f"@{name}"}).ready(SitePolicy())
        assert listener.recv(100) == b"READY=1"
