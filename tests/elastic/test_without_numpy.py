"""Torch does not need numpy, and an environment may have it without."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from bftrainer.elastic.data.sample_prints import print_of
from bftrainer.elastic.process.store import StoreServer
from tests.elastic.controller import SCRIPTS, Controller, TemplateProcess
from tests.elastic.scripts import pretended
from tests.support.pairs import group_of

TRAIN = SCRIPTS / "train_ids.py"


@pytest.fixture
def _no_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    def numpy(_: torch.Tensor) -> None:
        raise RuntimeError("Numpy is not available")

    monkeypatch.setattr(torch.Tensor, "numpy", numpy)


@pytest.mark.usefixtures("_no_numpy")
def test_members_prove_themselves(store: StoreServer) -> None:
    groups = group_of(store, 1, [pretended.NO_GPU] * 2)
    assert [group.size for group in groups] == [2, 2]
    for group in groups:
        group.drop()
    assert all(group.is_gone(60.0) for group in groups)


@pytest.mark.usefixtures("_no_numpy")
def test_samples_are_compared() -> None:
    sample, other = torch.arange(7), torch.arange(1, 8)
    assert print_of(sample) == print_of(sample.clone()) != print_of(other)
    assert print_of((sample > 2, [sample[:0]])) == print_of((sample > 2, [sample[:0]]))


@pytest.mark.long
def test_it_trains_and_is_rescaled(tmp_path: Path) -> None:
    places = tmp_path / "places"
    places.mkdir()
    (places / "numpy.py").write_text("raise ModuleNotFoundError('hidden by a test')\n")
    environment = {"PYTHONPATH": str(places)}
    settings = json.dumps({"optimizer": "sgd"})
    with TemplateProcess(tmp_path, environment=environment) as own, Controller(tmp_path, own) as c:
        first = c.start(TRAIN, [settings], epochs=40)
        c.form(first, new=first)
        more = c.start(TRAIN, [settings], epochs=40)
        c.form([*first, *more], new=more)
        assert {one.samples for one in c.finished()} == {203 * 40}
