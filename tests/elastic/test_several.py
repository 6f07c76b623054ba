"""Several models and optimizers: registered they are one, beside the run they are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bftrainer.elastic import ElasticError, Run
from tests.elastic import journal
from tests.elastic.controller import SCRIPTS, Controller, TemplateProcess

pytestmark = pytest.mark.usefixtures("plain")

GAN = SCRIPTS / "gan.py"


def test_two_models_train_together_at_any_size(tmp_path: Path, template: TemplateProcess) -> None:
    results = []
    for size in (1, 2):
        directory = tmp_path / str(size)
        directory.mkdir()
        with Controller(directory, template) as c:
            c.begin(GAN, ["registered"], count=size)
            c.finished()
        assert journal.disagreements(directory, "hash") == []
        results.append(json.loads((directory / "result.json").read_text()))
    assert results[1] == pytest.approx(results[0], rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("size", [1, 2])
def test_a_second_model_that_is_not_registered_ends_the_run_at_once(
    tmp_path: Path, template: TemplateProcess, size: int
) -> None:
    with Controller(tmp_path, template) as c:
        ids = c.start(GAN, ["alone"], count=size)
        c.warm(ids)
        c.commit_only(ids)
        failed = c.failed(ids[0])
    assert failed.code == "BFT-1422"
    assert "SGD" in failed.cause
    assert "elastic.Run([" in failed.next_step


# ---- in this process -------------------------------------------------------------------

Body = Callable[[Run, nn.Module, torch.optim.Optimizer], None]


def train(body: Body, *, wrap: Callable[[Any], Any] = lambda o: o) -> None:
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(20, 4), torch.randn(20, 1))
    run = Run(net, wrap(optimizer), DataLoader(data, batch_size=5), epochs=1)
    for _ in run.epochs():
        for x, y in run.batches():
            optimizer.zero_grad()
            nn.functional.mse_loss(net(x), y).backward()
            body(run, net, optimizer)
            run.step()


def test_a_script_that_also_calls_step_of_its_optimizer_is_told() -> None:
    with pytest.raises(ElasticError, match=r"which run\.step\(\) does") as refused:
        train(lambda _run, _net, optimizer: optimizer.step())
    assert refused.value.code == "BFT-1422"
    assert "scaler.step(optimizer)" in refused.value.next_step


def test_an_optimizer_that_lives_for_one_batch_is_the_scripts_own() -> None:
    def perturb(_run: Run, _net: nn.Module, _optimizer: torch.optim.Optimizer) -> None:
        delta = torch.zeros(4, requires_grad=True)
        inner = torch.optim.Adam([delta])
        for _ in range(3):
            inner.zero_grad()
            (delta - 1).square().sum().backward()
            inner.step()

    train(perturb)


def test_one_that_steps_inside_the_registered_one_is_part_of_it() -> None:
    class Lookahead:
        """Wraps another optimizer, as several libraries do."""

        def __init__(self, inner: torch.optim.Optimizer) -> None:
            self.inner = inner
            self.param_groups = inner.param_groups
            self.state_dict, self.load_state_dict = inner.state_dict, inner.load_state_dict

        def step(self) -> None:
            self.inner.step()

    train(lambda *_: None, wrap=Lookahead)


def test_after_the_loops_optimizers_are_the_scripts_own() -> None:
    train(lambda *_: None)
    weight = torch.zeros(2, requires_grad=True)
    probe = torch.optim.SGD([weight], lr=0.1)
    for _ in range(3):
        weight.sum().backward()
        probe.step()


@pytest.mark.parametrize(
    ("wrap", "cause"),
    [
        (lambda o: {"opt": o}, "is a dict"),
        (lambda o: [o, "adam"], "is a str"),
        (lambda _: [], "is empty"),
        (lambda o: torch.optim.LBFGS(o.param_groups[0]["params"]), "needs a closure"),
    ],
)
def test_what_is_no_optimizer_is_refused(wrap: Callable[[Any], Any], cause: str) -> None:
    with pytest.raises(ElasticError, match=cause) as refused:
        train(lambda *_: None, wrap=wrap)
    assert refused.value.code == "BFT-1401"


def test_a_list_of_one_optimizer_is_that_optimizer() -> None:
    train(lambda *_: None, wrap=lambda o: [o])


def test_what_is_no_model_is_refused() -> None:
    given: Any = {"model": nn.Linear(1, 1)}
    with pytest.raises(ElasticError, match="is a dict") as refused:
        Run(given, torch.optim.SGD([torch.zeros(1)]), DataLoader([1]), epochs=1)  # type: ignore[arg-type]
    assert refused.value.code == "BFT-1401"
