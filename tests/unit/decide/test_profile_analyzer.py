"""Scaling predicted from one worker and an all-reduce table."""

from __future__ import annotations

import math

import pytest

from bftrainer.decide.throughput.analyzer import (
    AllreduceTable,
    StepTimes,
    predict,
    table_document,
    table_from,
)
from bftrainer.model.errors import UsageError

TABLE = AllreduceTable(
    weights=(100, 1000, 10_000),
    workers=(2, 4),
    seconds=((0.001, 0.002, 0.011), (0.003, 0.005, 0.019)),
)
STEPS = StepTimes(
    weights=1000, global_batch=64, batches=(8, 16, 32, 64), seconds=(0.01, 0.02, 0.04, 0.08)
)


def test_the_table_is_interpolated() -> None:
    assert TABLE.time_s(1000, 1) == 0.0
    assert TABLE.time_s(1000, 2) == 0.002
    assert TABLE.time_s(5500, 2) == pytest.approx(0.0065)
    assert TABLE.time_s(1000, 3) == pytest.approx(0.002 + 0.003 * (math.log2(3) - 1))


def test_beyond_the_table_time_grows_as_it_did_last() -> None:
    assert TABLE.time_s(1000, 16) == pytest.approx(0.005 + 2 * 0.003)
    assert TABLE.time_s(100_000, 2) == pytest.approx(0.11)
    falls = AllreduceTable(weights=(1,), workers=(2, 4), seconds=((0.02,), (0.01,)))
    assert falls.time_s(1, 8) == 0.01


def test_the_formula_of_the_paper() -> None:
    curve = predict(STEPS, TABLE, (1, 2, 4, 8))
    assert curve.sizes == (1, 2, 4, 8)
    assert curve.samples_per_s == pytest.approx(
        (64 / 0.08, 64 / (0.04 + 0.002), 64 / (0.02 + 0.005), 64 / (0.01 + 0.008))
    )


def test_updates_that_grow_with_the_workers() -> None:
    grows = StepTimes(
        weights=1000, global_batch=64, is_per_worker=True, batches=(64,), seconds=(0.08,)
    )
    curve = predict(grows, TABLE, (1, 4))
    assert curve.samples_per_s == pytest.approx((800.0, 256 / 0.085))


def test_steps_of_other_sizes_are_interpolated() -> None:
    assert STEPS.time_s(24) == pytest.approx(0.03)
    assert STEPS.time_s(128) == pytest.approx(0.16)
    assert STEPS.time_s(1) == 0.005  # half of the least: nobody has measured it


def test_what_is_written_is_read() -> None:
    assert table_from(table_document(TABLE, {"host": "a"}), "t.json") == TABLE


@pytest.mark.parametrize(
    "data",
    [
        [],
        {},
        {"weights": [1], "workers": [2], "seconds": []},
        {"weights": [1], "workers": [2], "seconds": [[1, 2]]},
        {"weights": [1], "workers": [1], "seconds": [[1]]},
        {"weights": [2, 1], "workers": [2], "seconds": [[1, 1]]},
        {"weights": [1], "workers": [2], "seconds": [[-1]]},
        {"weights": [1], "workers": [2], "seconds": [["x"]]},
        {"weights": [], "workers": [2], "seconds": [[]]},
    ],
    ids=str,
)
def test_other_files_are_refused(data: object) -> None:
    with pytest.raises(UsageError) as refused:
        table_from(data, "t.json")
    assert refused.value.code == "BFT-4202"


def test_all_replicas_of_a_node_exchange_gradients() -> None:
    whole = StepTimes(weights=1000, global_batch=64, batches=(64,), seconds=(0.08,), replicas=2)
    curve = predict(whole, TABLE, (1, 2))
    assert curve.samples_per_s == pytest.approx((64 / 0.082, 64 / 0.085))
