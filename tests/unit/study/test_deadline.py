"""The outlook of a study on idle nodes: work, futures, finishing, reserved nodes."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bftrainer.batch.traces.fragments import make_fragments
from bftrainer.study.deadline import (
    LEAST_UNIT_S,
    MOST_NODES,
    Counts,
    Drawing,
    Outlook,
    Part,
    PoolHistory,
    Work,
    finish_s,
    futures,
    held,
    history_of,
    interval,
    outlook,
    parts_of,
)
from bftrainer.study.plan.problem import ScalingProfile
from bftrainer.study.rungs import rule_of

HOUR_S, STEP_S = 3600.0, 60.0
LINEAR = ScalingProfile(gpus=(1, 2, 4), unit_s=(100.0, 50.0, 25.0), n_max=4)


def work(
    *parts: tuple[int, float], scaling: ScalingProfile = LINEAR, parallel: int | None = None
) -> Work:
    made = tuple(Part(trials=trials, units=units) for trials, units in parts)
    return Work(parts=made, scaling=scaling, parallel=parallel)


def drifting(
    hours: float, seed: int, *, pools: int = 1, now: int | None = None, mean: float = 20.0
) -> Counts:
    """Return pools whose size goes up and down about a mean, and forgets itself in an hour."""
    chance = np.random.Generator(np.random.PCG64(seed))
    kept = math.exp(-STEP_S / HOUR_S)
    size = np.zeros(pools) if now is None else np.full(pools, math.log((now + 0.5) / mean))
    found = np.empty((round(hours * 60), pools))
    for row in found:
        size = kept * size + math.sqrt(1 - kept**2) * chance.standard_normal(pools)
        row[:] = mean * np.exp(size)
    return found.T.astype(np.int64)


def asked(study: Work, history: PoolHistory, hours: float, now: int) -> Outlook:
    return outlook(
        study,
        history,
        deadline_s=hours * HOUR_S,
        start_up_s=30.0,
        now_idle=now,
        confidence=0.95,
        drawing=Drawing(),
    )


# ---- work -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "part_s"),
    [
        (1, 6 * 200.0),  # one after the other
        (2, 3 * 200.0),
        (4, 200.0 + 100.0),  # then two trials on two nodes each
        (5, 200.0 + 50.0),  # then one on as many as it can use
        (6, 200.0),
        (12, 100.0),
        (24, 50.0),
    ],
)
def test_trials_share_the_nodes_in_waves(nodes: int, part_s: float) -> None:
    rates = work((6, 2.0)).rates()
    assert 1.0 / rates[0, nodes] == pytest.approx(part_s)


def test_a_trial_with_fewer_nodes_than_it_needs_does_not_train() -> None:
    scaling = ScalingProfile(gpus=(2, 4), unit_s=(50.0, 25.0), n_min=2, n_max=4)
    rates = work((3, 1.0), scaling=scaling).rates()
    assert rates[0, :2].tolist() == [0.0, 0.0]
    assert 1.0 / rates[0, 2] == pytest.approx(150.0)
    assert 1.0 / rates[0, 3] == pytest.approx(100.0)  # one after the other, each on all three


def test_no_more_trials_than_the_study_allows_train_at_once() -> None:
    assert work((6, 2.0), parallel=2).most_nodes == 8
    assert work((6, 2.0), parallel=2).least_s() == pytest.approx(3 * 50.0)


def test_more_nodes_are_never_slower() -> None:
    scaling = ScalingProfile(gpus=(1, 2, 8), unit_s=(90.0, 60.0, 30.0), n_max=8)
    rates = work((81, 1.0), (27, 2.0), (7, 6.0), scaling=scaling).rates()
    assert (np.diff(rates, axis=1) >= 0.0).all()


def slowest_of(
    trials: int, nodes: int, scaling: ScalingProfile, units: NDArray[np.float64]
) -> float:
    """Return when the last trial of a part ends, trial by trial; freed nodes go to the others."""
    sizes = np.arange(1, (scaling.n_max or 1) + 1)
    per_s = [1.0 / scaling.mean_s(size) for size in sizes.tolist()]
    waiting, training, at_s = list(units[:trials]), list[float](), 0.0
    while waiting or training:
        while waiting and len(training) < nodes:
            training.append(float(waiting.pop()))
        speed, least = float(np.interp(nodes / len(training), sizes, per_s)), min(training)
        at_s += least / speed
        training = [left - least for left in training if left - least > 1e-12]
    return at_s


@pytest.mark.parametrize(("trials", "nodes"), [(27, 10), (27, 40), (27, 108), (9, 36), (2, 8)])
def test_a_part_waits_for_its_longest_trial(trials: int, nodes: int) -> None:
    chance = np.random.Generator(np.random.PCG64(6))
    found = work((trials, 1.0), scaling=replace(LINEAR, spread=0.05))
    units = np.maximum(0.01, chance.normal(1.0, 0.05, size=(200, trials)))
    mean_s = np.mean([slowest_of(trials, nodes, LINEAR, one) for one in units])
    assert 1.0 / found.rates()[0, nodes] == pytest.approx(mean_s, rel=0.03)


def test_trials_one_after_the_other_wait_for_nobody() -> None:
    spread = replace(LINEAR, spread=0.05)
    alone = work((6, 2.0), scaling=spread, parallel=1)
    assert alone.least_s() == pytest.approx(6 * 50.0)
    assert work((6, 2.0), scaling=spread).least_s() > 50.0


@pytest.mark.parametrize("parallel", [None, 4])
def test_the_least_time_is_that_on_as_many_nodes_as_it_can_use(parallel: int | None) -> None:
    found = work(
        (9, 2.0), (3, 4.0), scaling=replace(LINEAR, spread=0.05, n_max=3), parallel=parallel
    )
    assert found.least_s() == pytest.approx((1.0 / found.rates()[:, -1]).sum())


def test_more_nodes_than_anybody_has_are_not_told_apart() -> None:
    wide = ScalingProfile(gpus=(1,), unit_s=(100.0,), n_max=100_000)
    found = work((20_000, 1.0), scaling=wide)
    assert found.most_nodes == MOST_NODES
    assert found.rates().shape == (1, MOST_NODES + 1)
    assert found.least_s() == pytest.approx(100.0)
    large = work(
        (2, 1.0), scaling=ScalingProfile(gpus=(1,), unit_s=(9.0,), n_min=10**6, n_max=10**6)
    )
    assert large.rates().max() == 0.0


def test_units_that_take_no_time_leave_rates_finite() -> None:
    """The line through what was measured goes down to 0 on more nodes."""
    steep = ScalingProfile(gpus=(1000, 1001), unit_s=(1.0, 1e-6), n_max=4000)
    assert steep.mean_s(4000) == 0.0
    found = work((1, 1.0), scaling=steep)
    assert found.rates()[0, 4000] == pytest.approx(1.0 / LEAST_UNIT_S)
    assert (
        asked(found, PoolHistory(step_s=STEP_S, nodes=np.full(2000, 5)), 1.0, 5).probability == 1.0
    )


@pytest.mark.parametrize(
    ("rule", "parts", "is_assumed"),
    [
        ({"name": "sha", "trials": 9, "most": 9}, [(9, 1.0), (3, 2.0), (1, 6.0)], False),
        ({"name": "asha", "trials": 9, "most": 9}, [(9, 1.0), (3, 2.0), (1, 6.0)], True),
        ({"name": "stopping", "trials": 9, "most": 9}, [(9, 1.0), (3, 2.0), (1, 6.0)], True),
        ({"name": "none", "trials": 5, "most": 4}, [(5, 4.0)], False),
        ({"name": "median", "trials": 5, "most": 4}, [(5, 4.0)], True),
        ({"name": "pbt", "population": 4, "interval": 2, "most": 8}, [(4, 8.0)], False),
        # Brackets 3 x 1, 1 x 3 and 2 x 3: what has the same budget is one part.
        ({"name": "hyperband", "most": 3, "eta": 3}, [(3, 1.0), (3, (2.0 + 2 * 3.0) / 3)], False),
    ],
)
def test_every_rule_has_parts(
    rule: dict[str, object], parts: list[tuple[int, float]], is_assumed: bool
) -> None:
    found, note = parts_of(rule_of(rule))
    assert [(part.trials, part.units) for part in found] == parts
    assert bool(note) == is_assumed


# ---- finishing ------------------------------------------------------------------------------


def slowly(nodes: Counts, rates: NDArray[np.float64], step_s: float) -> float:
    """Return when a study is done, second by second."""
    at_s, done, part = 0, 0.0, 0
    while at_s < len(nodes) * step_s:
        done += float(rates[part][min(nodes[int(at_s // step_s)], rates.shape[1] - 1)])
        at_s += 1
        if done >= 1.0 - 1e-9:
            part, done = part + 1, 0.0
            if part == len(rates):
                return at_s
    return math.inf


def test_a_study_ends_when_a_walk_through_the_steps_says() -> None:
    chance = np.random.Generator(np.random.PCG64(7))
    nodes = chance.integers(0, 9, size=(40, 90))
    for parts in ([(3, 5.0)], [(6, 2.0), (2, 4.0), (1, 9.0)], [(16, 20.0), (4, 20.0)]):
        rates = work(*parts).rates()
        found = finish_s(nodes, rates, STEP_S)
        for row, end_s in zip(nodes, found.tolist(), strict=True):
            # The walk loses at most a second in each part.
            assert end_s == pytest.approx(slowly(row, rates, STEP_S), abs=len(parts) + 1e-6)


def test_with_the_same_nodes_all_the_time_parts_add_up() -> None:
    study = work((6, 2.0), (2, 4.0))
    nodes = np.full((1, 60), study.most_nodes)
    assert finish_s(nodes, study.rates(), STEP_S)[0] == pytest.approx(study.least_s())
    assert finish_s(nodes[:, :2], study.rates(), STEP_S)[0] == math.inf


# ---- history and futures --------------------------------------------------------------------


def test_a_node_is_usable_once_it_trains() -> None:
    trace = make_fragments(
        names=("a", "b"),
        node=[0, 1],
        start_s=[0.0, 120.0],
        end_s=[600.0, 300.0],
        span_s=(0.0, 600.0),
    )
    found = history_of(trace, step_s=60.0, start_up_s=90.0)
    assert found.nodes.tolist() == [0, 0, 1, 1, 2, 1, 1, 1, 1, 1]
    assert found.duration_s == 600.0


def test_futures_follow_from_the_present_and_forget_it() -> None:
    history = PoolHistory(step_s=STEP_S, nodes=drifting(300.0, seed=3)[0])
    drawing = Drawing(seed=4)
    for now in (5, 80):
        drawn = futures(history, now, 600, drawing)
        assert drawn.shape == (drawing.groups * drawing.each, 600)
        assert np.median(drawn[:, 0]) == pytest.approx(now, rel=0.2)
        assert np.median(drawn[:, -1]) == pytest.approx(np.median(history.nodes), rel=0.2)
    assert (futures(history, 80, 600, drawing) == drawn).all()
    assert not (futures(history, 80, 600, Drawing(seed=5)) == drawn).all()


def test_a_pool_that_never_changes_does_not() -> None:
    history = PoolHistory(step_s=STEP_S, nodes=np.full(1000, 7))
    assert (futures(history, 7, 200, Drawing()) == 7).all()


def test_more_nodes_than_ever_become_what_there_was() -> None:
    history = PoolHistory(step_s=STEP_S, nodes=np.full(1000, 7))
    drawn = futures(history, 100, 1000, Drawing())
    assert drawn[:, 0].min() > 80
    assert (drawn[:, -1] <= 8).mean() > 0.9


# ---- outlook --------------------------------------------------------------------------------


@pytest.mark.parametrize("now", [5, 20, 60])
@pytest.mark.parametrize("parts", [[(100, 12.0)], [(27, 12.0), (3, 120.0)]])
def test_probabilities_are_those_of_a_known_process(now: int, parts: list[Any]) -> None:
    """What is true of the pool is known by letting it go on many times."""
    study, history = work(*parts), PoolHistory(step_s=STEP_S, nodes=drifting(400.0, seed=11)[0])
    found = asked(study, history, 1.75, now)
    truth = drifting(1.75, seed=12, pools=4000, now=now)
    is_true = finish_s(truth, study.rates(), STEP_S) <= 1.75 * HOUR_S - 30.0
    assert 0.02 < is_true.mean() < 0.99
    assert found.probability == pytest.approx(is_true.mean(), abs=0.06)


def test_reserved_nodes_are_the_fewest_that_are_enough() -> None:
    history = PoolHistory(step_s=STEP_S, nodes=drifting(100.0, seed=5, mean=4.0)[0])
    study = work((10, 54.0), (2, 36.0))
    found = asked(study, history, 3.0, 2)
    assert found.probability < 0.95
    assert found.reserved is not None
    nodes = futures(history, 2, math.ceil((3.0 * HOUR_S - 30.0) / STEP_S) + 1, Drawing())
    ends_s = [finish_s(nodes + more, study.rates(), STEP_S) for more in range(study.most_nodes + 1)]
    for fewer, more in itertools.pairwise(ends_s):
        assert (more <= fewer + 1e-6).all()
    shares = [float((end_s <= 3.0 * HOUR_S - 30.0).mean()) for end_s in ends_s]
    assert shares[found.reserved] == found.probability_reserved
    assert shares[found.reserved - 1] < 0.95 <= shares[found.reserved]


def test_what_no_number_of_nodes_can_do_is_said() -> None:
    history = PoolHistory(step_s=STEP_S, nodes=np.full(2000, 50))
    found = asked(work((2, 600.0)), history, 3.0, 50)
    assert (found.probability, found.reserved, found.probability_reserved) == (0.0, None, None)
    assert found.least_s == pytest.approx(600 * 25.0 + 30.0)
    assert found.finish_s["p50"] == pytest.approx(600 * 25.0 + 30.0, abs=1.0)


def test_a_study_that_is_certain_needs_no_reserve() -> None:
    found = asked(work((2, 36.0)), PoolHistory(step_s=STEP_S, nodes=np.full(2000, 50)), 3.0, 60)
    assert (found.probability, found.reserved) == (1.0, 0)
    assert found.held is not None
    assert found.held.node_h == {"mean": 0.0, "p95": 0.0}
    assert len(found.notes) == 1  # so many were never idle


def test_a_reserve_is_held_until_the_study_is_done() -> None:
    found = asked(work((10, 54.0)), PoolHistory(step_s=STEP_S, nodes=np.full(2000, 2)), 1.0, 2)
    assert (found.probability, found.reserved) == (0.0, 14)  # 16 nodes are enough
    assert found.held is not None
    all_s = 30.0 + 54_000.0 / 16  # 10 trials on 16 nodes
    assert found.held.time_s == pytest.approx({"mean": all_s, "p95": all_s}, rel=0.01)
    assert found.held.node_h["mean"] == pytest.approx(14 * all_s / HOUR_S, rel=0.01)
    assert found.held.cost is None


def test_what_a_reserve_costs() -> None:
    ends_s = np.array([HOUR_S] * 19 + [2 * HOUR_S])
    found = held(3, ends_s, most_s=9 * HOUR_S, price_h=2.0)
    assert found.node_h == pytest.approx({"mean": 3.15, "p95": 6.0})
    assert found.cost == pytest.approx({"mean": 6.3, "p95": 12.0})


def test_a_reserve_that_may_be_held_beyond_the_futures() -> None:
    ends_s = np.array([HOUR_S, math.inf])
    found = held(3, ends_s, most_s=9 * HOUR_S, price_h=2.0)
    assert found.time_s == {"mean": 5 * HOUR_S, "p95": None}
    assert found.cost == {"mean": pytest.approx(30.0), "p95": None}


def test_the_interval_says_how_much_the_groups_differ() -> None:
    chance = np.random.Generator(np.random.PCG64(2))
    alike = chance.random((40, 50)) < 0.5
    different = np.repeat(np.arange(40) % 2 == 0, 50).reshape(40, 50)
    low, high = interval(alike)
    assert 0.0 < high - low < 0.1
    assert interval(different)[1] - interval(different)[0] > 0.9
    assert interval(np.ones((40, 50), dtype=bool))[1] == pytest.approx(1.0)
