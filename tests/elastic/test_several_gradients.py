"""What errors advise for updates of several gradients is the algorithm of one process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bftrainer import elastic
from bftrainer.elastic import ElasticError
from bftrainer.elastic.gradients.buckets import GradientReducer
from bftrainer.elastic.network.group import Broken
from tests.elastic import journal
from tests.elastic.controller import SCRIPTS, Controller, TemplateProcess

SCRIPT = SCRIPTS / "several_gradients.py"
SAMPLES, BATCH, RHO, LR = 49, 8, 0.5, 0.05  # as the script has them
MICRO = 2  # samples of a batch of the script that accumulates by itself


def _alone(kind: str, epochs: int) -> list[float]:
    """Train as the papers and torch's documentation have it, without any of this package."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        x = torch.randn(SAMPLES, 6, dtype=torch.float64)
        y = (x.prod(1, keepdim=True) + x[:, :1]).tanh()
        net = nn.Sequential(
            nn.Linear(6, 8, dtype=torch.float64),
            nn.Tanh(),
            nn.Linear(8, 1, dtype=torch.float64),
        )
    optimizer = torch.optim.SGD(net.parameters(), lr=LR, momentum=0.9)
    for _ in range(epochs):
        for start in range(0, SAMPLES, BATCH):
            a, b = x[start : start + BATCH], y[start : start + BATCH]
            optimizer.zero_grad()
            if kind == "sam":
                _climb(net, a, b)
            else:
                for at in range(0, len(a), MICRO):
                    part = nn.functional.mse_loss(net(a[at : at + MICRO]), b[at : at + MICRO])
                    (part * len(a[at : at + MICRO]) / len(a)).backward()
            optimizer.step()
    return [float(v) for p in net.parameters() for v in p.detach().flatten()]


def _climb(net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    """Take the gradient of sharpness-aware minimisation (Foret et al., ICLR 2021)."""
    grads = torch.autograd.grad(nn.functional.mse_loss(net(x), y), list(net.parameters()))
    norm = torch.cat([g.flatten() for g in grads]).norm()
    kept = [p.detach().clone() for p in net.parameters()]
    with torch.no_grad():
        for p, g in zip(net.parameters(), grads, strict=True):
            p.add_(RHO * g / norm)
    nn.functional.mse_loss(net(x), y).backward()
    with torch.no_grad():
        for p, value in zip(net.parameters(), kept, strict=True):
            p.copy_(value)


def _rescaled(directory: Path, template: TemplateProcess, *, dies: int = 0, kind: str) -> int:
    """Train at sizes 2, 3, 1 and 3, perhaps with a loss first; return the epochs."""
    forever = [json.dumps({"kind": kind, "dies": dies})]
    with Controller(directory, template) as c:
        ids = c.begin(SCRIPT, forever, count=2)
        if dies:
            c.until(lambda: c.workers[ids[1]].returncode is not None, "dead")
            c.form(ids[:1], abandon=True)
        c.trained_to(dies + 3)
        joiners = c.start(SCRIPT, forever, count=3 - len(c.members))
        c.form(c.members + joiners, new=joiners)
        c.trained_to(journal.last_step(directory) + 9)
        c.form(c.members[:1])
        c.trained_to(journal.last_step(directory) + 3)
        c.park()
        epochs = 2 + max(int(e["epoch"]) for e in journal.entries(directory, "commit"))
        last = c.start(SCRIPT, forever, count=3, epochs=epochs)
        c.form(last, new=last)
        c.finished()
    return epochs


@pytest.mark.parametrize(
    ("kind", "dies"),
    [
        ("sam", 5),
        pytest.param("sam", 0, marks=pytest.mark.long),
        pytest.param("accumulated", 0, marks=pytest.mark.long),
        pytest.param("parted", 0, marks=pytest.mark.long),
    ],
)
def test_the_advice_is_the_algorithm_of_one_process(
    tmp_path: Path, template: TemplateProcess, kind: str, dies: int
) -> None:
    epochs = _rescaled(tmp_path, template, kind=kind, dies=dies)
    ours = json.loads((tmp_path / "result.json").read_text())["parameters"]
    assert ours == pytest.approx(_alone(kind, epochs), rel=1e-6, abs=1e-6)
    assert journal.disagreements(tmp_path, "hash") == []


def test_gradients_that_are_added_to_averages_are_refused_before_anybody_joins(
    tmp_path: Path, template: TemplateProcess
) -> None:
    with Controller(tmp_path, template) as c:
        [alone] = c.start(SCRIPT, [json.dumps({"kind": "sam without zero_grad"})])
        failed = c.failed(alone)
    assert failed.code == "BFT-1453"
    assert "optimizer.zero_grad() between" in failed.next_step


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"backward_passes": 0}, "BFT-1403"),
        ({"backward_passes": True}, "BFT-1403"),
        ({"backward_passes": "2"}, "BFT-1403"),
        ({"backward_passes": 2, "batch": elastic.GlobalBatch(max_per_worker=2)}, "BFT-1452"),
        ({"backward_passes": 2, "bitwise": elastic.LogicalWorkers(2)}, "BFT-1452"),
    ],
)
def test_averages_that_do_not_exist_within_an_update_are_refused(
    more: dict[str, Any], code: str
) -> None:
    net = nn.Linear(2, 1)
    loader = DataLoader(TensorDataset(torch.zeros(8, 2)), batch_size=4)
    with pytest.raises(ElasticError) as refused:
        elastic.Run(net, torch.optim.SGD(net.parameters(), lr=0.1), loader, epochs=1, **more)
    assert refused.value.code == code


