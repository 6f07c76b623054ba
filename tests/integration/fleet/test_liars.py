"""An agent that lies, or is of another release, beside honest ones: the real daemon goes on.

The liar has the key of a pilot that is really there, and its agent is stopped.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import zmq

from bftrainer.fleet.wire.client import DaemonConnection
from bftrainer.fleet.wire.endpoint import AgentConfig
from bftrainer.fleet.wire.keys import load_pair
from bftrainer.fleet.wire.messages import DaemonMessage, Hello, Welcome
from bftrainer.model.views import TrainerView
from tests.integration.daemon.test_daemon import POLICY, DaemonSite
from tests.integration.daemon_scripts import SLOW
from tests.support.site import opened_site
from tests.support.waiting import wait_for

site = opened_site(DaemonSite, n_nodes=3, policy=POLICY)


class Liar:
    """Speaks with the key of a pilot whose agent is stopped."""

    def __init__(self, site: DaemonSite, node: str) -> None:
        state = site.base / "state"
        configs = [AgentConfig.load(p) for p in (state / "pilots").glob("p*/agent.json")]
        (self.config,) = [c for c in configs if c.node == node]
        self.pid = _pid_of(self.config.key_file.parent / "agent.json")
        os.kill(self.pid, signal.SIGSTOP)

    def says(self, *bodies: dict[str, Any], **hello: Any) -> None:
        """Greet the daemon, say all this once welcome, and stay for some of its signs of life."""
        asyncio.run(self._say(bodies, hello))

    async def _say(self, bodies: tuple[dict[str, Any], ...], more: dict[str, Any]) -> None:
        config, welcomes = self.config, asyncio.Semaphore(0)
        hello = Hello(
            pilot_id=config.pilot_id, node=config.node, address="127.0.0.1", pid=1,
            peer_endpoint="", peer_public_key="",
        ).model_dump()  # fmt: skip

        def heard(message: DaemonMessage) -> None:
            if isinstance(message, Welcome):
                welcomes.release()

        def raw(body: dict[str, Any]) -> None:  # as our own encoder would refuse it
            said = {"v": 1, "incarnation": connection.incarnation, **body}
            connection._dealer.send(json.dumps(said).encode(), flags=zmq.DONTWAIT)
            connection._pumps[-1].poke()  # else what came meanwhile would lie there

        connection = DaemonConnection(
            endpoint=(Path(config.state_dir).parents[1] / "endpoint").read_text(),
            daemon_public_key=config.daemon_public_key, keys=load_pair(config.key_file),
            incarnation=0, on_message=heard, on_up=lambda: raw({**hello, **more}),
            on_down=lambda: None,
        )  # fmt: skip
        connection.start()
        try:
            await asyncio.wait_for(welcomes.acquire(), 60.0)
            for body in bodies:
                raw(body)
            for _ in range(3):  # on a busy machine they take longer than an agent may be silent
                raw({"type": "heartbeat", "pilot_id": config.pilot_id})
                await asyncio.wait_for(welcomes.acquire(), 60.0)
        finally:
            connection.close()

    def goes(self) -> None:
        os.kill(self.pid, signal.SIGCONT)


def _pid_of(config: Path) -> int:
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if str(config).encode() in words and b"trainers.agent" in words:
            return int(process.name)
    raise AssertionError(f"no agent of {config}")


@contextmanager
def _lying(site: DaemonSite, node: str) -> Iterator[Liar]:
    liar = Liar(site, node)
    try:
        yield liar
    finally:
        liar.goes()


def _pair(site: DaemonSite, prefix: str) -> tuple[TrainerView, TrainerView]:
    """Two trainers of one node each."""
    names = [site.submit(f"{prefix}{n}", SLOW, n_max=1) for n in (1, 2)]
    first, second = (site.observed(name, 1) for name in names)
    return first, second


def _worker(site: DaemonSite, view: TrainerView) -> str:
    return Path(site.client.logs(view.record.trainer_id)[-1].path).stem


def _said(worker_id: str, **changes: Any) -> dict[str, Any]:
    progress = {"type": "Progress", "generation": 1, "step": 10**9, "epoch": 0, "samples": 10**9,
                "step_s": 0.1, "samples_per_s": 1.0, **changes}  # fmt: skip
    return {"type": "worker-said", "worker_id": worker_id, "body": progress}


def test_an_agent_that_speaks_of_another_nodes_trainer_is_not_believed(site: DaemonSite) -> None:
    victim, own = _pair(site, "foreign")
    worker, trainer_id = _worker(site, victim), victim.record.trainer_id
    with _lying(site, own.observed_nodes[0]) as liar:
        exited = {"type": "worker-exited", "worker_id": worker, "returncode": 1, "cause": "x"}
        liar.says(_said(worker), exited, _said(worker, step_s=float("nan")))
        site.trains_on(trainer_id)
        record = site.view(trainer_id).record
        assert record.progress.step < 10**6
        assert record.failures == 0
    metrics = site.client.metrics()
    assert 'bftrainer_refused_total{kind="not-its-worker"} 3.0' in metrics
    site.clear()


@pytest.mark.long
def test_numbers_that_are_none_do_not_end_the_daemon(site: DaemonSite) -> None:
    other, own = _pair(site, "numbers")
    worker = _worker(site, own)
    before = site.client.status().incarnation
    with _lying(site, own.observed_nodes[0]) as liar:
        here = {"worker_id": worker, "trainer_id": own.record.trainer_id, "pid": 1}
        bad: list[dict[str, Any]] = [
            {"samples": 10**400}, {"step_s": float("nan")}, {"samples_per_s": float("inf")}
        ]  # fmt: skip
        liar.says(*[_said(worker, **one) for one in bad], workers=[here])
        decided = site.client.status().decisions
        site.submit("more", SLOW, n_max=1)
        wait_for(lambda: site.client.status().decisions > decided, what="it decides")
        site.trains_on(other.record.trainer_id)
    assert site.client.status().incarnation == before
    site.clear()


@pytest.mark.long
def test_an_agent_of_a_later_release_keeps_no_daemon_from_starting(site: DaemonSite) -> None:
    other, own = _pair(site, "later")
    worker = _worker(site, own)
    with _lying(site, own.observed_nodes[0]) as liar:
        before = site.client.status().incarnation
        site.sidecar.kill()
        later = [{"type": "Telepathy"}, {"type": "Warm", "warm_up_s": 1.0, "more": 1}]
        here = {"worker_id": worker, "trainer_id": own.record.trainer_id, "pid": 1}
        # As soon as it can be reached.
        lying = threading.Thread(target=liar.says, kwargs={"workers": [{**here, "latest": later}]})
        lying.start()
        site.sidecar.start()
        lying.join()
        site.trains_on(other.record.trainer_id)
        assert site.client.status().incarnation == before + 1
    site.clear()
