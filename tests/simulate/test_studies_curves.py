"""Assumed learning curves, and traces that are repeated."""

from __future__ import annotations

import numpy as np
import pytest
from _bench.studies.curves import HUNDREDTHS, LIKENESS, QUANTILES, LearningCurves, drawn, medians
from _bench.studies.longer import repeated

from bftrainer.batch.traces.fragments import make_fragments


def test_drawn_curves_are_like_those_they_are_drawn_after() -> None:
    quantiles, likeness = medians([drawn(1000, most=100, seed=seed).errors for seed in range(20)])
    assert np.abs(quantiles - QUANTILES).max() < 0.01
    assert np.abs(likeness - LIKENESS).max() < 0.03


def test_a_seed_gives_the_same_curves_whatever_the_unit() -> None:
    few, many = drawn(50, most=9, seed=1), drawn(50, most=900, seed=1)
    assert (few.errors == many.errors).all()
    assert few.units == pytest.approx([9.0 * at / 100.0 for at in HUNDREDTHS])
    assert (few.errors != drawn(50, most=9, seed=2).errors).any()
    assert len(few) == 50


def test_between_units_the_error_goes_by_their_logarithm() -> None:
    curves = LearningCurves(units=(1.0, 100.0), errors=np.array([[0.5, 0.1], [0.3, 0.3]]))
    assert curves.error(0, 10) == pytest.approx(0.3)
    assert curves.error(0, 0.5) == 0.5  # none is known before
    assert curves.at((1, 100)).tolist() == [[0.5, 0.1], [0.3, 0.3]]


def test_medians_share_the_place_of_equal_errors() -> None:
    table = [[0.1, 0.1, 0.1, 0.1, 0.1], [0.2, 0.2, 0.2, 0.2, 0.1], [0.3, 0.3, 0.3, 0.3, 0.3]]
    _, likeness = medians([table])
    assert likeness[0, 1] == pytest.approx(1.0)
    assert 0.8 < likeness[0, 4] < 1.0


def test_a_repeated_trace_has_every_fragment_again() -> None:
    given = make_fragments(
        names=("a", "b"), node=(0, 1), start_s=(10.0, 0.0), end_s=(40.0, 100.0), span_s=(0.0, 100.0)
    )
    twice = repeated(given, 2)
    assert twice.span_s == (0.0, 200.0)
    assert twice.equivalent_nodes() == given.equivalent_nodes()
    # Node b stays: where the trace begins anew it neither leaves nor joins.
    assert twice.pool_changes().at_s.tolist() == [0.0, 10.0, 40.0, 110.0, 140.0]
    assert "repeated 2 times" in twice.notes[-1]
