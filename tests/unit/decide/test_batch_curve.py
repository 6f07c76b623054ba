"""The best batch of each size, from measured throughput and noise."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from bftrainer.decide.throughput.batch_curve import batches_of
from bftrainer.decide.throughput.curves import fitted
from bftrainer.fleet.trainers.costs import learn_noise, learn_throughput
from bftrainer.ground.protocol import Progress
from bftrainer.model.trainer import (
    BatchRange,
    MeasuredCosts,
    SizeThroughput,
    TrainerProgress,
    TrainerRecord,
    TrainerSpec,
    TrainerState,
)
from milp.worth import curve_at

LINEAR = BatchRange(least=128, most=1024, per_worker=64, lr_rule="linear")


def true_rate(batch: int, workers: int, fixed_s: float = 0.01) -> float:
    """Samples per second of an invented trainer; each sample takes 1 ms."""
    return batch / (fixed_s + 0.001 * math.ceil(batch / workers) + 0.004 * math.log2(workers))


def measured(*pairs: tuple[int, int], fixed_s: float = 0.01) -> MeasuredCosts:
    rates = tuple((n, b, true_rate(b, n, fixed_s)) for n, b in sorted(pairs))
    return MeasuredCosts(
        samples_per_s_by_batch=rates,
        throughput=tuple(SizeThroughput(size=n, batch=b, told_error=0.01) for n, b, _ in rates),
    )


def record(batch: BatchRange, costs: MeasuredCosts | None = None, each: int = 1) -> TrainerRecord:
    spec = TrainerSpec(
        name="a", user="u", script="/a", n_max=16, workers_per_node=each, batch=batch
    )
    return TrainerRecord(
        trainer_id="t1", spec=spec, state=TrainerState.RUNNING, submitted_s=0.0,
        costs=costs or MeasuredCosts(),
    )  # fmt: skip


def best_of_all(bounds: BatchRange, workers: int, noise: float | None, fixed_s: float) -> int:
    def worth(batch: int) -> float:
        rate = true_rate(batch, workers, fixed_s)
        return rate if noise is None else rate * (noise + bounds.least) / (noise + batch)

    tried = range(bounds.least, min(bounds.most, workers * bounds.per_worker) + 1)
    return max(tried, key=lambda batch: (worth(batch), -batch))


def test_before_any_measurement_the_workers_are_full() -> None:
    assert batches_of(record(LINEAR), 5) == (128, 128, 192, 256, 320)
    assert batches_of(record(LINEAR, each=2), 3) == (128, 256, 384)


def test_too_few_and_too_many_workers_have_a_batch_too() -> None:
    bounds = BatchRange(least=100, most=104, per_worker=30, lr_rule="linear")
    few = batches_of(record(bounds), 3)
    assert few == (100, 100, 100)  # in passes of at most 30
    assert batches_of(record(replace(bounds, least=1, most=2)), 3)[-1] == 2


@pytest.mark.parametrize("fixed_s", [0.0, 0.01, 0.1])
@pytest.mark.parametrize("noise", [None, 50.0, 1000.0, 1e5])
def test_the_choice_costs_little_beside_the_best_of_all(
    noise: float | None, fixed_s: float
) -> None:
    """The model knows four measurements only; what it chooses is within 3% everywhere."""
    bounds = replace(LINEAR, lr_rule="linear" if noise is None else "adascale")
    costs = measured((1, 64), (2, 128), (4, 256), (4, 128), fixed_s=fixed_s)
    costs = replace(costs, noise_scale=noise or 0.0)
    for size, batch in enumerate(batches_of(record(bounds, costs), 16), start=1):
        if size * bounds.per_worker < bounds.least:
            continue

        def worth(b: int, n: int = size) -> float:
            rate = true_rate(b, n, fixed_s)
            return rate if noise is None else rate * (noise + bounds.least) / (noise + b)

        assert worth(batch) >= 0.97 * worth(best_of_all(bounds, size, noise, fixed_s))


def test_126_beats_128_on_7_workers() -> None:
    bounds = BatchRange(least=100, most=128, per_worker=64, lr_rule="linear")
    costs = measured((1, 64), (2, 128), (4, 128), fixed_s=0.0)
    assert batches_of(record(bounds, costs), 7)[-1] == 126


def test_until_the_noise_is_known_the_least_batch_is_the_best() -> None:
    bounds = replace(LINEAR, lr_rule="adascale")
    assert set(batches_of(record(bounds), 4)) <= {128, 129}
    costs = learn_noise(MeasuredCosts(), _said(3000.0))
    assert batches_of(record(bounds, costs), 8)[-1] > 128
    assert learn_noise(costs, _said(3300.0)) is costs  # less than decisions need to know
    assert learn_noise(costs, _said(0.0)) is costs


def _said(noise: float) -> Progress:
    return Progress(
        generation=1, step=1, epoch=0, samples=1, step_s=1.0, samples_per_s=1.0, noise_scale=noise
    )


def test_a_batch_stays_unless_another_is_worth_more() -> None:
    costs = measured((4, 256), (4, 248))
    now = replace(record(LINEAR, costs), progress=TrainerProgress(size=4, batch=252))
    assert batches_of(now, 4)[-1] == 252
    far = replace(now, progress=TrainerProgress(size=4, batch=128))
    assert batches_of(far, 4)[-1] == 256
    assert batches_of(replace(now, progress=TrainerProgress(size=4, batch=64)), 4)[-1] == 256


def test_throughput_is_learnt_per_size_and_batch_and_makes_the_curve() -> None:
    costs = MeasuredCosts()
    for now_s in range(5):
        for size, batch in ((1, 64), (2, 128), (2, 64)):
            rate = true_rate(batch, size)
            costs = learn_throughput(costs, size, rate, float(now_s), None, batch)
    assert [(n, b) for n, b, _ in costs.samples_per_s_by_batch] == [(1, 64), (2, 64), (2, 128)]
    assert [n for n, _ in costs.samples_per_s_by_size] == [1, 2]
    found = fitted(record(replace(LINEAR, least=32), costs), explores=True)
    assert curve_at(found.curve, 2) == pytest.approx(true_rate(128, 2), rel=0.03)
    assert curve_at(found.curve, 16) == pytest.approx(true_rate(1024, 16), rel=0.15)
    assert [point.size for point in found.points] == [1, 2]
