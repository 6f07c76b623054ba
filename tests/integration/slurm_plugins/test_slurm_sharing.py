"""Limits by type and partition, and a blackout, on a real Slurm."""

from __future__ import annotations

import os
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from slurm_plugins.adapter import create
from slurm_plugins.testcluster import SlurmTestCluster
from tests.integration.daemon_scripts import light_spec
from tests.integration.slurm_fixtures import (
    daemon_on,
    fast_cluster_with,
    whole_look,
)
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slurm

BIG, SMALL = ("n1", "n2"), ("n3", "n4")
POLICY = (
    "poll_interval_s: 0.2\nreserve_nodes_per_type: 0\nrequests_per_minute: 1000\n"
    "hold_idle_s: 0\ntime_zone: UTC\n"
)


cluster = fast_cluster_with(
    n_nodes=4, node_types=(*[("gpu:a100:4", "a100")] * 2, *[("", "intel")] * 2), message_timeout_s=5
)


@pytest.mark.long
def test_no_more_nodes_than_the_limits_of_types_and_partitions_allow(
    cluster: SlurmTestCluster, tmp_path: Path
) -> None:
    policy = POLICY + 'max_nodes_by_type: {"gpu:a100:4": 1}\nmax_nodes_by_partition: {bf: 2}\n'
    with daemon_on(cluster, tmp_path, policy) as daemon:
        for name in ("a", "b", "c"):
            daemon.client.submit(light_spec(tmp_path / name, name=name, n_max=4))

        def settled() -> bool:
            held = {n for view in daemon.client.trainers() for n in view.observed_nodes}
            assert len(held) <= 2
            assert len(held & set(BIG)) <= 1
            return len(held) == 2

        wait_for(settled, what="two nodes are used")
        said = " ".join(node.reason for node in daemon.client.nodes())
        assert "of type gpu:a100:4 (max_nodes_by_type)" in said
        assert "of partition bf (max_nodes_by_partition)" in said
        for view in daemon.client.trainers():
            daemon.client.cancel(view.record.trainer_id, now=True)
        cluster_is_free(cluster)  # without a daemon pilots would stay for their lease


def cluster_is_free(cluster: SlurmTestCluster) -> None:
    system = create(cluster.config.batch_options())
    wait_for(
        lambda: not [job for job in whole_look(system).jobs or () if job.pilot_id],
        what="no pilot is left",
    )


def window(begins_in_min: int) -> tuple[float, str]:
    """Return the begin of a blackout of a day, and how the policy says it."""
    now = datetime.now(UTC).replace(second=0, microsecond=0)
    begin, form = now + timedelta(minutes=begins_in_min), "%Y-%m-%d %H:%M"
    return begin.timestamp(), f"{begin:{form}} to {begin + timedelta(days=1):{form}}"


@pytest.mark.long
def test_pilots_end_before_a_blackout_and_leave_when_there_is_one(
    cluster: SlurmTestCluster, tmp_path: Path
) -> None:
    begin_s, comes = window(10)
    system = create(cluster.config.batch_options())
    policy = f"{POLICY}gap_margin_s: 5\nblackouts: [{comes}]\n"
    with daemon_on(cluster, tmp_path, policy) as daemon:
        trainer = daemon.client.submit(light_spec(tmp_path / "a", n_max=2)).record.trainer_id
        wait_for(
            lambda: len(daemon.client.trainer(trainer).observed_nodes) == 2, what="it has nodes"
        )
        pilots = [job for job in whole_look(system).jobs or () if job.pilot_id]
        ends_s = [(job.start_s or 0.0) + (job.time_limit_s or 1e9) for job in pilots]
        assert len(ends_s) == 2
        assert all(begin_s - 130.0 < end_s < begin_s for end_s in ends_s)  # limits are minutes
        _, is_there = window(-1)
        file = daemon.state_dir / "policy.yaml"
        file.write_text(f"{POLICY}gap_margin_s: 5\nblackouts: [{is_there}]\n")
        os.kill(daemon.pid, signal.SIGHUP)
        cluster_is_free(cluster)
        said = " ".join(daemon.client.explain(trainer).sentences)
        assert f"The policy lends no nodes in the blackout {is_there}, which has begun." in said
        daemon.client.cancel(trainer, now=True)
