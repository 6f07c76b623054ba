"""One pool, all runtimes: trainers of every kind share the idle nodes of a real Slurm.

Each installed runtime has one trainer; ordinary jobs come and go; whatever is resized,
parked and resumed, every trainer ends with each sample used exactly once.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from bftrainer.daemon.journal_replay import Again, take_again
from bftrainer.lab.demo.sidecar import DaemonProcess
from bftrainer.model.trainer import TrainerChange, TrainerState
from bftrainer.model.views import TrainerView
from slurm_plugins.testcluster.cluster import SlurmTestCluster
from slurm_plugins.testcluster.config import FAST_CYCLE, ClusterConfig
from slurm_plugins.testcluster.workload import WorkloadRun
from tests.conformance.runtime import RuntimeKit
from tests.e2e.scenario import BF_INTERVAL_S, POLICY, ordinary_jobs
from tests.integration.fleet import test_runtime_conformance as built_in
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.slurm, pytest.mark.long, pytest.mark.timeout(1200)]

N_NODES = 8
N_STEPS = 4000
RESCALES = 20
KITS = {"torch": ("TorchKit", "torch"), "horovod": ("HorovodKit", "horovod")}
KITS |= {"mpi": ("MpiKit", "mpi4py"), "command": ("CommandKit", "")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """All that the tests look at."""

    base: Path
    kits: dict[str, RuntimeKit]
    views: dict[str, TrainerView]
    rescales: list[dict[str, Any]]  # with the trainer's id
    parked: list[dict[str, Any]]
    decisions: list[Again]


def installed() -> dict[str, RuntimeKit]:
    """Return the kits of the runtimes whose packages are there."""
    found: dict[str, RuntimeKit] = {}
    for runtime, (name, module) in KITS.items():
        kit = getattr(built_in, name, None)
        if kit is not None and (not module or find_spec(module) is not None):
            found[runtime] = kit()
    return found


@pytest.fixture(scope="module")
def outcome() -> Iterator[Outcome]:
    """Play the story once for all checks."""
    base = Path(tempfile.mkdtemp(prefix="bft-mixed-"))
    base.chmod(0o755)  # ordinary users' jobs must reach the cluster's directory
    cluster = SlurmTestCluster(
        ClusterConfig(
            directory=base / "cluster",
            n_nodes=N_NODES,
            bf_interval_s=BF_INTERVAL_S,
            scheduler_parameters=FAST_CYCLE,
        )
    )
    with cluster:
        sidecar = DaemonProcess(
            base / "state",
            batch_system="slurm",
            batch_options={"slurm_conf": str(cluster.config.slurm_conf)},
            policy=POLICY.replace("p_jmax: 3", "p_jmax: 4"),
        )
        try:
            yield play(base, cluster, sidecar)
        finally:
            sidecar.stop()
    shutil.rmtree(base)  # kept when the story fails: its logs say why


def play(base: Path, cluster: SlurmTestCluster, sidecar: DaemonProcess) -> Outcome:
    sidecar.start()
    kits = installed()
    ids = {}
    for runtime, kit in kits.items():
        (base / runtime).mkdir()
        ids[runtime] = sidecar.client.submit(kit.spec(base / runtime, N_STEPS)).record.trainer_id
    rounds = ordinary_jobs(4)
    again_s = max(item.at_s for item in rounds) + 5.0
    rounds += [i.model_copy(update={"at_s": i.at_s + again_s}) for i in rounds]
    with WorkloadRun(cluster, rounds) as jobs:
        assert jobs.wait(500), jobs.records()
    for trainer_id in sorted(set(ids.values()) - resized(sidecar)):
        resize(sidecar, trainer_id)
    for runtime in kits:
        (base / runtime / "hurry").touch()
    wait_for(
        lambda: all(v.record.state.is_final for v in sidecar.client.trainers()),
        timeout_s=500,
        what="all trainers end",
    )
    views = {runtime: sidecar.client.trainer(ids[runtime]) for runtime in kits}
    sidecar.stop()
    entries = sidecar.entries()
    return Outcome(
        base=base,
        kits=kits,
        views=views,
        rescales=[e.payload for e in entries if e.kind == "rescaled"],
        parked=[e.payload for e in entries if e.kind == "parked"],
        decisions=list(take_again(entries)),
    )


def resized(sidecar: DaemonProcess) -> set[str]:
    """Return the trainers whose size changed while they trained."""
    changes = [e.payload for e in sidecar.entries("rescaled")]
    return {
        c["trainer_id"] for c in changes if c["what"]["size_before"] not in (0, c["what"]["size"])
    }


def resize(sidecar: DaemonProcess, own: str) -> None:
    """Let it shrink while it trains; the jobs may have left it no such moment."""
    client = sidecar.client
    most = client.trainer(own).record.spec.n_max
    wait_for(
        lambda: len(client.trainer(own).observed_nodes) > 1,
        timeout_s=400,
        what=f"{own} trains on several nodes",
    )
    client.change(own, TrainerChange(n_max=1))
    wait_for(lambda: own in resized(sidecar), timeout_s=240, what=f"{own} shrinks")
    client.change(own, TrainerChange(n_max=most))


def test_at_least_two_runtimes_shared_the_pool(outcome: Outcome) -> None:
    assert {"torch", "command"} <= set(outcome.kits)


def test_all_finished_and_used_every_sample_once(outcome: Outcome) -> None:
    for runtime, view in outcome.views.items():
        assert view.record.state is TrainerState.FINISHED, (runtime, view.record.reason)
        outcome.kits[runtime].assert_exact(outcome.base / runtime, N_STEPS, view)


def test_there_was_enough_to_and_fro(outcome: Outcome) -> None:
    changes = [r for r in outcome.rescales if r["what"]["size"] != r["what"]["size_before"]]
    n = len(changes) - len(outcome.kits) + len(outcome.parked)  # first starts do not count
    sys.stdout.write(f"{n} rescales of {sorted(outcome.kits)}\n")
    assert n >= RESCALES
    resized = {r["trainer_id"] for r in changes if r["what"]["size_before"]}
    assert resized == {v.record.trainer_id for v in outcome.views.values()}


def test_every_decision_comes_out_the_same_when_taken_again(outcome: Outcome) -> None:
    assert outcome.decisions
    assert [a for a in outcome.decisions if not a.is_equal] == []
