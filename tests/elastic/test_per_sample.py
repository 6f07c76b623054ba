"""State that belongs to the places of a batch: it moves with them, whatever the size."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bftrainer.elastic import ElasticError, PerSample, PerWorkerBatch, Run
from tests.elastic import journal
from tests.elastic.controller import SCRIPTS, Controller, TemplateProcess

ROWS = SCRIPTS / "train_rows.py"


def _calm(directory: Path, template: TemplateProcess) -> journal.Entry:
    directory.mkdir()
    with Controller(directory, template) as c:
        c.begin(ROWS, ["3", "0", "0", "[]"])
        c.finished()
    return journal.result(directory)


@pytest.mark.parametrize(
    "most", [0, pytest.param(2, marks=pytest.mark.long)], ids=["one pass", "several passes"]
)
def test_rows_are_those_of_one_worker_through_rescales_and_a_death(
    tmp_path: Path, template: TemplateProcess, most: int
) -> None:
    calm, wild = _calm(tmp_path / "calm", template), tmp_path / "wild"
    wild.mkdir()
    with Controller(wild, template) as c:
        holds = "[[4, 2], [8, 3], [20, 4], [30, 5]]"  # of 13 steps in each epoch
        ids = c.start(ROWS, ["3", str(most), "0", holds], count=4)
        c.form(ids[:1], new=ids)
        c.trained_to(3)
        c.form(ids[:3])
        c.trained_to(7)
        c.kill(ids[0])
        c.until(lambda: c.workers[ids[0]].returncode is not None, "death noticed")
        c.form(ids[1:3], abandon=True)
        c.trained_to(19)
        c.form(ids[1:])
        c.trained_to(29)
        c.form(ids[3:])
        c.finished([ids[3]])
    found = journal.result(wild)
    assert found["steps"] == calm["steps"] == 39
    for name in ("parameters", "rows"):
        torch.testing.assert_close(
            torch.tensor(found[name]), torch.tensor(calm[name]), rtol=1e-4, atol=1e-6
        )
    assert torch.tensor(calm["rows"]).abs().min() > 0


@pytest.mark.long
def test_more_workers_than_places(tmp_path: Path, template: TemplateProcess) -> None:
    calm, wild = _calm(tmp_path / "calm", template), tmp_path / "wild"
    wild.mkdir()
    with Controller(wild, template) as c:
        c.begin(ROWS, ["3", "0", "0", "[]"], count=7)
        c.finished()
    torch.testing.assert_close(
        torch.tensor(journal.result(wild)["rows"]),
        torch.tensor(calm["rows"]),
        rtol=1e-4,
        atol=1e-6,
    )


def _run(store: PerSample, **more: object) -> Run:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.randn(10, 2)), batch_size=4)
    return Run(model, optimizer, loader, extra={"rows": store}, epochs=1, **more)  # type: ignore[arg-type]


def test_the_last_batch_may_be_short_and_rows_that_are_not_set_stay() -> None:
    store = PerSample(torch.arange(4.0))
    run = _run(store)
    shapes = []
    for _ in run.epochs():
        for (x,) in run.batches():
            shapes.append(len(store.rows))
            run._state.model(x).sum().backward()
            if run.step_count != 1:
                store.rows = store.rows + 10
            run.step()
    assert shapes == [4, 4, 2]
    assert store.state_dict()["rows"].tolist() == [20.0, 21.0, 12.0, 13.0]


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ElasticError, match="3 rows, the global batch 4"):
        _run(PerSample(torch.zeros(3, 2)))
    with pytest.raises(ElasticError, match="same at every size") as refused:
        _run(PerSample(torch.zeros(4, 2)), batch=PerWorkerBatch())
    assert refused.value.code == "BFT-1427"
    store = PerSample(torch.zeros(4, 2))
    run = _run(store)
    next(iter(run.epochs()))
    next(iter(run.batches()))
    with pytest.raises(ElasticError, match=r"shape \(4, 3\)"):
        store.rows = torch.zeros(4, 3)
