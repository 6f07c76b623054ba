"""Metrics that a script reports: which count, and that none is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bftrainer import elastic
from bftrainer.elastic.hooks import optuna
from bftrainer.elastic.process import control as control_module
from bftrainer.ground.protocol import Reported
from tests.elastic import journal
from tests.elastic.controller import SCRIPTS, Controller, TemplateProcess
from tests.support.pruned import TrialPruned

TRAIN = SCRIPTS / "train_ids.py"


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be a process of its own as far as the runtime can tell."""
    monkeypatch.setattr(control_module, "_current", [])


def run_of(**more: Any) -> elastic.Run:
    """Return a run of epochs of two batches, of 6 and 4 samples."""
    net = nn.Linear(4, 1)
    data = TensorDataset(torch.randn(10, 4), torch.randn(10, 1))
    loader = DataLoader(data, batch_size=6, shuffle=True)
    return elastic.Run(net, torch.optim.SGD(net.parameters(), lr=0.1), loader, **more)


def step(run: elastic.Run, batch: Any) -> bool:
    x, y = batch
    nn.functional.mse_loss(run._state.model(x), y).backward()
    return run.step()


def kept(run: elastic.Run) -> list[tuple[float, int, int, int]]:
    return [(r.value, r.step, r.epoch, r.samples) for r in run._membership.reports.kept]


@pytest.mark.usefixtures("plain")
def test_a_report_is_of_the_updates_and_complete_epochs_until_then(
    capfd: pytest.CaptureFixture[str],
) -> None:
    run = run_of(epochs=2)
    run.report(1.0)  # before the first batch
    for epoch in run.epochs():
        for batch in run.batches():
            assert step(run, batch)
            run.report(-run.step_count)
        run.report(torch.tensor(10.0 + epoch))  # in place of the one after its last batch
    assert kept(run) == [(-1, 1, 0, 6), (10, 2, 1, 10), (-3, 3, 1, 16), (11, 4, 2, 20)]
    elastic.report(5)  # after the loops, by the function for scripts without a run
    assert kept(run)[-2:] == [(-3, 3, 1, 16), (5, 4, 2, 20)]
    optuna.trial().report(4.0, step=99)
    assert kept(run)[-1] == (4, 4, 2, 20)
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("plain")
def test_an_objective_that_ends_its_trial_completes_the_run() -> None:
    run = run_of(epochs=3)

    def objective(trial: optuna.Trial) -> float:
        for epoch in run.epochs():
            for batch in run.batches():
                step(run, batch)
            trial.report(0.5, epoch)
            if epoch == 1:
                raise TrialPruned
        return 0.0

    optuna.run(objective)
    assert kept(run) == [(0.5, 2, 1, 10), (0.5, 4, 2, 20)]
    control_module.current().script_ended()
    assert control_module.current().is_over


@pytest.mark.usefixtures("plain")
def test_what_is_reported_in_a_pass_that_is_not_the_last_is_of_no_update() -> None:
    run = run_of(epochs=1, batch=elastic.GlobalBatch(max_per_worker=2))
    for _ in run.epochs():
        for batch in run.batches():
            is_committed, before = step(run, batch), kept(run)
            run.report(is_committed)
            assert (kept(run) != before) is is_committed
    assert kept(run) == [(1, 1, 0, 6), (1, 2, 1, 10)]


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize(
    "value", [float("nan"), float("-inf"), "low", None, torch.ones(2), 10**400]
)
def test_what_is_no_finite_number_ends_the_script(value: Any) -> None:
    run = run_of(epochs=1)
    for _ in run.epochs():
        for batch in run.batches():
            step(run, batch)
            with pytest.raises(elastic.ElasticError) as refused:
                run.report(value)
            assert refused.value.code == "BFT-1611"
    assert kept(run) == []


def places(said: Reported) -> list[tuple[int, int]]:
    return [(r.epoch, r.samples) for r in said.reports]


def has_reported(c: Controller, worker_id: str, epoch: int) -> bool:
    return any(m.reports[-1].epoch == epoch for m in c.workers[worker_id].all(Reported))


@pytest.mark.parametrize("who", ["all", "first"])
def test_reports_are_said_again_in_the_next_generation_and_after_a_restart(
    tmp_path: Path, template: TemplateProcess, who: str
) -> None:
    settings = {"samples": 32, "batch": 16, "epochs": 6, "report": who, "holds": [[5, 2], [9, 3]]}
    with Controller(tmp_path, template) as c:
        a, b = c.start(TRAIN, [json.dumps(settings)], count=2)
        c.form([a, b], new=[a, b])
        c.until(lambda: has_reported(c, a, 2), "two epochs")
        c.form([b, a])  # another one is the first now
        c.until(lambda: has_reported(c, b, 4), "four epochs")
        c.form([a, b])
        c.finished()
        first, second = (c.workers[i].all(Reported) for i in (a, b))
        later = c.start(TRAIN, [json.dumps(settings)], epochs=7)
        c.warm(later)
        assert not c.workers[later[0]].all(Reported), "a rehearsal reports nothing"
        c.form(later)
        c.finished()
        again = c.workers[later[0]].all(Reported)
        assert again[0].generation == c.generation
    whole = [(n, 32 * n) for n in range(1, 7)]
    assert [places(m) for m in first[:2]] == [whole[:1], whole[:2]]
    if who == "all":  # each generation begins with all reports so far
        assert [places(m) for m in second] == [whole[:2], whole[:3], whole[:4]]
        assert [places(m) for m in first[2:]] == [whole[:4], whole[:5], whole]
        assert [places(m) for m in again] == [whole, [*whole, (7, 224)]]
    else:  # who was not the first has none of before
        assert [places(m) for m in second] == [whole[2:3], whole[2:4]]
        assert [places(m) for m in first[2:]] == [whole[:2], [*whole[:2], *whole[4:5]], [
            *whole[:2], *whole[4:]]]  # fmt: skip
        assert places(again[0]) == [*whole[:2], *whole[4:]]
    assert journal.disagreements(tmp_path, "hash") == []
