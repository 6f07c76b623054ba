"""The memory of a worker by nodes, and from how many on it fits."""

from __future__ import annotations

import pytest

from bftrainer.decide.throughput.memory import memory_use

# 64 samples over two workers of each node; 100 bytes, and 10 for each sample of a pass.
PASSES = [-(-64 // (2 * n)) for n in range(1, 9)]
USE = memory_use([(32, 420), (16, 260), (8, 180), (4, 140)], PASSES)


def test_between_measured_sizes_it_is_a_line_in_the_samples() -> None:
    assert PASSES[2] == 11
    assert USE.at_bytes(3) == pytest.approx(210.0)
    assert USE.at_bytes(1) == 420.0
    assert USE.at_bytes(100) == 140.0


@pytest.mark.parametrize(
    ("limit", "nodes"), [(1000, 1), (420, 1), (419, 2), (250, 3), (209, 4), (140, 8), (139, None)]
)
def test_the_smallest_size_that_fits(limit: int, nodes: int | None) -> None:
    assert USE.fits_from(limit) == nodes


def test_what_ran_out_of_memory_never_fits() -> None:
    use = memory_use([(8, 180), (4, 140)], PASSES, failed=2)
    assert use.fits_from(10_000) == 3
    assert use.at_bytes(1) == pytest.approx(420.0)
    assert use.fits_from(205) == 4
    assert use.fits_from() == 4  # three samples more than what was enough
    assert memory_use([(4, 140)], PASSES, failed=4).fits_from(10_000) == 8  # others: who knows


def test_fewer_samples_never_need_more() -> None:
    use = memory_use([(4, 200), (8, 190), (8, 210)], [8, 4])
    assert (use.at_bytes(1), use.at_bytes(2)) == (210.0, 200.0)


def test_passes_of_limited_samples_need_the_same_everywhere() -> None:
    use = memory_use([(8, 180), (8, 184)], [8, 8, 8])
    assert use.fits_from(184) == 1
    assert use.fits_from(183) is None
