"""Whatever a loss is reduced over, an update is that of one process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from bftrainer.ground.protocol import Interrupted
from tests.elastic import journal
from tests.elastic.controller import SCRIPTS, Controller, TemplateProcess, holds_of

TRAIN = SCRIPTS / "train_loss.py"
LOSSES = ("sum", "mean", "tokens", "classes", "vae")
KIND = {"sum": "sum", "vae": "sum", "mean": "mean", "tokens": "weighted", "classes": "weighted"}

SUM = """\
import os, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from bftrainer import elastic

torch.manual_seed(0)
x = torch.randn(400, 8)
m = nn.Linear(8, 1)
o = torch.optim.SGD(m.parameters(), lr=1e-4)
run = elastic.Run(m, o, DataLoader(TensorDataset(x), batch_size=20), epochs=10)
for e in run.epochs():
    for (a,) in run.batches():
        o.zero_grad()
        (m(a) - a.sum(1, keepdim=True)).pow(2).sum().backward()
        run.step()
with open(os.path.join(os.environ["BFT_TEST_DIR"], "final"), "w") as file:
    file.write("%.6f" % (m(x) - x.sum(1, keepdim=True)).pow(2).mean().item())
"""


def fixed(directory: Path, template: TemplateProcess, size: int, **settings: Any) -> journal.Entry:
    directory.mkdir()
    with Controller(directory, template) as c:
        c.begin(TRAIN, [json.dumps(settings)], count=size)
        c.finished()
    return journal.result(directory)


def apart(found: journal.Entry, wanted: journal.Entry) -> float:
    """The largest difference of a parameter, relative to the largest parameter."""
    a, b = (torch.tensor(e["parameters"], dtype=torch.float64) for e in (found, wanted))
    assert found["steps"] == wanted["steps"]
    assert a.isfinite().all()
    return float((a - b).abs().max() / b.abs().max())


def rescaled(
    directory: Path, template: TemplateProcess, sizes: tuple[int, ...], **settings: Any
) -> journal.Entry:
    """Train through these sizes, two steps each; a negative one begins with a kill of rank 0."""
    directory.mkdir()
    arguments = [json.dumps({**settings, "holds": holds_of(sizes, apart=2)})]
    with Controller(directory, template) as c:
        c.through(sizes, TRAIN, arguments, apart=2)
    return journal.result(directory)


def test_a_sum_is_learnt_as_by_one_process(tmp_path: Path, template: TemplateProcess) -> None:
    script = tmp_path / "b_sum.py"
    script.write_text(SUM)
    finals = []
    for size in (1, 2):
        with Controller(tmp_path / str(size), template) as c:
            c.directory.mkdir()
            c.begin(script, count=size)
            c.finished()
        finals.append((c.directory / "final").read_text())
    assert finals == ["2.229573", "2.229573"]


@pytest.mark.parametrize("loss", LOSSES)
def test_parameters_are_those_of_one_process(
    tmp_path: Path, template: TemplateProcess, loss: str
) -> None:
    one = fixed(tmp_path / "one", template, 1, loss=loss)
    found = rescaled(tmp_path / "many", template, (2, 3, -2, 1), loss=loss)
    assert apart(found, one) < 1e-9
    assert found["rule"]["kind"] == KIND[loss]


@pytest.mark.parametrize("loss", [pytest.param("sum", marks=pytest.mark.long), "tokens"])
def test_bitwise_they_are_the_same_bits_at_any_size(
    tmp_path: Path, template: TemplateProcess, loss: str
) -> None:
    few = {"loss": loss, "logical": 4, "samples": 70}
    one = fixed(tmp_path / "one", template, 1, **few)
    assert fixed(tmp_path / "three", template, 3, **few)["parameters"] == one["parameters"]
    plain = fixed(tmp_path / "plain", template, 1, loss=loss, samples=70)
    assert apart(one, plain) < 1e-9


@pytest.mark.parametrize("loss", [pytest.param("sum", marks=pytest.mark.long), "tokens"])
def test_members_with_more_passes_than_others_vote_once(
    tmp_path: Path, template: TemplateProcess, loss: str
) -> None:
    one = fixed(tmp_path / "one", template, 1, loss=loss, samples=70)
    found = fixed(tmp_path / "three", template, 3, loss=loss, samples=70, most=5)  # 2, 1 and 1
    assert apart(found, one) < 1e-9
    assert found["rule"]["kind"] == KIND[loss]


def test_rules_for_the_learning_rate_take_sums_for_means(
    tmp_path: Path, template: TemplateProcess
) -> None:
    wanted = fixed(tmp_path / "one", template, 1, loss="sum", batch=32)
    found = fixed(tmp_path / "two", template, 2, loss="sum", batch=16, rule="linear")
    assert apart(found, wanted) < 1e-9


def test_a_vote_that_one_member_did_not_see_is_held_again(
    tmp_path: Path, template: TemplateProcess
) -> None:
    settings = {"fail_at": [1, 1], "epochs": 1, "optimizer": "sgd"}
    with Controller(tmp_path, template) as c:
        ids = c.begin(SCRIPTS / "train_ids.py", [json.dumps(settings)], count=2)
        c.until(lambda: all(c.workers[i].all(Interrupted) for i in ids), "both interrupted")
        c.form(ids, abandon=True)
        c.finished()
    assert journal.disagreements(tmp_path, "hash") == []
    assert journal.result(tmp_path)["steps"] == 13


# Shrinks, grows, and two deaths of rank 0; eleven changes of size.
SIZES = (1, 3, 2, 4, -3, 1, 2, 4, 3, -2, 4, 1)
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulated by the script and clipped": {"parts": 2, "clip": 0.05},
    "accumulated by the run and clipped": {"most": 3, "clip": 0.05},
    "scaled": {"amp": True},
}


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("loss", LOSSES)
def test_parameters_are_those_of_one_process_after_ten_rescales_and_two_deaths(
    tmp_path: Path, template: TemplateProcess, loss: str, way: str
) -> None:
    alone = {k: v for k, v in WAYS[way].items() if k == "clip"}
    one = fixed(tmp_path / "one", template, 1, loss=loss, epochs=3, **alone)
    found = rescaled(tmp_path / "many", template, SIZES, loss=loss, epochs=3, **WAYS[way])
    print(f"{loss}, {way}: {apart(found, one):.1e}")  # noqa: T201 - the figure of the proof
    assert apart(found, one) < 1e-9
    assert found["rule"]["kind"] == KIND[loss]
