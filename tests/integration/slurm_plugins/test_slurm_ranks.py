"""On a real Slurm, no library takes a worker for rank 0 of 1, which the pilot is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bftrainer.lab.demo.sidecar import DaemonProcess
from slurm_plugins.testcluster import SlurmTestCluster
from tests.integration.daemon_scripts import SCALES, SCALING, trainer_spec
from tests.integration.slurm_fixtures import slurm_cluster
from tests.support.waiting import wait_for

__all__ = ["slurm_cluster"]

pytestmark = [pytest.mark.slurm, pytest.mark.long]

POLICY = "poll_interval_s: 0.2\nreserve_nodes_per_type: 0\nfailure_budget: 2\nexplore_budget: 0\n"
NODES = 2
# Each library's own detection, torchvision's as in references/classification/utils.py.
LOOKS = """\
import json, os, sys

def of_torchvision():
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return int(os.environ["RANK"])
    if "SLURM_PROCID" in os.environ:
        return int(os.environ["SLURM_PROCID"])
    return None

def of_lightning():
    from lightning.fabric.plugins.environments import LSFEnvironment, MPIEnvironment
    from lightning.fabric.plugins.environments import SLURMEnvironment, TorchElasticEnvironment
    kinds = (LSFEnvironment, MPIEnvironment, SLURMEnvironment, TorchElasticEnvironment)
    return [kind.__name__ for kind in kinds if kind.detect()]

def of_lightnings_rank():
    from lightning.fabric.utilities.rank_zero import _get_rank
    return _get_rank()

def of_transformers():
    import tempfile
    from transformers import TrainingArguments
    arguments = TrainingArguments(output_dir=tempfile.mkdtemp(), use_cpu=True)
    return [arguments.world_size, arguments.local_rank, str(arguments.parallel_mode)]

def of_accelerate():
    from accelerate.utils.environment import get_cpu_distributed_information, get_int_from_env
    asked = ["RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK"]
    return [get_int_from_env(asked, -1), get_cpu_distributed_information().world_size]

looks = {
    "torchvision": of_torchvision(), "lightning": of_lightning(),
    "lightning's rank": of_lightnings_rank(), "transformers": of_transformers(),
    "accelerate": of_accelerate(),
    "variables": {k: v for k, v in os.environ.items() if k.startswith(("SLURM", "PMI", "OMPI"))},
}
print("LOOKS " + json.dumps(looks), flush=True)
"""
# What only the batch script of one job can say of itself.
OF_PILOT = (
    *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS", "SLURM_NPROCS"),
    *("SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_GTIDS", "SLURM_TASK_PID", "SLURM_STEP_ID"),
)

NOTHING = {
    "torchvision": None,
    "lightning": [],
    "lightning's rank": None,
    "transformers": [1, -1, "ParallelMode.NOT_PARALLEL"],
    "accelerate": [-1, 1],
}


def _looks(sidecar: DaemonProcess, trainer: str, least: int) -> list[dict[str, Any]]:
    def told() -> list[dict[str, Any]] | None:
        logs = [Path(file.path).read_text() for file in sidecar.client.logs(trainer)]
        lines = [line for log in logs for line in log.splitlines() if line.startswith("LOOKS ")]
        return [json.loads(line[6:]) for line in lines] if len(lines) >= least else None

    return wait_for(told, what=f"{least} workers looked around")


@pytest.fixture
def sidecar(slurm_cluster: SlurmTestCluster, tmp_path: Path) -> Iterator[DaemonProcess]:
    started = DaemonProcess(
        tmp_path / "state",
        batch_system="slurm",
        batch_options=slurm_cluster.config.batch_options(),
        policy=POLICY,
    )
    try:
        started.start()
        yield started
    finally:
        started.stop()


def test_no_library_takes_a_rank_from_the_pilot(sidecar: DaemonProcess, tmp_path: Path) -> None:
    spec = trainer_spec(tmp_path / "t", LOOKS + SCALES, n_min=NODES, n_max=NODES, curve=SCALING)
    for seen in _looks(sidecar, sidecar.client.submit(spec).record.trainer_id, NODES):
        assert {name: seen[name] for name in NOTHING} == NOTHING
        assert not {*OF_PILOT} & seen["variables"].keys()
        assert seen["variables"]["SLURM_JOB_ID"], "what describes the job stays"


def test_a_program_gets_the_rank_of_its_trainer_and_none_of_the_pilot(
    sidecar: DaemonProcess, tmp_path: Path
) -> None:
    program = tmp_path / "program"
    program.write_text('#!/bin/sh\nenv > "$PWD/env.$RANK.new" && mv "env.$RANK.new" "env.$RANK"\n')
    program.chmod(0o755)
    spec = replace(
        trainer_spec(tmp_path / "p", "", n_min=NODES, n_max=NODES, seed=7),
        runtime="command",
        script=str(program),
        interpreter="",
    )
    sidecar.client.submit(spec)
    for rank in range(NODES):
        file = tmp_path / "p" / f"env.{rank}"
        wait_for(file.exists, what=f"program {rank}")
        told = dict(line.split("=", 1) for line in file.read_text().splitlines() if "=" in line)
        assert not {*OF_PILOT} & told.keys()
        assert told["SLURM_JOB_ID"]
        assert (told["RANK"], told["WORLD_SIZE"]) == (str(rank), str(NODES))
        assert (told["BFT_SEED"], told["PYTHONHASHSEED"]) == ("7", "0")
