"""What ``bench_runtimes`` measures: each runtime with its script, and other launchers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import bftrainer
import trainers.examples
from _bench.runtime_beds import WORKLOADS, Arm
from _bench.waiting import BenchError
from bftrainer.batch import process
from bftrainer.model.trainer import CheckpointContract, Launch

TWO_MODELS: Final = ("small", "big")
HOROVOD: Final = WORKLOADS / "runtime_horovod.py"
HOROVODRUN: Final = "horovodrun"
MPI: Final = WORKLOADS / "runtime_mpi.py"
ARMS: Final = (
    Arm(runtime="torch", needs="torch", models=TWO_MODELS, script=WORKLOADS / "rescale_elastic.py"),
    Arm(runtime="horovod", needs="horovod", models=TWO_MODELS, script=HOROVOD),
    Arm(
        runtime="horovod",
        label="horovod, cold",
        needs="horovod",
        models=TWO_MODELS,
        script=HOROVOD,
        environment=(("BFT_HOROVOD_WARM", "0"),),
    ),
    Arm(runtime="", label=HOROVODRUN, needs="horovod", models=TWO_MODELS, script=HOROVOD),
    Arm(runtime="mpi", needs="mpi4py", script=MPI),
    Arm(
        runtime="command",
        program=(sys.executable,),
        script=WORKLOADS / "runtime_command.py",
        contract=CheckpointContract(grace_s=20.0),
    ),
)
MPIRUN_SH: Final = Path(trainers.examples.__file__).with_name("mpirun.sh")
# All nodes are this host, and this may be root in a container.
ONE_HOST: Final = (
    ("MPIRUN_OPTIONS", ""),
    ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
    ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
    ("OMPI_MCA_rmaps_base_oversubscribe", "1"),  # Open MPI 4
    ("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"),  # Open MPI 5
    ("OMPI_MCA_hwloc_base_binding_policy", "none"),
    ("PRTE_MCA_hwloc_default_binding_policy", "none"),
    ("PYTHONPATH", str(Path(bftrainer.__file__).resolve().parents[1])),
)


def mpirun_arm(pair: str) -> Arm:
    """Return what measures a program under ``MPIRUN:PYTHON``, resized by restart."""
    mpirun, _, python = pair.partition(":")
    argv = (python, "-c", "from mpi4py import MPI; print(*MPI.get_vendor())")
    done = process.run(argv, timeout_s=30.0)
    if not done.is_ok:
        raise BenchError(f"{python} has no MPI: {done.stderr[-300:]}")
    return Arm(
        runtime="command",
        label=f"mpirun of {done.stdout.strip()}",
        script=MPI,
        program=(str(MPIRUN_SH), python),
        environment=(("MPIRUN", mpirun), *ONE_HOST),
        contract=CheckpointContract(grace_s=20.0, launch=Launch.FIRST),
    )
