"""Frameworks with a model that the script has sharded over the workers of a node."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.elastic import journal
from tests.elastic.controller import SCRIPTS, Controller, TemplateProcess
from tests.elastic.frameworks import FRAMEWORKS, Framework, natively, template

__all__ = ["template"]


def started(c: Controller, framework: Framework, count: int, **settings: Any) -> list[str]:
    args = [json.dumps({"sharded": True, **settings})]
    return c.start(SCRIPTS / framework.script, args, count=count, per_node=2)


def assert_trained(directory: Path, wanted: journal.Entry, samples: int) -> None:
    got = journal.result(directory)
    for name in ("steps", "epoch", "lr"):
        assert got[name] == pytest.approx(wanted[name])
    for a, b in zip(got["parameters"], wanted["parameters"], strict=True):
        torch.testing.assert_close(torch.tensor(a), torch.tensor(b), rtol=1e-3, atol=1e-5)
    epochs = journal.committed_ids(directory)
    assert {e: set(ids.values()) for e, ids in epochs.items()} == {0: {1}, 1: {1}, 2: {1}}
    assert all(len(ids) == samples for ids in epochs.values())
    assert journal.disagreements_of_shards(directory) == []


def whole_weights(directory: Path, framework: Framework) -> list[torch.Tensor]:
    """Return what the framework saved itself at the end."""
    if framework.module == "lightning":
        saved = torch.load(directory / "out" / "epoch=2.ckpt", weights_only=False)
        assert all(type(m) is torch.Tensor for m in momenta(saved))
        return list(saved["state_dict"].values())
    safetensors = pytest.importorskip("safetensors.torch")
    last: dict[str, torch.Tensor] = {}
    for folder in (directory / "out" / "checkpoint-30", directory / "whole"):
        found = safetensors.load_file(folder / "model.safetensors")
        assert not last or all(torch.equal(last[k], found[k]) for k in found)
        last = found
    return list(last.values())


def momenta(saved: dict[str, Any]) -> list[Any]:
    return [one["momentum_buffer"] for one in saved["optimizer_states"][0]["state"].values()]


@pytest.mark.long
@pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda f: f.module, indirect=True)
def test_nodes_come_and_go(tmp_path: Path, template: TemplateProcess, framework: Framework) -> None:
    """1 → 2 → 1 nodes of two workers; an evaluation and a checkpoint of theirs every epoch."""
    samples = 73  # the last batch of an epoch has one: three of four workers get none
    with Controller(tmp_path, template) as c:
        holds = [[5, 2], [17, 3]]  # of 30 steps
        first, second = started(c, framework, 2, samples=samples, holds=holds, evaluate=True)
        wanted = natively(template, framework, samples=samples)
        c.form([first], new=[first, second])
        c.trained_to(4)
        c.form([first, second])
        c.trained_to(16)
        c.form([second])
        c.finished()
    assert_trained(tmp_path, wanted, samples)
    logged = [e["step"] for e in journal.entries(tmp_path, "log")]
    assert sorted(logged) == list(range(1, 31)), "each step once, by whoever was rank 0"
    sizes = sorted(t.numel() for t in whole_weights(tmp_path, framework))
    assert sizes == sorted(len(p) for p in wanted["parameters"])


@pytest.mark.long
@pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda f: f.module, indirect=True)
def test_a_lost_node_and_a_park(
    tmp_path: Path, template: TemplateProcess, framework: Framework
) -> None:
    with Controller(tmp_path, template) as c:
        first, second = started(c, framework, 2, delay_s=0.02, batch=4, accumulate=2)
        wanted = natively(template, framework)  # transformers adds up the means of two batches
        c.form([first, second], new=[first, second])
        c.trained_to(7)
        c.lose(c.teams[first][1])
        c.form([second], abandon=True)
        c.trained_to(14)
        c.park(saver=second)
        (third,) = started(c, framework, 1, delay_s=0.02, batch=4, accumulate=2)
        c.form([third], new=[third])
        c.finished()
    assert_trained(tmp_path, wanted, 75)


@pytest.mark.long
def test_the_optimizer_s_shards_are_not_saved_by_transformers(
    tmp_path: Path, template: TemplateProcess
) -> None:
    pytest.importorskip("transformers")
    with Controller(tmp_path, template) as c:
        args = [json.dumps({"sharded": True, "evaluate": True, "whole_state": True})]
        ids = c.start(SCRIPTS / "hf_train.py", args, per_node=2)
        said = c.failed(ids[0])
    assert said.code == "BFT-1420"
    assert "save_only_model=True" in said.next_step
