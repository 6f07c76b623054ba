"""A pilot that has ended and does not go away, on a real Slurm: its epilog hangs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bftrainer.batch.batch_system import PilotRequest
from bftrainer.model.cluster import Node, NodeState
from bftrainer.model.decision import PilotView
from slurm_plugins.adapter import SlurmBatchSystem, create
from slurm_plugins.testcluster import FAST_CYCLE, SlurmTestCluster
from tests.integration.slurm_fixtures import running_cluster, whole_look
from tests.support.snapshots import given_back
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slurm


@pytest.fixture
def cluster() -> Iterator[SlurmTestCluster]:
    """Two nodes whose epilogs end when the file ``hangs`` is gone."""
    with running_cluster(n_nodes=2, bf_interval_s=2, scheduler_parameters=FAST_CYCLE) as running:
        hangs, epilog = _hangs(running), running.directory / "epilog"
        epilog.write_text(f"#!/bin/sh\nwhile [ -e {hangs} ]; do sleep 0.1; done\n")
        epilog.chmod(0o755)
        with running.config.slurm_conf.open("a") as conf:
            conf.write(f"Epilog={epilog}\n")
        assert running.command("scontrol", "reconfigure").is_ok
        hangs.touch()
        try:
            yield running
        finally:
            hangs.unlink(missing_ok=True)


def _hangs(cluster: SlurmTestCluster) -> Path:
    return cluster.directory / "hangs"


def _node(system: SlurmBatchSystem, name: str) -> Node:
    return next(n for n in whole_look(system).nodes or () if n.name == name)


def _given_back(system: SlurmBatchSystem) -> set[str]:
    """What is given back for the queue while the pilot on n1 leaves and there is one on n2."""
    looked = whole_look(system)
    # The job is held until the end: Slurm would preempt within a second.
    jobs = [
        replace(job, reason="", is_entitled=True) if job.is_ordinary else job
        for job in looked.jobs or ()
    ]
    seen = replace(looked, jobs=tuple(jobs))
    pilots = [
        PilotView(
            pilot_id=f"p-{name}",
            node=name,
            requested_s=seen.taken_at_s,
            is_held=name == "n2",
            is_leaving=name == "n1",
        )
        for name in ("n1", "n2")
    ]
    draft = given_back(seen, pilots, now_s=seen.taken_at_s)
    return {release.node for release in draft.releases}


def test_a_node_that_does_not_come_back_is_not_counted_on(cluster: SlurmTestCluster) -> None:
    system = create(cluster.config.batch_options())
    job_ids = {
        name: system.launch_pilot(
            PilotRequest(
                pilot_id=f"p-{name}",
                node=name,
                time_limit_s=600,
                agent_argv=(sys.executable, "-I", "-c", "import signal; signal.pause()"),
                log_path=cluster.directory / f"{name}.log",
                gpus=cluster.config.gpus_per_node,
            )
        )
        for name in ("n1", "n2")
    }
    wait_for(
        lambda: all(_node(system, n).state is NodeState.ALLOCATED for n in job_ids),
        what="both pilots",
    )
    system.cancel_pilots([job_ids["n1"]])
    wait_for(lambda: _node(system, "n1").state is NodeState.COMPLETING, what="it leaves")
    cluster.submit(n_nodes=1, duration_s=60, extra_args=("--hold",))
    assert _given_back(system) == set(), "its node is on its way back"
    wait_for(lambda: _node(system, "n1").state is NodeState.DOWN, what="n1 is given up")
    assert _given_back(system) == {"n2"}
    _hangs(cluster).unlink()
    wait_for(lambda: _node(system, "n1").state is not NodeState.DOWN, what="n1 is there again")
