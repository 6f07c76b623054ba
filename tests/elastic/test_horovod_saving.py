"""A Horovod state on disk and back, with Horovod's own classes."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from bftrainer.elastic.checkpoints import checkpoint
from bftrainer.elastic.horovod.session import Counts, Saver
from bftrainer.elastic.process.control import Control
from bftrainer.elastic.process.reports import Reports
from bftrainer.ground.errors import ElasticError
from bftrainer.ground.fence import Fence, path_for
from bftrainer.ground.protocol import Report, WorkerConfig

pytestmark = pytest.mark.skipif(find_spec("horovod") is None, reason="make horovod builds it")

FENCE = Fence(incarnation=1, generation=3, token="")


def build(seed: int, **more: Any) -> Any:
    """Return a state as scripts build it; its objects differ by seed."""
    elastic: Any = importlib.import_module("horovod.torch.elastic")
    torch.manual_seed(seed)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1 * (seed + 1))
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2)
    values = {"epoch": seed, "seen": [seed, seed + 1], "schedule": schedule, **more}
    return elastic.TorchState(model=model, optimizer=optimizer, **values)


def step(state: Any) -> None:
    state.model(torch.ones(4, 3)).sum().backward()
    state.optimizer.step()
    state.schedule.step()


def saver(directory: Path, counts: Counts, reports: Reports | None = None) -> Saver:
    config = WorkerConfig(
        trainer_id="t1", worker_id="w1", node="n", script="s", checkpoint_dir=str(directory)
    )
    return Saver(Control(config, None), counts, reports or Reports())


def test_what_was_committed_comes_back_and_nothing_later(tmp_path: Path) -> None:
    counts = Counts()
    state = build(0)
    counts.watch(state)
    for _ in range(3):
        step(state)
    state.epoch = 5
    state.save()
    counts.commit()
    expected = {k: v.clone() for k, v in state.model.state_dict().items()}
    momentum = state.optimizer.state_dict()["state"][0]["exp_avg"].clone()
    assert (counts.step, counts.samples) == (3, 12)
    step(state)  # not committed any more
    reports, found = Reports(), Reports()
    reports.add(Report(value=-0.5, step=3, epoch=5, samples=12))
    saver(tmp_path, counts, reports).save_now(state, FENCE)
    other = build(1)
    path, at_step, samples = saver(tmp_path, Counts(), found).load(other)
    assert found.kept == reports.kept
    assert Path(path).is_file()
    assert (at_step, samples) == (3, 12)
    assert (other.epoch, other.seen) == (5, [0, 1])
    assert all(torch.equal(v, expected[k]) for k, v in other.model.state_dict().items())
    assert torch.equal(other.optimizer.state_dict()["state"][0]["exp_avg"], momentum)
    # Horovod commits an object of the script's own by reference: it is as it was when written.
    assert other.schedule.state_dict()["last_epoch"] == 4


def test_evaluation_and_rehearsals_without_gradients_do_not_count(tmp_path: Path) -> None:
    counts = Counts()
    state = build(0)
    counts.watch(state)
    with torch.no_grad():
        state.model(torch.ones(50, 3))
    state.model.eval()
    state.model(torch.ones(50, 3))
    state.model.train()
    step(state)
    assert counts.samples == 4


def test_an_empty_directory_leaves_what_the_script_built(tmp_path: Path) -> None:
    state = build(2)
    assert saver(tmp_path, Counts()).load(state) == ("", 0, 0)
    assert state.epoch == 2


@pytest.mark.parametrize("foreign", ["other names", "another model", "not horovod"])
def test_a_foreign_checkpoint_is_refused(tmp_path: Path, foreign: str) -> None:
    if foreign == "not horovod":
        checkpoint.write(path_for(tmp_path, 1, 1), {"layout": 7}, [])
        state = build(0)
    else:
        saver(tmp_path, Counts()).save_now(build(0), FENCE)
        state = build(0, best=1.0) if foreign == "other names" else build(0)
    if foreign == "another model":
        state.model = torch.nn.Linear(5, 5)
    with pytest.raises(ElasticError) as caught:
        saver(tmp_path, Counts()).load(state)
    assert caught.value.code == "BFT-1408"


def test_an_object_that_cannot_be_written_without_pickle_is_named(tmp_path: Path) -> None:
    with pytest.raises(ElasticError, match="helper") as caught:
        saver(tmp_path, Counts()).save_now(build(0, helper=object()), FENCE)
    assert caught.value.code == "BFT-1407"
