"""What is lost when all members of a trainer are lost at once: real workers, real files."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

from bftrainer.ground import files
from tests.elastic import journal
from tests.elastic.controller import SCRIPTS, Controller, TemplateProcess

TRAIN = SCRIPTS / "train_ids.py"
SETTINGS = json.dumps({"delay_s": 0.005})

BIG = """\
import torch
from torch.utils.data import DataLoader, TensorDataset
from bftrainer import elastic

model = torch.nn.Linear(2000, 2000)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
data = TensorDataset(torch.randn(64, 2000), torch.randn(64, 2000))
run = elastic.Run(model, optimizer, DataLoader(data, batch_size=4), epochs=1_000_000)
for epoch in run.epochs():
    for x, y in run.batches():
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        run.step()
"""


def lone(c: Controller, script: Path | str = TRAIN, **config: Any) -> str:
    [worker_id] = c.start(script, [SETTINGS], epochs=1_000_000, **config)
    c.warm([worker_id])
    return worker_id


def killed(c: Controller, *ids: str) -> None:
    for worker_id in ids:
        c.kill(worker_id)
    c.until(lambda: all(c.workers[i].returncode for i in ids), "dead")
    c.members = []


def committed_at(directory: Path, generation: int) -> dict[int, float]:
    """When each step of a generation was committed first, s."""
    found: dict[int, float] = {}
    for e in journal.entries(directory, "commit"):
        if e["generation"] == generation:
            found.setdefault(e["step"], e["at_s"])
    return found


def trained_s(at: dict[int, float], first: int) -> float:
    """How long was trained after a step; where everything stood still, half a second counts."""
    times = [at[step] for step in range(first, max(at) + 1)]
    return sum(min(b - a, 0.5) for a, b in pairwise(times))


def trained(c: Controller) -> dict[int, float]:
    """Wait until the newest generation has committed a step; when each was."""
    return c.until(lambda: committed_at(c.directory, c.generation), "trains")


def saved_again(c: Controller, count: int = 1) -> None:
    """Wait for more checkpoints."""
    known = len(c.saved())
    c.until(lambda: len(c.saved()) >= known + count, "checkpoints")


def test_the_only_node_lost_costs_little_however_long_the_interval_is(
    tmp_path: Path, template: TemplateProcess
) -> None:
    interval_s = 3600.0
    with Controller(tmp_path, template) as c:
        first = lone(c, checkpoint_interval_s=interval_s)
        c.form([first])
        saved_again(c, 3)
        c.until(
            lambda: journal.last_step(tmp_path) > c.saved()[-1].step + 50,
            "trains on after its newest checkpoint",
        )
        killed(c, first)
        newest = c.saved()[-1]
        second = lone(c)
        [entered] = c.form([second])
        trained(c)
        c.until(lambda: journal.last_step(tmp_path) > entered.step + 100, "has trained again")
    assert entered.resumed_from.endswith(".bft")
    assert entered.step >= newest.step
    old, new = committed_at(tmp_path, 1), committed_at(tmp_path, 2)
    assert min(new) == entered.step + 1
    # Alone and without chance, steps done twice have the same outcome if the state was the same.
    hashes: dict[int, set[str]] = {}
    for e in journal.entries(tmp_path, "commit"):
        hashes.setdefault(e["step"], set()).add(e["hash"])
    twice = set(old) & set(new)
    assert twice
    assert all(len(hashes[step]) == 1 for step in twice)


def test_each_of_several_short_lives_leaves_more_than_it_found(
    tmp_path: Path, template: TemplateProcess
) -> None:
    began = []
    with Controller(tmp_path, template) as c:
        for _ in range(4):
            worker_id = lone(c, checkpoint_interval_s=3600.0)
            began += [entered.step for entered in c.form([worker_id])]
            saved_again(c)
            killed(c, worker_id)
    assert began[0] == 0
    assert all(b > a for a, b in pairwise(began))


def test_all_nodes_lost_at_once_cost_the_checkpoint_interval_at_any_size(
    tmp_path: Path, template: TemplateProcess
) -> None:
    interval_s = 2.0
    directory = tmp_path / "checkpoints"
    with Controller(tmp_path, template) as c:
        config: dict[str, Any] = {"epochs": 1_000_000, "checkpoint_interval_s": interval_s}
        ids = c.begin(TRAIN, [SETTINGS], count=2, **config)
        c.until(lambda: len(c.saved()) >= 2, "two checkpoints")
        killed(c, *ids)
        shutil.copytree(directory, tmp_path / "kept")
        old = committed_at(tmp_path, 1)
        written_s = max(s.wall_s for s in c.saved())
        for size in (1, 2, 3):
            shutil.rmtree(directory)
            shutil.copytree(tmp_path / "kept", directory)
            again = c.start(TRAIN, [SETTINGS], count=size, **config)
            entered = c.form(again, new=again)
            assert {e.step for e in entered} == {entered[0].step}
            assert entered[0].resumed_from.endswith(".bft")
            assert trained_s(old, entered[0].step) <= interval_s + written_s
            assert min(trained(c)) == entered[0].step + 1
            c.park()
    assert journal.disagreements(tmp_path, "hash", "lr", "updates", "average") == []


def test_a_worker_killed_while_it_writes_leaves_the_checkpoint_before(
    tmp_path: Path, template: TemplateProcess
) -> None:
    directory = tmp_path / "checkpoints"
    script = tmp_path / "big.py"
    script.write_text(BIG)
    with Controller(tmp_path, template) as c:
        for _ in range(20):
            worker_id = lone(c, script, checkpoint_interval_s=0.05)
            c.form([worker_id])
            saved_again(c, 2)
            c.until(lambda: list(directory.glob(".*.tmp")), "a write under way")
            killed(c, worker_id)
            if left := list(directory.glob(".step-*.tmp")):
                break
        assert left
        complete = files.newest_first(directory)
        assert complete[0].name < left[0].name.removeprefix(".")
        worker_id = lone(c, script, checkpoint_interval_s=0.05)
        [entered] = c.form([worker_id])
        assert entered.resumed_from == str(complete[0])
        saved_again(c)
        assert not left[0].exists()
