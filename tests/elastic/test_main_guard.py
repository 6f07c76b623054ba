"""Loader processes that import the script: with a main guard they train, without they are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.elastic.controller import Controller, TemplateProcess

HEAD = """\
import torch
from torch.utils.data import DataLoader, TensorDataset
from bftrainer import elastic

data = TensorDataset(torch.randn(40, 4))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(data, batch_size=10, num_workers=1, multiprocessing_context="{start}")
run = elastic.Run(model, optimizer, loader, epochs=1)
"""
LOOP = """\
def train():
    for epoch in run.epochs():
        for (x,) in run.batches():
            optimizer.zero_grad()
            model(x).pow(2).mean().backward()
            run.step()


"""
GUARD = 'if __name__ == "__main__":\n    '


@pytest.mark.long
@pytest.mark.parametrize("start", ["spawn", "forkserver"])
def test_children_that_run_the_script_are_named(
    tmp_path: Path, template: TemplateProcess, start: str
) -> None:
    script = tmp_path / "own.py"
    script.write_text(HEAD.format(start=start) + LOOP + "train()\n")
    with Controller(tmp_path, template) as c:
        [worker] = c.start(script, [])
        c.form([worker], new=[worker])
        failed = c.failed(worker)
        assert failed.code == "BFT-1428", failed.cause
        assert 'if __name__ == "__main__"' in failed.next_step
        assert failed.place == "", "neither daemon nor agent said that they know the field"
        # The child, too, says it.
        assert "BFT-1428" in c.workers[worker].log.read_text().partition("DataLoader worker")[0]


@pytest.mark.long
def test_with_a_main_guard_they_load(tmp_path: Path, template: TemplateProcess) -> None:
    script = tmp_path / "own.py"
    script.write_text(HEAD.format(start="spawn") + LOOP + GUARD + "train()\n")
    with Controller(tmp_path, template) as c:
        [worker] = c.start(script, [])
        c.form([worker], new=[worker])
        c.finished()
