"""A backfill cycle that a job loses to a pilot, on a real Slurm: the ledger against Slurm's log.

An ordinary job holds n1 for an hour and a job for all nodes waits for it, so only backfill can
start the small job. It comes just after a cycle: without pilots it starts in the next one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import pytest

from bftrainer.lab.demo.sidecar import DaemonProcess
from bftrainer.model.reports import HarmReport
from slurm_plugins.testcluster import SlurmTestCluster
from tests.integration.daemon_scripts import light_spec
from tests.integration.slurm_fixtures import cluster_with
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.slurm, pytest.mark.long]

CYCLE_S = 15  # bf_interval
HOUR_S = 3600.0
SHORT_S = 1200.0  # over before the job for all nodes can start
# Much longer than two cycles: only the hook tells the daemon of a job in time.
POLL_S = 60
# With the hook, polls that it calls for may come at once: of a user's announced jobs only the first
# counts until a poll shows it, and the job for all nodes is the first.
CALLED_POLL_S = {False: POLL_S, True: 1}
POLICY = """\
poll_interval_s: {called_poll_s}
poll_interval_with_hook_s: {poll_s}
requests_per_minute_with_hook: 600
agent_timeout_s: 600
reserve_nodes_per_type: 0
min_gap_s: 0
gap_margin_s: 0
harm_slo_s: 2
"""
_CYCLE = re.compile(r"Last cycle when: .*\(([0-9]+)\)")
# "preempted JobId=3 has been killed to reclaim resources for JobId=8", after the time
_PREEMPTED = r"^\[(\S+)\] preempted JobId=\d+ .*JobId={}$"


cluster = cluster_with(n_nodes=4, gpus_per_node=0, bf_interval_s=CYCLE_S, has_hook=True)


def test_a_lost_cycle_is_in_the_figures_and_one_that_was_not_lost_is_not(
    cluster: SlurmTestCluster, tmp_path: Path
) -> None:
    holder = cluster.submit(n_nodes=1, duration_s=900, limit_s=HOUR_S)
    wait_for(lambda: cluster.started_s(holder), what="an ordinary job has a node")

    # The twin: nobody's pilots.
    wide = _blocked(cluster)
    alone_s = _waits_s(cluster, job := _after_a_cycle(cluster))
    _end(cluster, wide, job)

    # The daemon hears of the job too late: Slurm preempts in one cycle and starts it in the next.
    with _daemon(cluster, tmp_path / "blind", is_told=False) as daemon:
        wide = _blocked(cluster)
        before = _last_poll(daemon)
        wait_for(lambda: _last_poll(daemon) != before, what="a poll: the next is far")
        job = _after_a_cycle(cluster)
        waited_s = _waits_s(cluster, job)
        found = wait_for(lambda: _handed_over(daemon, job), what="it is counted")
        assert (found.hand_overs, found.preempted, found.given_back) == (1, 1, 0)
        assert (found.cycles_lost, found.is_kept) == (1, False)
        (lost,) = found.lost_cycles
        assert lost.job_id == job
        started_s = cluster.started_s(job)
        assert started_s is not None
        truth_s = started_s - _preempted_s(cluster, job)
        assert lost.lost_s == found.p95_s == pytest.approx(truth_s, abs=2.0)  # whole seconds
        assert lost.lost_s >= CYCLE_S - 1.0
        assert lost.lost_s == pytest.approx(waited_s - alone_s, abs=CYCLE_S / 2)
        metrics = daemon.client.metrics()
        assert "bftrainer_cycles_lost_total 1.0" in metrics
        assert f"bftrainer_cycle_seconds_lost_total {lost.lost_s:.5g}"[:-1] in metrics

        # At the head of its queue the next one has Slurm's main scheduler preempt: no cycle.
        _end(cluster, wide)
        first = cluster.submit(n_nodes=1, duration_s=900, limit_s=SHORT_S)
        wait_for(lambda: cluster.started_s(first), what="it starts")
        found = wait_for(lambda: _handed_over(daemon, first), what="that is counted, too")
        assert (found.hand_overs, found.jobs, found.cycles_lost) == (2, 2, 1)
        _end(cluster, job, first)

    # The hook tells the daemon, which gives a node back in time.
    with _daemon(cluster, tmp_path / "told", is_told=True) as daemon:
        wide = _blocked(cluster)
        job = _after_a_cycle(cluster)
        waited_s = _waits_s(cluster, job)
        found = wait_for(lambda: _handed_over(daemon, job), what="it is counted")
        assert (found.hand_overs, found.given_back, found.preempted) == (1, 1, 0)
        assert (found.cycles_lost, found.lost_cycles) == (0, ())
        assert waited_s == pytest.approx(alone_s, abs=CYCLE_S / 2)
        assert "bftrainer_cycles_lost_total 0.0" in daemon.client.metrics()
        _end(cluster, wide, job, holder)


@contextmanager
def _daemon(
    cluster: SlurmTestCluster, directory: Path, *, is_told: bool
) -> Iterator[DaemonProcess]:
    """A daemon with pilots on the three nodes that are idle."""
    with DaemonProcess(
        directory / "state",
        batch_system="slurm",
        batch_options=cluster.config.batch_options(is_told=is_told),
        policy=POLICY.format(called_poll_s=CALLED_POLL_S[is_told], poll_s=POLL_S),
    ) as daemon:
        client = daemon.client
        trainer = client.submit(light_spec(directory, n_max=3)).record.trainer_id
        wait_for(lambda: len(client.trainer(trainer).observed_nodes) == 3, what="three train")
        yield daemon
        client.cancel(trainer, now=True)
        wait_for(lambda: not _queued(cluster, "bf"), what="its pilots are gone")


def _blocked(cluster: SlurmTestCluster) -> str:
    """A job for all nodes, which heads the queue."""
    job = cluster.submit(n_nodes=4, duration_s=900, limit_s=HOUR_S)
    wait_for(lambda: "Resources" in _reason(cluster, job), what="it waits for the held node")
    return job


def _after_a_cycle(cluster: SlurmTestCluster) -> str:
    """Submit a small job when a cycle is just over; the next one is an interval later."""

    def last() -> str:
        (began,) = _CYCLE.findall(cluster.command("sdiag").stdout) or ("",)
        return began

    before = last()
    # Backfill rests while nothing changes. A cycle that is due runs at once.
    (wide,) = _queued(cluster, "batch", "PD")

    def is_new() -> bool:
        cluster.command("scontrol", "update", f"JobId={wide}", "Comment=seen")
        return last() != before

    wait_for(is_new, interval_s=0.3, what="a cycle")
    return cluster.submit(n_nodes=1, duration_s=900, limit_s=SHORT_S)


def _waits_s(cluster: SlurmTestCluster, job: str) -> float:
    """How long a job waits, by its own clock."""
    started_s = wait_for(lambda: cluster.started_s(job), what="the small job starts")
    shown = cluster.command("squeue", "-h", "-j", job, "-o", "%V")
    return started_s - datetime.fromisoformat(shown.stdout.strip()).timestamp()


def _last_poll(daemon: DaemonProcess) -> str:
    name = "bftrainer_last_poll_timestamp_seconds "
    return next(line for line in daemon.client.metrics().splitlines() if line.startswith(name))


def _handed_over(daemon: DaemonProcess, job: str) -> HarmReport | None:
    found = daemon.client.harm(None)
    return found if job in {one.job_id for one in found.worst} else None


def _preempted_s(cluster: SlurmTestCluster, job: str) -> float:
    """When Slurm preempted for the job, by its own log."""
    log = (cluster.directory / "log" / "slurmctld.log").read_text()
    (stamp,) = re.findall(_PREEMPTED.format(job), log, re.MULTILINE)
    return datetime.fromisoformat(stamp).timestamp()


def _queued(cluster: SlurmTestCluster, partition: str, *states: str) -> list[str]:
    only = ("-t", ",".join(states)) if states else ()
    return cluster.command("squeue", "-h", "-p", partition, *only, "-o", "%A").stdout.split()


def _reason(cluster: SlurmTestCluster, job: str) -> str:
    return cluster.command("squeue", "-h", "-j", job, "-o", "%r").stdout.strip()


def _end(cluster: SlurmTestCluster, *jobs: str) -> None:
    cluster.command("scancel", *jobs)
    wait_for(lambda: not {*jobs} & {*_queued(cluster, "batch")}, what="the ordinary jobs are gone")
