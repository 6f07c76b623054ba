"""Stragglers under noise, in any order and any unit of time."""

from __future__ import annotations

import itertools
import random

from hypothesis import given
from hypothesis import strategies as st

from bftrainer.decide.throughput.stragglers import Field, Own, fractions_of, record_report

THRESHOLD = 0.8
TIMES = st.lists(st.floats(1e-3, 10.0), min_size=2, max_size=9)
SHARES = st.integers(1, 64)


def _latest(times: list[float], share: int) -> dict[str, Own]:
    return {f"n{i}": Own(own_s=t, share=share) for i, t in enumerate(times)}


@given(TIMES, SHARES, st.floats(1e-3, 1e3))
def test_fractions_know_no_unit_and_no_order(times: list[float], share: int, unit: float) -> None:
    fractions = fractions_of(_latest(times, share))
    scaled = fractions_of(_latest([unit * t for t in times], share))
    backwards = fractions_of(dict(reversed(_latest(times, share).items())))
    for node, fraction in fractions.items():
        assert abs(scaled[node] - fraction) <= 1e-9 * fraction
        assert backwards[node] == fraction


@given(TIMES, SHARES)
def test_at_most_a_minority_is_slow(times: list[float], share: int) -> None:
    """Of those beside a slow worker at least half are quicker: it is never the most of them."""
    fractions = fractions_of(_latest(times, share))
    slow = [n for n, fraction in fractions.items() if fraction < 1.0]
    assert len(slow) <= len(times) - (len(times) + 1) // 2 + 1
    quickest = min(range(len(times)), key=lambda i: times[i])
    assert fractions[f"n{quickest}"] >= 1.0 - 1e-9


@given(
    seed=st.integers(0, 10_000),
    size=st.integers(3, 12),
    deviation=st.floats(0.0, 0.1),
    slowdown=st.sampled_from((1.0, 1.0, 4.0 / 3.0, 2.0, 4.0)),
)
def test_noise_makes_nobody_slow_and_hides_nobody(
    seed: int, size: int, deviation: float, slowdown: float
) -> None:
    chance = random.Random(seed)  # noqa: S311 - noise, not secrets
    known = Field(generation=1)
    nodes = [f"n{i}" for i in range(size)]
    verdicts: list[frozenset[str]] = []
    for _ in range(120):
        chance.shuffle(nodes)
        for node in nodes:
            own_s = 0.05 * max(0.2, chance.gauss(1.0, deviation))
            own_s *= slowdown if node == "n0" else 1.0
            known = record_report(
                known, node, generation=1, own_s=own_s, share=8, threshold=THRESHOLD
            )
        verdicts.append(frozenset(known.slow()))
    straggler = frozenset({"n0"} if slowdown > 1.0 else ())
    assert verdicts[-1] == straggler
    changes = [b for a, b in itertools.pairwise(verdicts) if a != b]
    assert changes == ([straggler] if straggler else [])
