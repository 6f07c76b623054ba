"""Scripts that wrap or shard their model for a process group: unwrapped, or told why not."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from bftrainer.batch import process
from bftrainer.elastic.network.shards import shards_of
from bftrainer.elastic.script.models import unwrap
from bftrainer.ground.errors import ElasticError
from tests.elastic import journal
from tests.elastic.controller import SCRIPTS, Controller, TemplateProcess

WRAPPED = SCRIPTS / "wrapped.py"
NOTE = "wrapped in DistributedDataParallel"


def plainly(directory: Path, case: str) -> tuple[journal.Entry, str]:
    directory.mkdir()
    done = process.run(
        [sys.executable, str(WRAPPED), case],
        timeout_s=300,
        env={**os.environ, "BFT_TEST_DIR": str(directory), "OMP_NUM_THREADS": "1"},
    )
    assert done.is_ok, done.stderr
    return journal.result(directory), done.stderr


@pytest.mark.long
def test_run_plainly_it_trains_as_without_its_wrapper(tmp_path: Path) -> None:
    wrapped, said = plainly(tmp_path / "wrapped", "wrapped")
    plain, nothing = plainly(tmp_path / "plain", "plain")
    assert wrapped == plain
    assert wrapped["steps"] == 24
    assert said.count(NOTE) == 1
    assert NOTE not in nothing


@pytest.mark.long
def test_two_workers_average_once(tmp_path: Path, template: TemplateProcess) -> None:
    results = []
    for case in ("plain", "wrapped"):
        directory = tmp_path / case
        directory.mkdir()
        with Controller(directory, template) as c:
            ids = c.begin(WRAPPED, [case], count=2)
            c.finished()
            assert (NOTE in c.workers[ids[0]].log.read_text()) == (case == "wrapped")
        results.append(journal.result(directory)["state"])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(torch.tensor(a), torch.tensor(b), rtol=1e-6, atol=1e-7)


def test_a_group_of_several_members_is_refused(tmp_path: Path, template: TemplateProcess) -> None:
    with Controller(tmp_path, template) as c:
        ids = [c.start(WRAPPED, ["two", str(rank)])[0] for rank in range(2)]
        for worker_id in ids:
            failed = c.failed(worker_id)
            assert failed.code == "BFT-1401"
            assert "over 2 processes" in failed.cause
            assert "world_size=1" in failed.next_step


@pytest.fixture
def group_of_one() -> Iterator[None]:
    store: Any = torch.distributed.HashStore()  # type: ignore[attr-defined]  # not in its stubs
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("group_of_one")
@pytest.mark.parametrize("how", ["FullyShardedDataParallel", "fully_shard", "DTensors"])
def test_models_sharded_over_other_processes_are_refused(how: str) -> None:
    from torch.distributed import fsdp, tensor
    from torch.distributed.device_mesh import init_device_mesh

    model = nn.Sequential(nn.Linear(4, 4))
    if how == "fully_shard":
        fsdp.fully_shard(model)
    elif how == "DTensors":
        tensor.distribute_module(model, init_device_mesh("cpu", (1,)))
    else:  # which cannot be made without a GPU
        wrapper: Any = fsdp.FullyShardedDataParallel
        model = nn.Sequential(inner := wrapper.__new__(wrapper))
        nn.Module.__init__(inner)
    with pytest.raises(ElasticError, match="not those of a node") as refused:
        shards_of(unwrap(model, contextlib.nullcontext))
    assert refused.value.code == "BFT-1401"
    assert "elastic.node_mesh()" in refused.value.next_step
    assert "--runtime command" in refused.value.next_step
