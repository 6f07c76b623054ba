"""Pilots that have GPUs of a node, on the local batch system: several of them on one node."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bftrainer.batch.batch_system import BatchSystem, PilotRequest
from bftrainer.batch.local.adapter import create
from bftrainer.batch.local.client import LocalServer, start_server
from bftrainer.model.cluster import Node, NodeState, Presence, node_of
from bftrainer.model.errors import BatchSystemError, BftError
from bftrainer.model.parts import NodePart
from tests.conformance.runtime import POLICY
from tests.integration.daemon_scripts import SCALES, SCALING, SLOW, trainer_spec
from tests.support.site import WARM, Site
from tests.support.waiting import wait_for

SHOWS = "import os, time; print(os.environ['CUDA_VISIBLE_DEVICES'], flush=True); time.sleep(600)"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LocalServer]:
    server = start_server(
        tmp_path / "local",
        n_nodes=1,
        gpus=4,
        cycle_s=0.05,
        kill_wait_s=0.0,
        more_options=("--lend-gpus",),
    )
    yield server
    server.stop()


def launch(system: BatchSystem, directory: Path, number: int, gpus: int) -> str:
    part = NodePart(name=f"n1/{number}", node="n1", gpu_type="gpu", gpus=gpus, cores=1, memory_mb=0)
    request = PilotRequest(
        pilot_id=f"p{number}",
        node=part.name,
        time_limit_s=600.0,
        agent_argv=(sys.executable, "-c", SHOWS),
        log_path=directory / f"{number}.log",
        gpus=gpus,
        part=part,
    )
    return system.launch_pilot(request)


def shown(system: BatchSystem) -> Node:
    (node,) = system.snapshot().nodes or ()
    return node


def test_pilots_share_a_node_with_gpus_of_their_own(server: LocalServer, tmp_path: Path) -> None:
    system = create({"socket": server.socket_path})
    node = shown(system)
    assert [(lent.n_gpus, lent.n_free) for lent in node.lends] == [(4, 4)]
    assert (node.is_shared, node.state) == (True, NodeState.IDLE)
    jobs = [launch(system, tmp_path, number, gpus) for number, gpus in ((0, 1), (1, 2))]
    wait_for(
        lambda: (
            (tmp_path / "0.log").exists()
            and (tmp_path / "1.log").exists()
            and all((tmp_path / f"{k}.log").read_text() for k in (0, 1))
        ),
        what="both run on the node",
    )
    assert [(tmp_path / f"{k}.log").read_text().strip() for k in (0, 1)] == ["0", "1,2"]
    node = shown(system)
    assert ([lent.n_free for lent in node.lends], node.state) == ([1], NodeState.ALLOCATED)
    states = system.pilot_states(jobs)
    assert {seen.node for seen in states.values()} == {"n1"}
    with pytest.raises(BatchSystemError, match="which lends 4"):
        launch(system, tmp_path, 7, 5)
    system.cancel_pilots(jobs[:1])
    third = launch(system, tmp_path, 2, 2)
    wait_for(
        lambda: (tmp_path / "2.log").exists() and (tmp_path / "2.log").read_text(),
        what="the third has a place",
    )
    assert (tmp_path / "2.log").read_text().strip() == "0,3"
    server.client.submit(n_nodes=1, limit_s=60, duration_s=0.01, user="alice")
    wait_for(
        lambda: all(
            seen.presence is Presence.ABSENT
            for seen in system.pilot_states([*jobs, third]).values()
        ),
        what="an ordinary job has the whole node",
    )


@pytest.mark.long
def test_a_daemon_that_lends_whole_nodes_refuses_gpus(tmp_path: Path) -> None:
    spec = trainer_spec(tmp_path / "trainer", SLOW)
    with Site.open(tmp_path / "site", n_nodes=1, policy=POLICY, options=()) as site:
        with pytest.raises(BftError) as caught:
            site.client.submit(replace(spec, gpus_per_unit=1))
        assert caught.value.code == "BFT-1036"
        assert site.client.submit(spec).record.spec.gpus_per_unit == 0


@pytest.mark.long
def test_a_trainer_of_gpus_has_parts_of_a_node_and_gives_back_what_a_job_lacks(
    tmp_path: Path,
) -> None:
    """Three workers on one host; a job for the whole node gets it, and training goes on after."""
    spec = replace(
        trainer_spec(tmp_path / "trainer", SCALES), gpus_per_unit=1, n_max=3, curve=SCALING
    )
    policy = f"{POLICY}lend: auto\n"
    options = ("--lend-gpus", "--gpus", "4", *WARM)
    with Site.open(tmp_path / "site", n_nodes=1, policy=policy, options=options) as site:
        trainer_id = site.client.submit(spec).record.trainer_id
        site.trains_at(trainer_id, 3)
        (node,) = site.client.nodes()
        assert len(node.parts) == 3
        assert {part.trainer_id for part in node.parts} == {trainer_id}
        assert {node_of(name) for name in site.view(trainer_id).observed_nodes} == {"n1"}
        step = site.view(trainer_id).record.progress.step
        job = site.server.client.submit(n_nodes=1, limit_s=60, duration_s=1.0, user="alice")
        wait_for(
            lambda: any(past["job_id"] == job for past in site.server.client.history()),
            what="the job has had the node",
        )
        site.trains_at(trainer_id, 3)
        assert site.view(trainer_id).record.progress.step >= step
