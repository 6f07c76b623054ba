"""Values that all members compute together: at every size, over losses, and never for ever."""

from __future__ import annotations

import collections
import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bftrainer.elastic import ElasticError
from bftrainer.elastic.network.shared_values import (
    MAX,
    MEAN,
    SUM,
    Contribution,
    combined,
    numbers_in,
)
from bftrainer.ground.protocol import Failed
from tests.elastic import journal
from tests.elastic.controller import SCRIPTS, Controller, TemplateProcess, settings_of

TRAIN = SCRIPTS / "train_together.py"
VALUES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=6)


def _given(kind: str, values: list[float], weights: list[float] | None = None) -> float:
    weights = weights or [1.0] * len(values)
    pairs = zip(values, weights, strict=True)
    (value,) = combined(
        [
            Contribution(number=0, step=0, place="", kind=kind, values=(v,), weight=w)
            for v, w in pairs
        ]
    )
    return value


@given(values=VALUES)
def test_mean_sum_and_maximum_are_those_of_exact_arithmetic(values: list[float]) -> None:
    assert _given(SUM, values) == pytest.approx(math.fsum(values), abs=1e-6)
    assert _given(MEAN, values) == pytest.approx(math.fsum(values) / len(values), abs=1e-6)
    assert _given(MAX, values) == max(values)


