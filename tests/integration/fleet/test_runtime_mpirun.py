"""MPIs that cannot grow in place, as trainers of runtime ``command``: resized by restart.

Runs with Debian's Open MPI where it is installed (openmpi-bin), and with what
``BFT_TEST_MPIRUN=MPIRUN:PYTHON`` names: a launcher, and an interpreter with mpi4py and numpy.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import bftrainer
import trainers.examples
from bftrainer.batch import process
from bftrainer.model.trainer import CheckpointContract, Launch, TrainerSpec, TrainerState
from bftrainer.model.views import TrainerView
from tests.conformance.runtime import CURVE, N_NODES, POLICY
from tests.integration.daemon_scripts import trainer_spec
from tests.support.site import Site, opened_site
from tests.support.waiting import wait_for

SGD = Path(trainers.examples.__file__).with_name("mpi_sgd.py")
MPIRUN_SH = SGD.with_name("mpirun.sh")
BATCH = 24
ONE_HOST = {
    "MPIRUN_OPTIONS": "",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",  # Open MPI 4
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",  # Open MPI 5
    "OMP_NUM_THREADS": "1",
}

MISSING = {
    "debian": "no Open MPI of Debian's that mpi4py finds: apt-get install openmpi-bin",
    "named": "BFT_TEST_MPIRUN=MPIRUN:PYTHON names no other MPI",
}

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """A ``mpirun`` and the interpreter whose mpi4py uses the same MPI."""

    mpirun: str
    python: str
    environment: tuple[tuple[str, str], ...] = ()


def debian() -> Launcher | None:
    """Return Debian's Open MPI under the mpi4py we have, if that finds it."""
    mpirun = shutil.which("mpirun.openmpi")
    environment = {"MPI4PY_MPIABI": "openmpi"}
    argv = (sys.executable, "-c", "import mpi4py.MPI")
    is_found = mpirun and process.run(argv, timeout_s=30, env={**os.environ, **environment}).is_ok
    return (
        Launcher(mpirun=mpirun, python=sys.executable, environment=tuple(environment.items()))
        if mpirun and is_found
        else None
    )


def named() -> Launcher | None:
    """Return what the environment names."""
    mpirun, _, python = os.environ.get("BFT_TEST_MPIRUN", "").partition(":")
    return Launcher(mpirun=mpirun, python=python) if python else None


def spec_of(launcher: Launcher, directory: Path, n_steps: int) -> TrainerSpec:
    """Return the example over MPI, started by ``mpirun`` on the first node."""
    package = Path(bftrainer.__file__).resolve().parents[1]
    environment = {**ONE_HOST, "MPIRUN": launcher.mpirun, "PYTHONPATH": str(package)}
    program = (launcher.python, str(SGD), "--steps", str(n_steps), "--batch", str(BATCH))
    return trainer_spec(
        directory,
        "",
        name="mpirun",
        runtime="command",
        contract=CheckpointContract(grace_s=30.0, launch=Launch.FIRST),
        script=str(MPIRUN_SH),
        args=(*program, "--pause", "0.06", "--out", str(directory / "done.json")),
        interpreter="",
        environment=(*environment.items(), *launcher.environment),
        n_max=N_NODES,
        epochs=None,
        curve=CURVE,
        checkpoint_interval_s=1.0,
    )


def assert_exact(directory: Path, n_steps: int, view: TrainerView) -> None:
    done = json.loads((directory / "done.json").read_text())
    n_samples = n_steps * BATCH
    assert (done["step"], done["samples"]) == (n_steps, n_samples)
    assert done["index_sum"] == n_samples * (n_samples - 1) // 2
    assert view.record.progress.samples == n_samples


# One for all of them: agents stay warm between the tests (hold_idle_s).
site = opened_site(n_nodes=N_NODES, policy=POLICY)


@pytest.mark.parametrize("find", [debian, named])
def test_it_is_resized_by_restart_and_uses_every_sample_once(
    site: Site, tmp_path: Path, find: Callable[[], Launcher | None]
) -> None:
    launcher, n_steps = find(), 1000
    if launcher is None:
        pytest.skip(MISSING[find.__name__])
    trainer = site.client.submit(spec_of(launcher, tmp_path, n_steps)).record.trainer_id
    said = " ".join(site.client.explain(trainer).sentences)
    assert "A resize of it is a restart" in said
    assert "costs it all since its last checkpoint" in said
    lost = site.observed(trainer, N_NODES).observed_nodes[-1]
    wait_for(lambda: site.view(trainer).record.progress.step > 100, what="a checkpoint's worth")
    site.server.client.set_node(lost, is_up=False)
    wait_for(lambda: lost not in site.view(trainer).observed_nodes, what="it goes on elsewhere")
    site.trains_at(trainer, N_NODES - 1)
    site.server.client.set_node(lost, is_up=True)
    view = site.in_state(trainer, TrainerState.FINISHED)
    done = [r for r in site.rescales(trainer) if r.size_before]
    assert all(r.is_restart for r in done)
    assert [r for r in done if r.size < r.size_before and r.step > 0 and r.resumed_from]
    grown = [r for r in done if r.size > r.size_before and r.reason == "planned"]
    assert grown
    assert not any(r.unsaved for r in grown)
    assert view.record.failures == 0
    assert_exact(tmp_path, n_steps, view)
