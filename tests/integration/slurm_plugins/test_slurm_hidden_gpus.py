"""A Slurm that hides the GPUs of others by cgroups: each worker opens those of its own part."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_plugins.testcluster import SlurmTestCluster
from tests.integration.daemon_scripts import LIGHT, trainer_spec
from tests.integration.gpu_parts import LINEAR, Lender, gpu_cluster, lender, share_of
from tests.support.waiting import wait_for

DEVICES_CGROUP = Path("/sys/fs/cgroup/devices")
pytestmark = [
    pytest.mark.slurm,
    pytest.mark.long,
    pytest.mark.skipif(not DEVICES_CGROUP.is_dir(), reason="the devices cgroup (v1) is not there"),
]

HIDDEN, OWN = "1", "6"  # EPERM; ENXIO, since the devices have no driver
TELLS = """\
import glob
for device in sorted(glob.glob(DEVICES)):
    try:
        os.close(os.open(device, os.O_RDWR))
    except OSError as problem:
        print("device", device[-1], problem.errno, flush=True)
print("all", "tried", flush=True)
"""
TRIES = LIGHT.replace("print(", TELLS + "print(").replace("0.05", "2.4 / run.comm.size")


@pytest.fixture(scope="module", params=["", "no_gpu_env"], ids=["variables", "no variables"])
def cluster(request: pytest.FixtureRequest) -> Iterator[SlurmTestCluster]:
    with gpu_cluster(n_nodes=2, hides_gpus=True, gpu_flags=request.param) as running:
        yield running


def trains(lent: Lender, name: str, gpus_per_unit: int) -> str:
    """Submit a trainer whose workers try all devices."""
    devices = str(lent.cluster.directory / "run" / "nvidia?")
    spec = trainer_spec(
        lent.directory / name,
        TRIES.replace("DEVICES", repr(devices)),
        name=name,
        runtime="mpi",
        epochs=None,
        n_max=12,
        curve=LINEAR,
        gpus_per_unit=gpus_per_unit,
    )
    lent.trainers.append(lent.daemon.client.submit(spec).record.trainer_id)
    return lent.trainers[-1]


def devices_of_workers(lent: Lender, trainer: str) -> list[frozenset[str]]:
    """Return the devices that each worker may open; all of the others are hidden from it."""
    sets = []
    for log in lent.daemon.client.logs(trainer):
        text = Path(log.path).read_text()
        for tried in text.split("all tried\n")[:-1]:
            answers = dict(re.findall(r"^device ([0-9]) ([0-9]+)$", tried, re.MULTILINE))
            assert len(answers) == 4, text
            assert set(answers.values()) <= {HIDDEN, OWN}, text
            sets.append(frozenset(d for d, answer in answers.items() if answer == OWN))
    return sets


def test_workers_open_the_gpus_of_their_own_parts(
    cluster: SlurmTestCluster, tmp_path: Path
) -> None:
    with lender(cluster, tmp_path) as lent:
        lent.starts(share_of(1), "--nodelist=n1")
        lent.starts(share_of(4), "--nodelist=n2")
        single = trains(lent, "single", 1)
        lent.settles({"n1": 3})
        own = wait_for(
            lambda: s if len(s := devices_of_workers(lent, single)) >= 3 else None,
            what="three workers tell",
        )
        assert [len(devices) for devices in own] == [1, 1, 1]
        assert len(frozenset().union(*own)) == 3, "none has that of another, or of the job"


def test_a_worker_of_two_gpus_opens_both(cluster: SlurmTestCluster, tmp_path: Path) -> None:
    with lender(cluster, tmp_path) as lent:
        lent.starts(share_of(4), "--nodelist=n2")
        pairs = trains(lent, "pairs", 2)
        lent.settles({"n1": 4})
        own = wait_for(
            lambda: s if len(s := devices_of_workers(lent, pairs)) >= 2 else None,
            what="two workers tell",
        )
        assert [len(devices) for devices in own] == [2, 2]
        assert len(frozenset().union(*own)) == 4
