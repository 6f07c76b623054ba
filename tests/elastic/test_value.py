"""``elastic.Value``: one value in the state of a training."""

from __future__ import annotations

from pathlib import Path

from bftrainer import elastic
from tests.elastic.controller import Controller, TemplateProcess

COUNTS = """\
import torch
from torch.utils.data import DataLoader, TensorDataset
from bftrainer import elastic

net = torch.nn.Linear(2, 1)
sgd = torch.optim.SGD(net.parameters(), lr=0.1)
best, seen = elastic.Value(0), elastic.Value([])
run = elastic.Run(net, sgd, DataLoader(TensorDataset(torch.ones(16, 2)), batch_size=8), epochs=1,
                  extra={"best": best, "seen": seen}, batch=elastic.GlobalBatch(max_per_worker=2))
print("begins with", best.value, seen.value)
for epoch in run.epochs():
    for (x,) in run.batches():
        sgd.zero_grad()
        net(x).mean().backward()
        run.step()
        best.value += 1
        seen.value = [*seen.value, run.step_count]
print("ends with", best.value, seen.value)
"""


def test_it_counts_updates_and_goes_on_from_a_checkpoint(
    tmp_path: Path, template: TemplateProcess
) -> None:
    """Also where updates have several passes, after each of which the script counts."""
    script = tmp_path / "counts.py"
    script.write_text(COUNTS)
    logs = []
    for epochs in (2, 3):
        with Controller(tmp_path, template) as c:
            ids = c.begin(script, epochs=epochs)
            c.finished()
            logs.append(c.workers[ids[0]].log.read_text())
    assert "begins with 0 []" in logs[0]
    assert "ends with 4 [1, 2, 3, 4]" in logs[0]
    assert "ends with 6 [1, 2, 3, 4, 5, 6]" in logs[1]


def test_it_shows_what_it_holds() -> None:
    value = elastic.Value(0.5)
    assert repr(value) == "Value(0.5)"
    other = elastic.Value(None)
    other.load_state_dict(value.state_dict())
    assert other.value == 0.5
