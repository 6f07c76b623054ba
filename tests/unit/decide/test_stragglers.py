"""Who is found slow: the average over reports, the threshold, and what does not count."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping

import pytest

from bftrainer.decide.throughput.stragglers import (
    ALPHA,
    FEWEST_REPORTS,
    SETTLE_REPORTS,
    Field,
    Own,
    entered,
    fractions_of,
    record_report,
)

THRESHOLD = 0.8


def _rounds(known: Field, own_s: Mapping[str, float], count: int, share: int = 4) -> Field:
    """Every worker reports so many times."""
    for _ in range(count):
        for node, seconds in own_s.items():
            known = record_report(
                known,
                node,
                generation=known.generation,
                own_s=seconds,
                share=share,
                threshold=THRESHOLD,
            )
    return known


def _until_found(slowdown: float) -> int:
    """Reports of everybody until the slow one is found, those that do not count left out."""
    known = Field(generation=1)
    for reports in range(1, 60):
        known = _rounds(known, {"n1": 0.1, "n2": 0.1, "n3": 0.1 * slowdown}, 1)
        if known.slow():
            assert known.slow().keys() == {"n3"}
            return reports - SETTLE_REPORTS - 1  # the next report ends the round
    raise AssertionError("not found")


# 1 - (1 - f) (1 - 0.9^k) < 0.8, from algorithm 1 with everybody innocent at first.
@pytest.mark.parametrize(("slowdown", "rounds"), [(4.0, 3), (2.0, 5), (4.0 / 3.0, 16)])
def test_it_takes_as_long_as_the_papers_average(slowdown: float, rounds: int) -> None:
    f = 1.0 / slowdown
    assert 1.0 - (1.0 - f) * (1.0 - (1.0 - ALPHA) ** rounds) < THRESHOLD
    assert _until_found(slowdown) == max(rounds, FEWEST_REPORTS)


def test_a_single_stall_is_no_verdict() -> None:
    usual = {"n1": 0.1, "n2": 0.1, "n3": 0.1}
    known = _rounds(Field(generation=1), usual, 10)
    known = _rounds(known, {**usual, "n2": 10.0}, 2)
    known = _rounds(known, usual, 10)
    assert known.slow() == {}


def test_a_straggler_that_is_quick_once_in_a_while_is_found() -> None:
    known = Field(generation=1)
    for _ in range(10):  # slow for N - 1 of N: a rule of N in a row would never see it
        known = _rounds(known, {"n1": 0.1, "n2": 0.1, "n3": 0.25}, 4)
        known = _rounds(known, {"n1": 0.1, "n2": 0.1, "n3": 0.1}, 1)
    assert known.slow().keys() == {"n3"}


def test_of_two_workers_the_slow_one_is_told_apart() -> None:
    assert _rounds(Field(generation=1), {"n1": 0.1, "n2": 0.2}, 12).slow().keys() == {"n2"}


def test_one_worker_alone_is_beside_nobody() -> None:
    assert _rounds(Field(generation=1), {"n1": 5.0}, 20).standings == {}


@pytest.mark.parametrize("fixed_s", [0.0, 0.1])
def test_shares_that_differ_by_rounding_make_nobody_slow(fixed_s: float) -> None:
    """3 samples beside 2: by the step or by the sample, one of the two always looks slow."""
    shares = {"n1": 3, "n2": 3, "n3": 2, "n4": 2}
    latest = {n: Own(own_s=fixed_s + 0.01 * share, share=share) for n, share in shares.items()}
    assert min(fractions_of(latest).values()) > 0.99
    latest["n1"] = Own(own_s=2 * latest["n1"].own_s, share=3)
    fractions = fractions_of(latest)
    assert fractions["n1"] < THRESHOLD
    assert min(f for n, f in fractions.items() if n != "n1") > 0.99


def test_reports_of_another_generation_and_without_measurement_do_not_count() -> None:
    known = Field(generation=2)
    for generation, own_s, share in ((1, 0.1, 4), (3, 0.1, 4), (2, 0.0, 4), (2, 0.1, 0)):
        said = record_report(
            known, "n1", generation=generation, own_s=own_s, share=share, threshold=THRESHOLD
        )
        assert said is known


def test_a_new_generation_is_timed_anew_and_remembers_its_members() -> None:
    own_s = {"n1": 0.1, "n2": 0.1, "n3": 0.4}
    known = _rounds(Field(generation=1), own_s, 12)
    joined = entered(known, 2, ("n1", "n3", "n4"))
    assert joined.latest == {}
    assert joined.standings == {n: known.standings[n] for n in ("n1", "n3")}
    # The first reports, of cold caches, are heard and not judged.
    cold = _rounds(joined, {"n1": 0.5, "n3": 0.1, "n4": 9.0}, SETTLE_REPORTS)
    assert cold.standings == joined.standings


def test_a_verdict_is_taken_back_some_way_above_the_threshold_only() -> None:
    own_s = {"n1": 0.1, "n2": 0.1}
    known = _rounds(Field(generation=1), {**own_s, "n3": 0.2}, 15)
    near = _rounds(known, {**own_s, "n3": 0.1 / 0.83}, 60)
    assert near.standings["n3"].fraction > THRESHOLD
    assert near.slow() == {"n3": THRESHOLD}
    well = _rounds(known, {**own_s, "n3": 0.1}, 30)
    assert well.slow() == {}
    assert "n3" in well.quick(THRESHOLD)


def test_decisions_are_not_told_of_every_wiggle() -> None:
    chance = random.Random(1)  # noqa: S311 - noise, not secrets
    own_s = {"n1": 0.1, "n2": 0.1, "n3": 0.2}
    known = _rounds(Field(generation=1), own_s, 60)
    told = []
    for _ in range(200):
        known = _rounds(known, {n: s * chance.gauss(1.0, 0.05) for n, s in own_s.items()}, 1)
        told.append(known.slow()["n3"])
    assert sum(a != b for a, b in itertools.pairwise(told)) <= 2


def test_what_a_trainer_does_while_somebody_may_be_slow_is_not_learnt() -> None:
    own_s = {"n1": 0.1, "n2": 0.1, "n3": 0.1}
    known = _rounds(Field(generation=1), own_s, 20)
    assert not known.is_uneven(THRESHOLD)
    known = _rounds(known, {**own_s, "n3": 0.2}, 4)
    assert known.slow() == {}  # not yet a verdict
    assert known.is_uneven(THRESHOLD)
