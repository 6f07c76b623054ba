"""A trial's budget grows rung by rung: it ends as if it had been trained in one go."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from bftrainer.ground.protocol import Reported
from tests.elastic import journal
from tests.elastic.controller import SCRIPTS, Controller, TemplateProcess

TRAIN = SCRIPTS / "train_ids.py"
SAMPLES = 101  # of an epoch; the last batch is short
SETTINGS = {
    "samples": SAMPLES,
    "batch": 16,
    "optimizer": "sgd",
    "per_epoch": True,
    "report": "all",
}
RANDOM = {"dropout": 0.3, "noisy": True, "logical": 4}


def train(
    directory: Path,
    template: TemplateProcess,
    settings: dict[str, Any],
    rungs: Iterable[tuple[int, dict[str, Any]]],
) -> Reported:
    """Train to each budget, at its size; return the last message of reports."""
    directory.mkdir()
    with Controller(directory, template) as c:
        for size, budget in rungs:
            ids = c.begin(TRAIN, [json.dumps({**SETTINGS, **settings})], count=size, **budget)
            c.finished()
            assert not any(c.workers[i].all(Reported) for i in ids[1:]), "only rank 0's are sent"
        return c.workers[ids[0]].all(Reported)[-1]


@pytest.mark.parametrize(
    ("budgets", "sizes", "settings"),
    [
        pytest.param([{"epochs": n} for n in (1, 3, 9)], (1, 2, 2), RANDOM, marks=pytest.mark.long),
        pytest.param(
            [{"samples": n * SAMPLES} for n in (1, 3, 9)], (2, 1, 2), RANDOM, marks=pytest.mark.long
        ),
        ([{"samples": n} for n in (48, 149, 436)], (2, 2, 1), RANDOM),  # after a batch
        pytest.param([{"epochs": n} for n in (1, 3, 9)], (2, 2, 2), {}, marks=pytest.mark.long),
    ],
    ids=["epochs", "whole-epochs", "samples", "not-bitwise"],
)
def test_rungs_give_the_bits_of_one_go(
    tmp_path: Path,
    template: TemplateProcess,
    budgets: list[dict[str, int]],
    sizes: tuple[int, ...],
    settings: dict[str, Any],
) -> None:
    at_once, rungs = tmp_path / "at-once", tmp_path / "rungs"
    whole = train(at_once, template, settings, [(sizes[-1], budgets[-1])])
    grown = train(rungs, template, settings, zip(sizes, budgets, strict=True))
    assert journal.result(rungs) == journal.result(at_once)
    counts = journal.committed_ids(rungs)
    assert {n for ids in counts.values() for n in ids.values()} == {1}
    assert sum(map(len, counts.values())) == journal.result(at_once)["samples"]
    # A budget that ends within an epoch adds a report there.
    assert set(grown.reports) >= set(whole.reports)
    ends = {budget.get("samples", SAMPLES) for budget in budgets}
    assert {r.samples for r in grown.reports} == {r.samples for r in whole.reports} | ends
    assert all(r.epoch == r.samples // SAMPLES for r in grown.reports)
    assert len(whole.reports) == -(-journal.result(at_once)["samples"] // SAMPLES)
