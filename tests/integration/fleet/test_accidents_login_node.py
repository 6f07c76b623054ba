"""Accidents of the host on which the daemon runs, with pilots on a real Slurm.

docs/howto/operate.md ("Accidents") says what an administrator sees of each.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bftrainer.model.errors import BftError
from slurm_plugins.testcluster import SlurmTestCluster
from tests.integration.accident_site import AccidentSite
from tests.integration.daemon_scripts import light_spec
from tests.integration.journal.test_journal_full import small_disk
from tests.integration.slurm_fixtures import fast_cluster_with
from tests.support.small_disk import fill
from tests.support.waiting import wait_for

__all__ = ["small_disk"]

pytestmark = pytest.mark.slurm


cluster = fast_cluster_with(n_nodes=3, gpus_per_node=0)


@pytest.mark.long
def test_the_login_node_reboots(cluster: SlurmTestCluster, tmp_path: Path) -> None:
    """All processes there are gone, with what the kernel held; /run is empty."""
    with AccidentSite.open(cluster, tmp_path) as site:
        site.trains(2)
        before, pilots, workers = site.view().record, site.pilots(), site.workers()
        incarnation = site.status().incarnation
        site.sidecar.kill()
        (site.sidecar.state_dir / "daemon.sock").unlink()
        job = cluster.submit(n_nodes=1, duration_s=0, limit_s=60)
        wait_for(lambda: cluster.ended_s(job), timeout_s=30, what="ordinary jobs run meanwhile")
        assert site.pilots() == pilots
        assert site.sidecar.start().incarnation == incarnation + 1
        site.trains_on_all(2)
        after = site.view().record
        assert (site.pilots(), site.workers()) == (pilots, workers)
        assert after.progress.samples > before.progress.samples
        assert (after.rescales, after.progress.generation) == (
            before.rescales,
            before.progress.generation,
        )
        site.is_unharmed()


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system")
def test_the_state_directory_is_full(
    cluster: SlurmTestCluster, small_disk: Path, tmp_path: Path
) -> None:
    with AccidentSite.open(cluster, tmp_path, state_dir=small_disk / "state") as site:
        site.trains(3)
        pid = site.sidecar.pid
        site.logged()
        ballast = fill(small_disk)
        with pytest.raises(BftError, match="BFT-2201"):
            site.sidecar.client.submit(light_spec(tmp_path / "other"))
        site.starts_at_once()  # on a node that is given back
        wait_for(lambda: "BFT-2201" in " ".join(site.status().failures), what="it is said")
        requested = site.requested()
        site.looks(5)
        assert site.requested() == requested
        assert len(site.pilots()) == 2
        site.trains_on_all(2)
        ballast.unlink()
        site.trains_on_all(3)
        assert site.sidecar.pid == pid
        assert not any("BFT-2201" in failure for failure in site.status().failures)
        assert sum("BFT-2201" in line for line in site.logged()) == 1
        site.is_unharmed()
