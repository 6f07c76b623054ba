"""A node loses its network: real namespaces, a bridge and cables; the others train on."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.elastic import journal
from tests.elastic.fault_life import AGENT_TIMEOUT_S
from tests.elastic.faults import EPOCH_STEPS, POLICY, Outcome, judge, plane_of
from tests.support.network import Cut, Network, why_not
from tests.support.plane import Plane
from tests.support.processes import is_running

LEASE_S = 6.0
SEED = 1  # bitwise: held against an undisturbed run


@pytest.fixture(name="network")
def _network(caplog: pytest.LogCaptureFixture) -> Iterator[Network]:
    if why := why_not():
        pytest.skip(why)
    caplog.set_level(logging.CRITICAL, "bftrainer")
    with Network() as network:
        yield network


async def _trained(plane: Plane, size: int, steps: int = 3) -> int:
    """Wait until a generation of that size has done some steps; return where it is."""
    machine = plane.trainers.trainers[plane.trainer_id].machine

    def is_there() -> bool:
        return machine.forming is None and len(machine.crew.members) == size

    await plane.until(is_there, f"{size} members")
    before = machine.mark.step
    await plane.until(lambda: is_there() and machine.mark.step >= before + steps, "steps")
    return int(machine.mark.step)


def _judged(directory: Path, *, is_bitwise: bool) -> Outcome:
    outcome = Outcome(seed=SEED)
    judge(directory, outcome, is_bitwise=is_bitwise)
    assert outcome.is_good, outcome
    return outcome


@pytest.mark.long
def test_the_others_train_on_and_a_node_cut_off_ends_its_worker_by_itself(
    tmp_path: Path, network: Network
) -> None:
    policy = POLICY.model_copy(update={"lease_s": LEASE_S})

    async def lose_first() -> None:
        async with plane_of(
            tmp_path, SEED, is_bitwise=True, network=network, policy=policy, agents=3
        ) as plane:
            nodes = plane.all_nodes()
            plane.set_nodes(nodes)
            await _trained(plane, 3)
            first, node = plane.members()[0]
            others = [n for n in nodes if n != node]
            processes, pid = plane.processes_of(node), plane.pids[first]
            plane.cut_node(node)
            cut_s = time.monotonic()  # by now it is cut
            await plane.until(lambda: not plane.is_connected(node), "its loss is noticed")
            assert is_running(pid)  # it was noticed before its lease was over
            plane.set_nodes(others)
            await _trained(plane, 2)
            await plane.until(
                lambda: not any(map(is_running, processes)), "all of its processes end"
            )
            assert not plane.is_connected(node)  # nobody could tell it
            committed = [e for e in journal.entries(tmp_path, "commit") if e["pid"] == pid]
            assert max(e["at_s"] for e in committed) < cut_s + AGENT_TIMEOUT_S
            plane.mend_node(node)
            await plane.replace_node(node)
            plane.set_nodes(nodes)
            await _trained(plane, 3, steps=EPOCH_STEPS)

    asyncio.run(lose_first())
    # A whole epoch was judged.
    assert _judged(tmp_path, is_bitwise=True).steps > EPOCH_STEPS


@pytest.mark.long
@pytest.mark.parametrize("what", [Cut.FROM_NODE, pytest.param(Cut.TO_NODE, marks=pytest.mark.long)])
def test_a_node_that_is_heard_or_hears_no_more_is_lost_and_may_come_back(
    tmp_path: Path, network: Network, what: Cut
) -> None:
    async def lose_and_return() -> None:
        async with plane_of(tmp_path, SEED, is_bitwise=False, network=network, agents=2) as plane:
            plane.set_nodes(plane.all_nodes())
            await _trained(plane, 2)
            [stays, (lost, node)] = plane.members()
            plane.cut_node(node, what)
            await plane.until(lambda: not plane.is_connected(node), "its loss is noticed")
            await _trained(plane, 1)
            assert plane.members() == [stays]
            assert is_running(plane.pids[lost])  # it knows nothing
            plane.mend_node(node)
            await plane.until(lambda: plane.is_connected(node), "it is back")
            await _trained(plane, 2)
            assert lost not in dict(plane.members())
            await plane.until(lambda: not is_running(plane.pids[lost]), "its former worker ends")

    asyncio.run(lose_and_return())
    _judged(tmp_path, is_bitwise=False)
