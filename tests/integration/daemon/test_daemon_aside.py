"""In a daemon nothing waits for another thing: each of them is made to hang."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from bftrainer.api.client import Client
from bftrainer.batch.announcer import Announcement
from bftrainer.batch.batch_system import PilotRequest
from bftrainer.batch.local.adapter import LocalBatchSystem
from bftrainer.batch.local.client import LocalClient, LocalServer
from bftrainer.daemon.daemon import Daemon
from bftrainer.daemon.decision_stage import HASTE_S
from bftrainer.daemon.options import DaemonOptions
from bftrainer.daemon.service import DaemonService
from bftrainer.decide.isolation import decide_surely
from bftrainer.model.cluster import STAND_IN, Job, JobState
from bftrainer.model.decision import DecisionInput
from bftrainer.model.trainer import TrainerState
from bftrainer.site.policy.model import SitePolicy
from tests.integration.daemon_scripts import SLOW, trainer_spec
from tests.support.site import start_warm_server
from tests.support.waiting import wait_for

POLICY = SitePolicy(
    poll_interval_s=0.2,
    min_gap_s=2.0,
    gap_margin_s=1.0,
    reserve_nodes_per_type=0,
    join_window_s=0.5,
    hold_idle_s=20.0,
    agent_timeout_s=2.0,
    unreachable_s=1.0,
)


class Hanging(LocalBatchSystem):
    """A batch system whose answers to submissions may be held back."""

    def __init__(self, client: LocalClient) -> None:
        super().__init__(client)
        self.answers = threading.Event()
        self.answers.set()
        self.asked: list[str] = []
        self.cancelled: list[str] = []

    def launch_pilot(self, request: PilotRequest) -> str:
        self.asked.append(request.pilot_id)
        assert self.answers.wait(60)
        return super().launch_pilot(request)

    def cancel_pilots(self, job_ids: Sequence[str], *, force: bool = False) -> None:
        self.cancelled += job_ids
        super().cancel_pilots(job_ids, force=force)


class Running:
    """A daemon in a thread of this process."""

    def __init__(self, base: Path, server: LocalServer) -> None:
        self.base, self.server = base, server
        self.system = Hanging(LocalClient(server.socket_path))
        self.client = Client(base / "state" / "daemon.sock")
        self._ready = threading.Event()

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        thread.start()
        try:
            assert self._ready.wait(60)
            yield
        finally:
            self.system.answers.set()
            self.loop.call_soon_threadsafe(self.daemon.stop)
            thread.join(60)
        assert not thread.is_alive()

    async def _serve(self) -> None:
        options = DaemonOptions(state_dir=self.base / "state", agent_address="127.0.0.1")
        self.loop = asyncio.get_running_loop()
        self.daemon = Daemon(options, POLICY, self.system, serve=DaemonService)
        await self.daemon.run(on_ready=self._ready.set)

    def submit(self, name: str, **changes: object) -> str:
        return self.client.submit(
            trainer_spec(self.base / name, SLOW, name=name, **changes)
        ).record.trainer_id

    def trains_on(self, trainer_id: str, nodes: int) -> None:
        wait_for(
            lambda: self.client.trainer(trainer_id).record.progress.size == nodes,
            what=f"{trainer_id} trains on {nodes}",
        )


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Running]:
    with start_warm_server(tmp_path / "local", n_nodes=2, cycle_s=0.5) as server:
        running = Running(tmp_path, server)
        with running.running():
            yield running


@pytest.mark.long
def test_a_cancel_does_not_wait_behind_a_submission(site: Running) -> None:
    first = site.server.client.submit(n_nodes=1, limit_s=600, duration_s=600, user="alice")
    trainer = site.submit("one")
    site.trains_on(trainer, 1)
    [agent] = [p for p in site.client.nodes() if p.use == "held"]
    site.system.answers.clear()
    asked = len(site.system.asked)
    site.server.client.cancel([first])
    wait_for(lambda: len(site.system.asked) > asked, what="a submission hangs")
    [held] = [j for j in site.server.client.snapshot()["jobs"] if j["nodes"] == [agent.name]]
    [hello] = site.daemon.state.plane.agents.connected.values()
    os.kill(hello.pid, signal.SIGSTOP)  # it is lost, and cancelled by force
    try:
        wait_for(lambda: held["job_id"] in site.system.cancelled, what="its cancel")
        assert not site.system.answers.is_set()
    finally:
        with suppress(ProcessLookupError):
            os.kill(hello.pid, signal.SIGCONT)


@pytest.mark.long
def test_agents_and_users_do_not_wait_for_a_decision(
    site: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = site.submit("one")
    site.trains_on(trainer, 2)
    goes_on, taken = threading.Event(), threading.Event()

    def hanging(*arguments: object) -> object:
        taken.set()
        assert goes_on.wait(600)
        return decide_surely(*arguments)  # type: ignore[arg-type]  # those that it was called with

    monkeypatch.setattr("bftrainer.daemon.decider.decide_surely", hanging)
    try:
        assert taken.wait(30)
        before = site.client.trainer(trainer).record.progress.samples
        other = site.submit("two", n_min=2)
        wait_for(
            lambda: site.client.trainer(trainer).record.progress.samples > before,
            what="its workers are heard",
        )
        cancelled = site.client.cancel(trainer, now=True)
        assert cancelled.record.state is TrainerState.CANCELLED
        assert not goes_on.is_set()
    finally:
        goes_on.set()
    site.trains_on(other, 2)  # the plan that still had the first gave it nothing
    assert site.client.trainer(trainer).observed_nodes == ()


def test_a_job_that_is_announced_does_not_wait_for_a_long_decision(
    site: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = site.submit("one")
    site.trains_on(trainer, 2)
    goes_on, hasty = threading.Event(), list[bool]()

    def long(given: DecisionInput, *others: object) -> object:
        hasty.append(given.gives_back_only)
        if not given.gives_back_only:
            time.sleep(2 * HASTE_S)  # so that the next one is preceded
            if site.daemon.state.pilots.give_backs:
                assert goes_on.wait(60)
        return decide_surely(given, *others)  # type: ignore[arg-type]  # those that it was called with

    monkeypatch.setattr("bftrainer.daemon.decider.decide_surely", long)
    try:
        wait_for(lambda: len(hasty) >= 2, what="a long decision")
        job = Job(
            job_id=f"{STAND_IN}1",
            user="alice",
            state=JobState.PENDING,
            n_nodes=1,
            time_limit_s=60.0,
            submit_s=time.time(),
        )
        said = Announcement(at_s=time.time(), partition="", job=job)
        site.loop.call_soon_threadsafe(site.daemon.incarnation.on_announced, (said,))
        wait_for(lambda: site.daemon.state.pilots.give_backs, what="a pilot is given up")
        wait_for(lambda: hasty[-2:] == [True, False], what="the whole decision")
        assert not goes_on.is_set()
    finally:
        goes_on.set()
    site.trains_on(trainer, 2)  # nobody came
