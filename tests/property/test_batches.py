"""The best batch, compared with trying every one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bftrainer.decide.throughput.batch_curve import best_batch
from bftrainer.model.trainer import BatchRange
from tests.support.examples import examples

RANGES = st.builds(
    BatchRange, least=st.integers(1, 80), most=st.integers(1, 80), per_worker=st.integers(1, 40)
)


@settings(max_examples=examples(1000), deadline=None)
@given(RANGES, st.integers(1, 12), st.lists(st.integers(1, 50), min_size=80, max_size=80))
def test_equals_trying_every_batch(bounds: BatchRange, workers: int, step_s: list[int]) -> None:
    """A step may take any time that depends on the largest share alone."""

    def rate(batch: int) -> float:
        return batch / step_s[-(-batch // workers) - 1]

    admitted = [
        batch
        for batch in range(bounds.least, bounds.most + 1)
        if batch >= workers and -(-batch // workers) <= bounds.per_worker
    ]
    wanted = min(admitted, key=lambda batch: (-rate(batch), batch), default=None)
    assert best_batch(bounds, workers, rate) == wanted


@pytest.mark.parametrize(
    ("workers", "best"), [(1, 32), (2, 64), (7, 126), (8, 128), (128, 128), (129, None)]
)
def test_a_multiple_of_the_workers_is_fastest(workers: int, best: int | None) -> None:
    """With 7 workers 126 beats 128: 19 samples of one worker delay the other six."""
    bounds = BatchRange(least=32, most=128, per_worker=32)
    steps = {batch: 5 + -(-batch // workers) for batch in range(1, 129)}
    assert best_batch(bounds, workers, lambda batch: batch / steps[batch]) == best
