"""GPUs that are files, shared nodes, and the jobs that are drawn for them: what is written."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pydantic
import pytest

from bftrainer.model.errors import UsageError
from slurm_plugins.testcluster import ClusterConfig, gpu_files
from slurm_plugins.testcluster.cluster import check_host
from slurm_plugins.testcluster.config import Site, render
from slurm_plugins.testcluster.gpu_jobs import LIMIT_FACTORS, GpuDemand, generate
from slurm_plugins.testcluster.sharing import Sharing
from slurm_plugins.testcluster.workload import WorkloadItem, load_workload

FILES = tuple(f"/dev/f{number}" for number in range(8))
DEMAND = GpuDemand(
    n_nodes=6,
    gpus_per_node=4,
    cpus_per_node=16,
    memory_mb=16000,
    span_s=3600.0,
    load=0.8,
    typical_run_s=40.0,
    seed=1,
)


def test_each_form_of_generic_resources_is_written_as_gres_conf_has_it() -> None:
    def lines(gres: str, cores: gpu_files.GpuCores = "", prefix: str = "") -> list[str]:
        return gpu_files.lines(gres, FILES, n_cpus=8, cores=cores, prefix=prefix)

    assert lines("gpu:2") == ["Name=gpu File=/dev/f0", "Name=gpu File=/dev/f1"]
    assert lines("gpu:a100:1", prefix="NodeName=n3 ") == [
        "NodeName=n3 Name=gpu Type=a100 File=/dev/f0"
    ]
    assert lines("gpu:2,shard:8") == [*lines("gpu:2"), "Name=shard Count=8"]
    assert lines("gpu:2", "all") == [f"{line} Cores=0-7" for line in lines("gpu:2")]
    assert lines("gpu:3", "own") == [
        "Name=gpu File=/dev/f0 Cores=0-1",
        "Name=gpu File=/dev/f1 Cores=2-4",
        "Name=gpu File=/dev/f2 Cores=5-7",
    ]
    # One GPU as a whole, one in two slices: the last file is that GPU's.
    assert lines("gpu:a100:1,gpu:1g.10gb:2") == [
        "Name=gpu Type=a100 File=/dev/f0",
        "Name=gpu Type=1g.10gb MultipleFiles=/dev/f3,/dev/f1",
        "Name=gpu Type=1g.10gb MultipleFiles=/dev/f3,/dev/f2",
    ]
    assert gpu_files.files_needed("gpu:a100:1,gpu:1g.10gb:2") == 4
    assert gpu_files.files_needed("") == 0


@pytest.mark.parametrize("gres", ["gpu", "gpu:a100", "nvme:2", "gpu:2,", "gpu:-1", "gpu:a b:1"])
def test_what_is_no_generic_resource_is_refused(gres: str) -> None:
    with pytest.raises(UsageError) as caught:
        gpu_files.resources_of(gres)
    assert caught.value.code == "BFT-1243"


def test_sharing_is_written_where_slurm_reads_it(tmp_path: Path) -> None:
    config = ClusterConfig(
        directory=tmp_path,
        n_nodes=2,
        node_types=(("gpu:a100:2,shard:8", "fast"), ("", "")),
        sharing=Sharing(
            over_subscribe="FORCE:2",
            is_user_exclusive=True,
            pilot_cpus_per_node=3,
            memory_per_gpu_mb=500,
            system_cpus="0,1",
            restricted_cores_per_gpu=1,
        ),
    )
    site = Site(hostname="h", user="u", controller_port=1, node_ports=(2, 3), gpu_devices=FILES[:2])
    files = render(config, site)
    lines = files["slurm.conf"].splitlines()
    (first, second) = [line for line in lines if line.startswith("NodeName=")]
    (batch,) = [line for line in lines if line.startswith("PartitionName=batch")]
    (pilots,) = [line for line in lines if line.startswith("PartitionName=bf")]
    assert "GresTypes=gpu,shard" in lines
    of_all = {"CpuSpecList=0,1", "RestrictedCoresPerGPU=1"}
    assert of_all | {"Gres=gpu:a100:2,shard:8", "Features=fast"} <= set(first.split())
    assert of_all <= set(second.split())
    assert "Gres=" not in second
    assert {"OverSubscribe=FORCE:2", "ExclusiveUser=YES", "DefMemPerGPU=500"} <= set(batch.split())
    assert "MaxCPUsPerNode" not in batch
    assert {"MaxCPUsPerNode=3", "DefMemPerGPU=500"} <= set(pilots.split())
    assert not {"OverSubscribe", "ExclusiveUser"} & {word.split("=")[0] for word in pilots.split()}
    config.save()
    assert ClusterConfig.load(tmp_path) == config


def test_what_this_slurm_or_no_slurm_has_is_refused_before_anything_starts(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "slurmctld"
    program.parent.mkdir()
    for name in ("slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol"):
        path = program.parent / name
        path.write_text("#!/bin/sh\necho slurm 23.11.4\n")
        path.chmod(0o755)

    def refused(**settings: object) -> str:
        sharing = Sharing(**settings)  # type: ignore[arg-type]
        with pytest.raises(UsageError) as caught:
            check_host(
                ClusterConfig(
                    directory=Path("/tmp/bft-none"),
                    sharing=sharing,
                    prefix=str(tmp_path),
                )
            )
        return caught.value.cause

    assert refused(over_subscribe="MAYBE") == "A partition cannot be OverSubscribe=MAYBE."
    assert refused(restricted_cores_per_gpu=2) == "Slurm 23.11 has no RestrictedCoresPerGPU."


def test_drawn_jobs_are_of_all_kinds_and_within_the_cluster() -> None:
    items = generate(DEMAND)
    assert items == generate(DEMAND)
    assert [item.at_s for item in items] == sorted(item.at_s for item in items)
    gpu_s = 0.0
    for number, item in enumerate(items):
        assert item.limit_s is not None
        assert item.limit_s >= LIMIT_FACTORS[0] * item.duration_s
        assert item.limit_s < LIMIT_FACTORS[1] * item.duration_s + 60.0
        assert item.after is None or item.after < number
        assert item.gpus <= 4
        assert item.cpus <= 16
        assert item.memory_mb <= 16000
        gpus = item.gpus if item.share else 4
        gpu_s += item.n_nodes * gpus * item.duration_s * item.n_tasks
    assert gpu_s == pytest.approx(0.8 * 24 * 3600.0, rel=0.1)
    sizes = Counter(item.gpus for item in items)
    assert set(sizes) == {0, 1, 2, 3, 4}  # 0: whole nodes
    assert {item.n_nodes for item in items if not item.gpus} == {2}
    assert any(item.n_tasks > 1 for item in items)
    assert any(item.after is not None for item in items)
    cpus_per_gpu = {item.cpus / item.gpus for item in items if item.gpus}
    assert len(cpus_per_gpu) > 2  # not all in proportion


def test_a_workload_that_cannot_be_is_refused(tmp_path: Path) -> None:
    for more in ({"kind": "srun", "n_tasks": 2}, {"gpu_type": "a100"}):
        with pytest.raises(pydantic.ValidationError):
            WorkloadItem(at_s=0.0, n_nodes=1, duration_s=1.0, **more)
    script = tmp_path / "jobs.json"
    first = {"at_s": 5, "n_nodes": 1, "duration_s": 1}
    for after, at_s in ((7, 9), (0, 4), (1, 9)):
        script.write_text(json.dumps([first, {**first, "at_s": at_s, "after": after}]))
        with pytest.raises(UsageError) as caught:
            load_workload(script)
        assert caught.value.code == "BFT-1246"
        assert f"waits for item {after}" in caught.value.cause
    script.write_text(json.dumps([first, {**first, "after": 0}]))
    assert load_workload(script)[1].after == 0
