"""Throughput curves and costs as the decision gets them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bftrainer.daemon.service import check_fit
from bftrainer.decide.isolation import unfit
from bftrainer.decide.problem import problem_trainer
from bftrainer.decide.throughput.curves import fitted, points_of
from bftrainer.model.decision import Settings
from bftrainer.model.errors import UsageError
from bftrainer.model.trainer import MeasuredCosts, SizeThroughput, TrainerRecord
from bftrainer.site.policy.model import SiteObjective
from milp.check import validate
from milp.problem import Curve, Objective, Problem
from tests.support.snapshots import record


def _measured(points: dict[int, float], n_max: int = 8) -> TrainerRecord:
    costs = MeasuredCosts(samples_per_s_by_size=tuple(sorted(points.items())))
    return record(n_max=n_max, costs=costs)


def curve_of(told: TrainerRecord, *, explores: bool = False) -> Curve:
    return fitted(told, explores=explores).curve


def _at(curve: Curve) -> dict[int, float]:
    return dict(zip(curve.sizes, curve.samples_per_s, strict=True))


def test_the_users_curve_is_taken_as_it_is_until_measurements_contradict_it() -> None:
    own = Curve(sizes=(1, 3), samples_per_s=(10.0, 12.0))
    told = _measured({1: 10.9})
    told = replace(told, spec=replace(told.spec, curve=own))
    assert curve_of(told) is own
    off = _measured({1: 99.0})
    off = replace(off, spec=replace(off.spec, curve=own))
    assert curve_of(off).samples_per_s == pytest.approx((99.0, 118.8))


def test_the_guess_is_concave_and_ends_at_n_max() -> None:
    curve = curve_of(record(n_max=6))
    assert curve.sizes == (1, 2, 4, 6)
    slopes = [
        (b - a) / (n - m)
        for m, n, a, b in zip(
            (0, *curve.sizes), curve.sizes, (0.0, *curve.samples_per_s), curve.samples_per_s,
            strict=False,
        )
    ]  # fmt: skip
    assert slopes == sorted(slopes, reverse=True)
    assert curve.samples_per_s[1] == pytest.approx(1.75, abs=0.01)


def test_who_explores_guesses_what_is_usual() -> None:
    bold = curve_of(record(n_max=6), explores=True)
    assert bold.samples_per_s[1] == pytest.approx(1.92, abs=0.01)


def test_a_trainer_of_one_node_has_one_point() -> None:
    assert curve_of(record(n_max=1)).sizes == (1,)


def test_the_curve_passes_through_what_was_measured() -> None:
    curve = _at(curve_of(_measured({3: 90.0, 8: 120.0})))
    assert curve[3] == pytest.approx(90.0, rel=0.05)
    assert curve[8] == pytest.approx(120.0, rel=0.05)
    assert 30.0 <= curve[1] < curve[2] < curve[3] < curve[4] < curve[8]


@given(
    st.integers(1, 70),
    st.dictionaries(st.integers(1, 70), st.floats(1e-3, 1e6), max_size=4),
    st.sampled_from([Objective(one) for one in SiteObjective]),
)
def test_every_guess_is_a_problem_the_solver_accepts(
    n_max: int, points: dict[int, float], objective: Objective
) -> None:
    trainer = problem_trainer(_measured(points, n_max), (), Settings())
    validate(Problem(nodes=(), trainers=(trainer,), t_fwd_s=1.0, p_jmax=1, objective=objective))
    assert trainer.curve.sizes[0] == 1
    assert trainer.curve.sizes[-1] >= n_max


def test_rescale_costs_are_guessed_until_measured() -> None:
    settings = Settings(rescale_up_guess_s=0.7, rescale_down_guess_s=0.3)
    guessed = problem_trainer(record(), ("n1",), settings, ("n1",))
    assert (guessed.rescale_up_s, guessed.rescale_down_s) == (0.7, 0.3)
    known = record(costs=MeasuredCosts(rescale_up_s=0.0, rescale_down_s=0.02))
    taken = problem_trainer(known, ("n1",), settings, ("n1",))
    assert (taken.rescale_up_s, taken.rescale_down_s) == (0.0, 0.02)


def test_the_trainer_is_described_in_full() -> None:
    given_record = record("t7", n_min=2, n_max=5)
    told = replace(given_record, spec=replace(given_record.spec, weight=3.0))
    trainer = problem_trainer(told, ("n2", "n4"), Settings())
    assert (trainer.trainer_id, trainer.n_min, trainer.n_max) == ("t7", 2, 5)
    assert (trainer.current, trainer.weight) == (("n2", "n4"), 3.0)


def test_absurd_measurements_of_an_earlier_release_are_passed_over() -> None:
    told = _measured({1: 100.0, 2: 1.9e16, 4: 1e-20})
    assert curve_of(told) == curve_of(_measured({1: 100.0}))
    assert unfit(told, Settings()) == ""


def test_no_size_counts_as_more_than_ten_times_as_fast_per_node_as_the_smallest() -> None:
    claimed = curve_of(_measured({1: 1.0, 8: 1e8}))
    assert _at(claimed)[8] <= 80.0 * (1.0 + 1e-9)


@pytest.mark.parametrize(
    "curve",
    [
        Curve(sizes=(1,), samples_per_s=(1e-20,)),
        Curve(sizes=(1,), samples_per_s=(1e16,)),
        Curve(sizes=(2**40,), samples_per_s=(1.0,)),
        Curve(sizes=(10**400,), samples_per_s=(1.0,)),
    ],
)
def test_what_the_solver_refuses_is_unfit_by_name(curve: Curve) -> None:
    told = record("t5")
    why = unfit(replace(told, spec=replace(told.spec, curve=curve)), Settings())
    assert why.startswith("Trainer t5")
    assert unfit(told, Settings()) == ""


def test_a_submission_that_the_solver_would_refuse_is_refused_by_the_daemon() -> None:
    spec = replace(record().spec, curve=Curve(sizes=(10**400,), samples_per_s=(1.0,)))
    with pytest.raises(UsageError, match="BFT-1027"):
        check_fit(spec, Settings())
    check_fit(record().spec, Settings())


def test_a_trainer_that_shares_everything_with_another_keeps_its_own_name() -> None:
    one, settings = record("t1"), Settings()
    assert problem_trainer(one, (), settings).trainer_id == "t1"
    other = replace(one, trainer_id="t2")
    assert problem_trainer(other, (), settings).trainer_id == "t2"


def test_a_rate_has_the_error_of_the_batch_at_which_it_was_measured() -> None:
    costs = MeasuredCosts(
        samples_per_s_by_size=((1, 120.0), (2, 230.0)),
        samples_per_s_by_batch=((1, 32, 90.0), (1, 64, 120.0), (2, 32, 230.0)),
        throughput=(
            SizeThroughput(size=1, batch=64, told_error=0.01),
            SizeThroughput(size=1, batch=32, told_error=0.2),
            SizeThroughput(size=2, batch=32, told_error=0.03),
            SizeThroughput(size=2, batch=64),  # observed, and not yet published
        ),
    )
    assert [point.error for point in points_of(costs)] == [0.01, 0.03]
