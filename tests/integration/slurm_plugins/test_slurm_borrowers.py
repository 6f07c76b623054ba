"""Two daemons on one real Slurm with the hook: both get nodes, and a drain does not wait."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from bftrainer.lab.demo.sidecar import DaemonProcess
from bftrainer.model.views import PollingView
from milp.problem import Curve
from slurm_plugins.testcluster import SlurmTestCluster
from tests.integration.daemon_scripts import light_spec
from tests.integration.slurm_fixtures import cluster_with, daemon_on
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.slurm, pytest.mark.long]

N = 4
# More nodes are worth their while, whatever else runs on the machine.
LINEAR = Curve(sizes=tuple(range(1, N + 1)), samples_per_s=tuple(10.0 * n for n in range(1, N + 1)))
POLICY = "reserve_nodes_per_type: 0\nmin_gap_s: 30\ngap_margin_s: 5\nhold_idle_s: 1\n"


# Slurm's own slow cycle.
cluster = cluster_with(n_nodes=N, gpus_per_node=0, has_hook=True)


def of_daemon(daemon: DaemonProcess) -> tuple[int, int]:
    """Return how many nodes it holds, and how many pilots of it wait."""
    view = daemon.client.status()
    return view.nodes_held, view.nodes_requested


def polling(daemon: DaemonProcess) -> PollingView:
    view = daemon.client.status().polling
    assert view is not None
    return view


def looks(daemon: DaemonProcess) -> int:
    return polling(daemon).looks


@contextmanager
def both_at_once(
    cluster: SlurmTestCluster, directory: Path
) -> Iterator[tuple[list[DaemonProcess], list[str]]]:
    """Two daemons that ask for all nodes at the same moment, and the trainer of each."""
    with ExitStack() as stack:
        daemons = [
            stack.enter_context(daemon_on(cluster, directory / name, POLICY)) for name in "ab"
        ]
        for daemon in daemons:
            daemon.client.drain(2.0)
        trainers = []
        for k, daemon in enumerate(daemons):
            spec = light_spec(directory / f"t{k}", n_max=N, curve=LINEAR)
            trainers.append(daemon.client.submit(spec).record.trainer_id)
        for daemon in daemons:
            daemon.client.resume()
        yield daemons, trainers
        for daemon, trainer in zip(daemons, trainers, strict=True):
            daemon.client.cancel(trainer, now=True)
        queue = ("squeue", "-h", "-p", "bf")
        wait_for(lambda: not cluster.command(*queue).stdout.strip(), what="pilots are gone")


def test_two_that_begin_at_once_share_and_nobody_waits_in_vain(
    cluster: SlurmTestCluster, tmp_path: Path
) -> None:
    with both_at_once(cluster, tmp_path) as (daemons, _):

        def is_shared() -> bool:
            shares = [of_daemon(daemon) for daemon in daemons]
            held = [n_held for n_held, _ in shares]
            return sum(held) == N and min(held) >= 1 and not any(waits for _, waits in shares)

        wait_for(is_shared, timeout_s=200.0, what="both have nodes, and no pilot waits")
        shares = [of_daemon(daemon) for daemon in daemons]
        before = [looks(daemon) for daemon in daemons]
        wait_for(
            lambda: all(looks(d) >= n + 1 for d, n in zip(daemons, before, strict=True)),
            timeout_s=200.0,
            what="further looks",
        )
        assert [of_daemon(daemon) for daemon in daemons] == shares


def test_a_drain_with_pending_pilots_ends_with_the_next_looks(
    cluster: SlurmTestCluster, tmp_path: Path
) -> None:
    """One daemon has all nodes, and the other one's pilots wait; looks are half a minute apart."""
    with both_at_once(cluster, tmp_path) as (daemons, _):

        def waits() -> DaemonProcess | None:
            states = cluster.command("squeue", "-h", "-p", "bf", "-o", "%t").stdout.split()
            if sorted(states) != ["PD"] * N + ["R"] * N:
                return None
            return next((daemon for daemon in daemons if of_daemon(daemon) == (0, N)), None)

        loser = wait_for(waits, interval_s=0.02, what="all pilots of one of them wait")
        before = polling(loser)
        loser.client.drain(2.0)
        wait_for(lambda: of_daemon(loser) == (0, 0), what="nothing is asked for")
        now = polling(loser)
        assert now.looks <= before.looks + 2, "the one after the cancel, and one under way"
        assert now.called_looks > before.called_looks, "a regular one would be late"
