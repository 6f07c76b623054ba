"""An MPI program's count of samples, beside a list of the batches of all its steps."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bftrainer.elastic.mpi.state import SampleCount

GENERATIONS = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 3), st.sampled_from([0, 1, 7, 24])), max_size=8
)


@given(first=st.integers(1, 9), generations=GENERATIONS)
def test_any_steps_losses_and_batches(first: int, generations: list[tuple[int, int, int]]) -> None:
    """Some steps, then a loss that takes some back, then a generation with a batch."""
    counted, batches = SampleCount(first), list[int]()
    for steps, lost, told in generations:
        batches += [counted.batch] * steps
        del batches[max(0, len(batches) - lost) :]
        counted.begin(len(batches), told)
        if told:
            assert counted.batch == told
        joiner = SampleCount(first)
        joiner.adopt([list(mark) for mark in counted.marks()])
        for step in range(len(batches) + 1):
            assert counted.at(step) == joiner.at(step) == sum(batches[:step])
    resumed = SampleCount(first)
    resumed.resume(len(batches), sum(batches))
    assert resumed.at(len(batches) + 3) == sum(batches) + 3 * first
