"""Real trainers change their size while others on the host attack every port that we open."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from bftrainer.batch.addresses import host_addresses
from bftrainer.fleet.runtimes.horovod import BOOTSTRAP
from tests.elastic.controller import SCRIPTS, Controller, TemplateProcess
from tests.elastic.faults import plane_of
from tests.elastic.mpi_workers import MpiWorkers
from tests.elastic.test_mpi import SGD, form, goes_on, start
from tests.support.plane import Plane, descendants
from tests.support.strangers import Strangers, listening
from tests.support.waiting import wait_for

SETTINGS = '{"optimizer": "sgd", "delay_s": 0.002}'
FOREVER = 1_000_000


def test_strangers_at_the_store_cost_no_rescale_a_second_try(
    tmp_path: Path, template: TemplateProcess
) -> None:
    """They are at its port before the members hear of it, and stay until these have entered."""
    ports: list[int] = []
    train = SCRIPTS / "train_ids.py"
    with (
        Strangers(lambda: ports[-1:]).at_work() as strangers,
        Controller(tmp_path, template) as c,
    ):
        ids = c.start(train, [SETTINGS], count=3, epochs=FOREVER)
        c.warm(ids)
        for members in (ids[:1], ids[:2], ids, ids[1:], ids[2:]):
            ports.append(c.prepare(members))
            strangers.came.clear()
            wait_for(strangers.are_there, what="strangers of every kind at the store")
            c.commit(members, ports[-1])
            assert [e.size for e in c.entered(members)] == [len(members)] * len(members)
            assert c.attempt == 1
        c.park()


async def _trained(plane: Plane, size: int) -> None:
    """Wait until a generation of this size has done some steps."""
    machine = plane.trainers.trainers[plane.trainer_id].machine
    await plane.until(
        lambda: machine.forming is None and len(machine.crew.members) == size, f"{size} members"
    )
    before = machine.mark.step
    await plane.until(lambda: machine.mark.step > before + 2, "steps")


@pytest.mark.long
def test_strangers_at_daemon_and_agents_cost_no_rescale_a_second_try(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Their ports are the daemon's wire and the peer sockets of agents, both CURVE.

    Passed before there was this test: the handshake refuses who has no registered key.
    """
    caplog.set_level(logging.CRITICAL, "bftrainer")
    agents: list[int] = []

    def ports() -> set[int]:
        below = [pid for agent in agents for pid in (agent, *descendants(agent))]
        return {port for _, port in listening(os.getpid(), *below)}

    async def rescale() -> None:
        async with plane_of(tmp_path, 1, is_bitwise=False, network=None, agents=3) as plane:
            agents.extend(agent.pid for agent in plane.agents)
            nodes = plane.all_nodes()
            with Strangers(ports).at_work() as strangers:
                await plane.until(lambda: strangers.are_there(20), "strangers of every kind")
                for size in (1, 3, 2):
                    plane.set_nodes(nodes[:size])
                    await _trained(plane, size)
            done = plane.rescales()
            assert {one.size for one in done} == {1, 3, 2}  # 2 comes first where one starts late
            assert {one.attempt for one in done} == {1}

    asyncio.run(rescale())


FRONT = """\
import os, threading, time
def tell():
    known = ""
    while True:
        address = os.environ.get("HOROVOD_GLOO_RENDEZVOUS_ADDR", "")
        if address != known:
            known = address
            port = address.partition("/")[0].partition(":")[2]
            open(f"front-{os.getpid()}", "w").write(port)
        time.sleep(0.0005)
threading.Thread(target=tell, daemon=True).start()
import horovod.torch as hvd
hvd.init()

@hvd.elastic.run
def train(state):
    while True:
        time.sleep(0.01)
        state.step += 1
        state.commit()

train(hvd.elastic.TorchState(step=0))
"""


@pytest.mark.skipif(find_spec("horovod") is None, reason="make horovod builds it")
def test_strangers_at_horovods_fronts_cost_no_rescale_a_second_try(
    tmp_path: Path, template: TemplateProcess
) -> None:
    """Those who are at a front when Horovod asks it. Horovod's own gloo proves nobody."""
    script = tmp_path / "train.py"
    script.write_text(FRONT)

    def ports() -> list[int]:
        return [int(p.read_text() or 0) for p in tmp_path.glob("front-*")]

    with Strangers(ports).at_work() as strangers, Controller(tmp_path, template) as c:
        ids = c.start(BOOTSTRAP, ["0", str(script)], count=3)
        for members in (ids[:2], ids, ids[1:]):
            entered = c.form(members, new=members)
            assert [e.size for e in entered] == [len(members)] * len(members)
        assert c.attempt == 1
        assert strangers.are_there(1)


@pytest.fixture
def mpi_trainer(tmp_path: Path) -> Iterator[Controller]:
    with MpiWorkers(tmp_path) as workers, Controller(tmp_path, workers) as controller:
        yield controller


def pids(c: Controller) -> list[int]:
    """Return the trainer's workers."""
    return [worker.pid for worker in c.workers.values()]


FIRST, *OTHERS = [str(one.address) for one in host_addresses()]


@pytest.mark.parametrize(
    "address", [FIRST, *(pytest.param(one, marks=pytest.mark.long) for one in OTHERS)]
)
def test_mpi_listens_at_the_address_of_the_trainer_alone(
    mpi_trainer: Controller, address: str
) -> None:
    """By default it takes the address of the host's name, or any."""
    if ":" in address:
        pytest.skip("the table of IPv4's listeners is read")
    mpi_trainer.address = address
    ids = start(mpi_trainer, SGD, "--steps", FOREVER, count=2)
    form(mpi_trainer, ids)
    assert {at for at, _ in listening(*pids(mpi_trainer))} == {address}


@pytest.mark.long
def test_strangers_at_mpis_ports_cost_few_tries(mpi_trainer: Controller) -> None:
    c = mpi_trainer
    ids = start(c, SGD, "--steps", FOREVER, count=3)
    tries = 0
    with Strangers(lambda: {port for _, port in listening(*pids(c))}).at_work() as strangers:
        for members in (ids[:1], ids[:2], ids, ids[1:]):
            form(c, members)
            tries += c.attempt
            goes_on(c)
        assert strangers.are_there(20)
    assert tries <= 8