def test_a_mean_is_weighted_and_what_weighs_nothing_may_be_nan() -> None:
    assert _given(MEAN, [1.0, 4.0, math.nan], [2.0, 1.0, 0.0]) == 2.0
    assert math.isnan(_given(MEAN, [1.0, 2.0], [0.0, 0.0]))
    assert math.isnan(_given(MAX, [math.nan, 1.0]))
    assert math.isnan(_given(MAX, [1.0, math.nan]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_tensors_keep_their_shape_and_type(dtype: torch.dtype) -> None:
    value = torch.arange(6, dtype=dtype).reshape(2, 3)
    numbers, remade = numbers_in(value)
    assert torch.equal(remade(numbers), value)
    assert remade(numbers).dtype == dtype


@pytest.mark.parametrize(
    "value", ["a", None, torch.zeros(5000), torch.zeros(2, dtype=torch.cfloat)]
)
def test_other_values_are_refused(value: Any) -> None:
    with pytest.raises(ElasticError) as refused:
        numbers_in(value)
    assert refused.value.code == "BFT-1436"


def _called(directory: Path, place: str) -> list[journal.Entry]:
    return [e for e in journal.entries(directory, "called") if e["place"] == place]


def _called_beside(directory: Path, lost_pid: int, place: str) -> list[journal.Entry]:
    """Return the calls of all members but the last call of the lost one.

    The lost member may have been the only one that had that result: then those that remain repeat
    the call without it. Every earlier call of it was complete, since a member makes its next call
    only after it has the result of this one.
    """
    of_lost = [e for e in journal.of_process(directory, lost_pid) if e["kind"] == "called"]
    called = _called(directory, place)
    if of_lost and of_lost[-1]["place"] == place:
        called.remove(of_lost[-1])
    return called


def _common(entries: list[journal.Entry], *fields: str) -> dict[Any, Any]:
    """Return the one value at each point; it is the same on all workers."""
    values: dict[Any, list[Any]] = collections.defaultdict(list)
    for entry in entries:
        values[tuple(entry[f] for f in fields)].append(entry["value"])
    for point, of_all in values.items():
        assert all(value == of_all[0] for value in of_all), (point, of_all)
    return {point: of_all[0] for point, of_all in values.items()}


def test_the_mean_of_an_epoch_is_that_of_one_process(
    tmp_path: Path, template: TemplateProcess
) -> None:
    """Batches of 8 over 3 workers and a last one of 2: one worker has no part in it."""
    means: list[dict[Any, Any]] = []
    for count in (1, 3):
        place = tmp_path / str(count)
        place.mkdir()
        with Controller(place, template) as c:
            c.begin(TRAIN, settings_of(plateau=True), count=count)
            c.finished()
        means.append(_common(_called(place, "epoch"), "epoch"))
    assert len(means[0]) == 4
    for epoch, (mean, n) in means[0].items():
        assert means[1][epoch] == [pytest.approx(mean, rel=1e-4, abs=1e-7), n]
        assert n == 50


def test_calls_within_batches_are_those_of_the_workers_that_have_samples(
    tmp_path: Path, template: TemplateProcess
) -> None:
    with Controller(tmp_path, template) as c:
        c.begin(TRAIN, settings_of(in_batch=True, epochs=2), count=3)
        c.finished()
    before = _common(_called(tmp_path, "before"), "step")
    assert {at: v for (at,), v in before.items()} == {
        step: 3.0 if step % 7 == 6 else 6.0 for step in range(14)
    }
    after = _common(_called(tmp_path, "after"), "step")
    assert {at: v for (at,), v in after.items()} == {
        step: [1.0, -1.0] if step % 7 == 0 else [2.0, -1.0] for step in range(1, 15)
    }


def test_members_that_come_and_go_compute_the_same(
    tmp_path: Path, template: TemplateProcess
) -> None:
    settings = settings_of(epochs=60, plateau=True, in_batch=True, delay_s=0.01)
    with Controller(tmp_path, template) as c:
        ids = c.start(TRAIN, settings, count=3)
        c.form(ids[:1], new=ids)
        for members in (ids[:2], ids, ids[1:]):
            c.trained_to(journal.last_step(tmp_path) + 12)
            c.form(members)
        c.trained_to(journal.last_step(tmp_path) + 12)
        lost_pid = c.workers[ids[1]].pid
        c.kill(ids[1])
        c.until(lambda: c.workers[ids[1]].returncode is not None, "death noticed")
        c.form(ids[2:], abandon=True)
        c.trained_to(journal.last_step(tmp_path) + 12)
        for worker in c.workers.values():
            assert not worker.all(Failed), c.logs()
    _common(_called_beside(tmp_path, lost_pid, "epoch"), "generation", "epoch")
    _common(_called_beside(tmp_path, lost_pid, "before"), "generation", "step")


@pytest.mark.parametrize("victim", [0, 2], ids=["the first", "another"])
def test_those_that_remain_repeat_a_call_in_which_a_member_was_lost(
    tmp_path: Path, template: TemplateProcess, victim: int
) -> None:
    """The first computes on while others wait in the call; it, or one that waits, is killed."""
    settings = settings_of(epochs=3, hang_at=2, plateau=True)
    with Controller(tmp_path, template) as c:
        ids = c.begin(TRAIN, settings, count=3)
        c.until(lambda: len(journal.entries(tmp_path, "at the call")) == 3, "all but one wait")
        c.kill(ids[victim])
        c.until(lambda: c.workers[ids[victim]].returncode is not None, "death noticed")
        rest = [i for i in ids if i != ids[victim]]
        port = c.prepare(rest)
        c.commit(rest, port, abandon=True)
        (tmp_path / "go").touch()
        c.entered(rest)
        c.finished()
    calls = [e for e in _called(tmp_path, "epoch") if e["epoch"] == 1]
    assert len(calls) == 2
    assert calls[0]["value"] == calls[1]["value"]
    rates = {e["lr"] for e in journal.entries(tmp_path, "epoch") if e["epoch"] == 2}
    assert len(rates) == 1


def test_a_call_waits_for_a_member_that_is_slow(tmp_path: Path, template: TemplateProcess) -> None:
    with Controller(tmp_path, template) as c:
        c.begin(TRAIN, settings_of(epochs=2, slow_s=3.0), count=2)
        c.finished()
    assert len(_common(_called(tmp_path, "epoch"), "epoch")) == 2


@pytest.mark.parametrize("place", ["epoch", "batch"])
def test_a_call_on_one_worker_alone_ends_with_both_places(
    tmp_path: Path, template: TemplateProcess, place: str
) -> None:
    with Controller(tmp_path, template) as c:
        ids = c.begin(TRAIN, settings_of(first_alone=place), count=2)
        failed = c.failed(ids[0])
    assert failed.code == "BFT-1437"
    lines = TRAIN.read_text().splitlines()
    call = "mean = run.mean(" if place == "epoch" else "run.mean(1.0)"
    numbers = [next(n for n, line in enumerate(lines, 1) if text in line)
               for text in (call, "loss.backward()")]  # fmt: skip
    assert f"run.mean() (train_together.py:{numbers[0]})" in failed.cause
    assert f"an update (train_together.py:{numbers[1]})" in failed.cause


def test_a_call_before_the_loops_is_refused() -> None:
    from bftrainer import elastic

    model = torch.nn.Linear(2, 1)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(4, 2)))
    run = elastic.Run(model, torch.optim.SGD(model.parameters()), loader, epochs=1)
    with pytest.raises(ElasticError, match=r"run\.epochs") as refused:
        run.mean(1.0)
    assert refused.value.code == "BFT-1405"
    for _, (batch,) in itertools.product(run.epochs(), run.batches()):
        model(batch).sum().backward()
        run.step()
        assert run.mean(3) == 3.0
        assert run.updates_per_epoch == 4