def test_the_error_names_both_ways() -> None:
    net = nn.Linear(2, 1)
    reducer = GradientReducer(list(net.parameters()))
    reducer.is_in_hand = True
    reducer.begin(0.5)
    net(torch.ones(2, 2)).sum().backward()
    with pytest.raises(ElasticError) as refused:
        net(torch.ones(2, 2)).sum().backward()
    assert refused.value.code == "BFT-1404"
    for word in ("run.no_sync()", "backward_passes=2", "Several gradients"):
        assert word in refused.value.next_step


def test_a_void_update_leaves_the_parameters_as_they_were_before_it() -> None:
    net = nn.Linear(3, 1, bias=False)
    before = net.weight.detach().fill_(0.1).clone()
    reducer = GradientReducer(list(net.parameters()), averages=2)
    reducer.begin(0.5)
    net(torch.ones(2, 3)).sum().backward()
    with torch.no_grad():
        net.weight.add_(1000.0)
    reducer.fail(Broken(reason="a member is gone"))
    net.zero_grad()
    net(torch.ones(2, 3)).sum().backward()
    with torch.no_grad():
        net.weight.sub_(1000.0)  # which is not what it was, to the last bit
    assert reducer.is_finished
    assert not net.weight.equal(before)
    reducer.averaged.put_back()
    assert net.weight.equal(before)


def test_what_the_second_pass_does_not_reach_keeps_the_average_of_the_first() -> None:
    judge, maker = nn.Linear(2, 1, bias=False), nn.Linear(2, 1, bias=False)
    reducer = GradientReducer([*judge.parameters(), *maker.parameters()], averages=2)
    reducer.bind(None, lambda: False, lambda: False)  # no hooks: a group of one
    reducer._hook()
    reducer.begin(1.0)
    judge(torch.tensor([[1.0, 3.0]])).mean().backward()
    maker(torch.tensor([[5.0, 7.0]])).mean().backward()
    assert judge.weight.grad is not None
    assert judge.weight.grad.tolist() == [[1.0, 3.0]]
    assert maker.weight.grad is not None
    assert maker.weight.grad.tolist() == [[5.0, 7.0]]
