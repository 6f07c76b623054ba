"""A model that fits from some number of nodes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from bftrainer.elastic.script.batch import Cutting, GlobalBatch, PerWorkerBatch
from bftrainer.ground.protocol import LEAST_NODES
from tests.elastic.controller import Controller, TemplateProcess

# Four samples of a batch of 16 fit.
SCRIPT = """\
import torch
from torch.utils.data import DataLoader, TensorDataset
from bftrainer import elastic

net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
data = TensorDataset(torch.randn(64, 3), torch.randn(64, 1))
run = elastic.Run(net, optimizer, DataLoader(data, batch_size=16), epochs=1)
for _ in run.epochs():
    for x, y in run.batches():
        if len(x) > 4:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(net(x), y).backward()
        run.step()
"""


@pytest.mark.parametrize("per_node", [1, 2])
def test_a_rehearsal_takes_no_more_than_a_share_of_the_fewest_nodes(
    tmp_path: Path, template: TemplateProcess, per_node: int
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    with Controller(tmp_path, template) as c:
        environment = ((LEAST_NODES, str(4 // per_node)),)
        nodes = c.start(script, count=4 // per_node, per_node=per_node, environment=environment)
        c.warm(nodes)
        c.form(nodes, new=nodes)
        c.finished()


def test_who_runs_out_of_memory_is_told_what_helps(
    tmp_path: Path, template: TemplateProcess
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    with Controller(tmp_path, template) as c:
        failed = c.failed(c.start(script)[0])
        assert failed.code == "BFT-1410"
        assert "OutOfMemoryError" in failed.cause
        for way in ("--nodes", "max_per_worker", "--workers-per-node"):
            assert way in failed.next_step


def test_rehearsals_of_all_rules() -> None:
    assert [Cutting().rehearsal(15, shares) for shares in (1, 2, 4)] == [8, 8, 4]
    assert Cutting(least=5).rehearsal(15, 4) == 5
    assert Cutting(rule=GlobalBatch(max_per_worker=3)).rehearsal(15, 4) == 3
    assert Cutting(rule=PerWorkerBatch()).rehearsal(15, 4) == 15
    assert Cutting(logical=2).rehearsal(15, 4) == 8
