"""The papers' simulators and readings: by hand, and what must hold of them in any case."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bftrainer.decide.policies.dl2_network import Array, probabilities
from bftrainer.lab.papers.bftrainer.replays import AnyNode, ReplayerShare
from bftrainer.lab.papers.bftrainer.series import PlanRecorder, Series, windows_of
from bftrainer.lab.papers.dl2 import rules
from bftrainer.lab.papers.dl2.cluster import Cluster, Rule, draw_trace
from bftrainer.lab.papers.dl2.published_learner import ReplayBuffer, dense
from bftrainer.lab.papers.dl2.replays import RULES as DL2_RULES
from bftrainer.lab.papers.dl2.replays import against
from bftrainer.lab.papers.dl2.setting import (
    ALL_REDUCE,
    EPOCH_MIN,
    LARGE,
    MODELS,
    REFERENCE,
    TESTBED,
    all_reduce,
    read_speeds,
    synthetic,
)
from bftrainer.lab.papers.dl2.training import Acting, evaluate, step_of
from bftrainer.lab.papers.elasticity.replays import Dollars, OneJob, Slowed
from bftrainer.lab.papers.elasticity.replays import play as play_elastic
from bftrainer.lab.papers.elasticity.simulator import (
    COMPUTE_S,
    JOBS,
    MOST_WINDOWS,
    STEPS,
    StepWindows,
    Training,
    static,
    wait_s,
)
from bftrainer.lab.papers.ibm.jobs import Arrivals, IbmJob, Sizes, read_world, sizes_of
from bftrainer.lab.papers.ibm.simulator import Rules, Simulation
from bftrainer.lab.papers.rubberband.profiles import (
    GRADIENT_BYTES,
    by_ring,
    deviations,
    fitted_bandwidth,
    measured,
    sending_s,
    steady,
)
from bftrainer.lab.papers.rubberband.setting import WARM_POOL, Planner, Planning, means, study
from bftrainer.lab.papers.rubberband.setting import play as play_plan
from bftrainer.lab.papers.rubberband.tables import RESNET101
from milp.problem import Curve, Problem, ProblemNode, ProblemTrainer
from tests.support.policies import allocated

SPEEDS, _ = read_speeds(None, TESTBED)
WORLD = read_world("ordered")


# ---- bftrainer: a replay over time ------------------------------------------------------------


def series(at_s: Sequence[float], pool: Sequence[float], rate: Sequence[float]) -> Series:
    none = np.zeros(len(at_s))
    return Series(
        at_s=np.array(at_s), pool=np.array(pool), rate=np.array(rate), rescale=none[1:],
        preemption=none, preempted=none, excess=none,
    )  # fmt: skip


def test_an_interval_that_spans_an_edge_is_split_in_proportion() -> None:
    """3 h at 10 samples/s on 4 nodes, 1 h at 40 on 8: the second window begins after 2 h."""
    found = windows_of(series([0.0, 10800.0, 14400.0], [4.0, 8.0], [10.0, 40.0]), 2.0)
    assert found.outcome.tolist() == [72_000.0, 36_000.0 + 144_000.0]
    assert found.n_eq.tolist() == [4.0, 6.0]


def test_net_takes_off_the_decision_before_and_the_losses_after() -> None:
    one = series([0.0, 10.0, 20.0], [1.0, 1.0], [5.0, 5.0])
    one = replace(
        one, rescale=np.array([1.0, 2.0]), preemption=np.array([100.0, 3.0, 4.0]),
        excess=np.array([100.0, 0.0, 6.0]),
    )  # fmt: skip
    assert one.net().tolist() == [50.0 - 1.0 - 3.0, 50.0 - 2.0 - 4.0 - 6.0]


def test_without_a_plan_there_is_nothing_to_show() -> None:
    with pytest.raises(ValueError, match="not enough values"):
        PlanRecorder().series(10.0, [])


@given(st.integers(1, 40), st.integers(1, 5), st.integers(0, 3))
@settings(max_examples=30, deadline=None)
def test_nodes_drawn_at_random_change_who_gets_which_and_not_how_many(
    n_nodes: int, n_trainers: int, seed: int
) -> None:
    curve = Curve(sizes=(1, 64), samples_per_s=(1.0, 64.0))
    problem = Problem(
        nodes=tuple(ProblemNode(name=f"n{i:02}") for i in range(n_nodes)),
        trainers=tuple(
            ProblemTrainer(
                trainer_id=f"t{j}", n_min=1, n_max=8, curve=curve,
                rescale_up_s=1.0, rescale_down_s=1.0,
            )
            for j in range(n_trainers)
        ),
        t_fwd_s=120.0,
        p_jmax=n_trainers,
    )  # fmt: skip
    by_name = allocated(ReplayerShare(), problem)
    drawn = allocated(AnyNode(ReplayerShare(), seed=seed), problem)
    assert drawn.sizes() == by_name.sizes()
    assert set(drawn.assignment) <= {node.name for node in problem.nodes}
    again = allocated(AnyNode(ReplayerShare(), seed=seed), problem)
    assert again.assignment == drawn.assignment


# ---- ibm: the simulator -----------------------------------------------------------------------


@st.composite
def ibm_jobs(draw: st.DrawFn) -> list[IbmJob]:
    """Some jobs in order of arrival; factors grow with the size, at most proportionally."""
    found, at_min = [], 0.0
    for _ in range(draw(st.integers(1, 8))):
        at_min += draw(st.floats(0.0, 5.0))
        least, steps = draw(st.integers(1, 3)), draw(st.lists(st.floats(0.0, 1.0), max_size=3))
        factors = np.array(least * np.cumprod([1.0, *(1.0 + step / 4 for step in steps)]), float)
        sizes = Sizes(least=least, factors=factors)
        found.append(IbmJob(at_min=at_min, minutes=draw(st.floats(0.5, 20.0)), sizes=sizes))
    return found


@given(ibm_jobs(), st.integers(3, 6), st.booleans(), st.sampled_from([None, 7.0]))
@settings(max_examples=60, deadline=None)
def test_every_job_ends_or_is_dropped_and_gpus_are_never_oversold(
    jobs: list[IbmJob], gpus: int, waits: bool, delta_min: float | None
) -> None:
    found = Simulation(jobs, Rules(gpus=gpus, waits=waits, delta_min=delta_min)).run()
    assert len(found.completion_min) + found.n_dropped == found.n_jobs == len(jobs)
    assert not (waits and found.n_dropped)
    last_min = max(found.ends_min, default=0.0)
    assert found.actual_gpu_min <= gpus * last_min + 1e-6
    fastest = max(job.sizes.factors[-1] / job.sizes.least for job in jobs)
    assert found.actual_gpu_min * fastest >= found.optimal_gpu_min - 1e-6
    assert (np.diff(found.ends_min) >= 0.0).all()


def test_a_completion_comes_before_an_arrival_of_the_same_minute() -> None:
    one = IbmJob(at_min=0.0, minutes=5.0, sizes=Sizes(least=1, factors=np.ones(1)))
    assert Simulation([one, replace(one, at_min=5.0)], Rules(gpus=1)).run().n_dropped == 0


def test_a_step_by_hand() -> None:
    """Category 1: fixed part, the rest by the share of the largest batch, and a ring."""
    one = WORLD.categories[0]
    assert WORLD.step(one, one.cap, 1) == pytest.approx(1.0)
    assert WORLD.step(one, one.cap, 2) == pytest.approx(1.0 + one.comm)
    slow = 1.0 + one.comm * 1.5 * WORLD.between_machines  # 2 (4 - 1) / 4
    assert WORLD.step(one, one.cap, 4) == pytest.approx(slow)
    assert WORLD.factor(one, 2 * one.cap, 2) == pytest.approx(2.0 / (1.0 + one.comm))


def test_a_job_without_elasticity_has_one_size() -> None:
    four = WORLD.categories[3]
    assert not four.is_elastic
    assert len(sizes_of(WORLD, four, "elastic").factors) == 1


def test_a_faster_network_makes_no_size_slower() -> None:
    one = WORLD.categories[0]
    fast = sizes_of(WORLD, replace(one, comm=one.comm / 2), "elastic").factors
    assert (fast >= sizes_of(WORLD, one, "elastic").factors).all()


def test_arrivals_have_their_rates() -> None:
    arrivals = Arrivals(minutes=4000.0, high=1.0, low=0.25, period_min=1000.0)
    times = np.array(arrivals.draw(np.random.default_rng(1)))
    counts = np.histogram(times, bins=4, range=(0.0, 4000.0))[0]
    assert (np.abs(counts - [1000, 250, 1000, 250]) < 4 * np.sqrt([1000, 250, 1000, 250])).all()
    assert (np.diff(times) > 0.0).all()


# ---- elasticity: one job ----------------------------------------------------------------------


@pytest.mark.parametrize("job", list(JOBS))
def test_each_job_has_its_best_size(job: str) -> None:
    one = JOBS[job]
    times = [static(one, k).completion_s for k in range(one.least, one.most + 1, one.unit)]
    if job == "cifar":  # one global batch: more workers only add communication
        assert all(later > sooner for sooner, later in pairwise(times))
    elif job == "imagenet":
        assert all(later < sooner for sooner, later in pairwise(times))
    else:  # on CPUs the best size is where COMPUTE_S / k falls as fast as the wait grows
        best = range(one.least, one.most + 1, one.unit)[int(np.argmin(times))]
        assert best == 60
        assert one.step_s(10) == pytest.approx(COMPUTE_S / 10 + wait_s(10))


def test_a_resize_by_hand() -> None:
    """10 s of boot on 4 workers, a pause on 4; then out again without a boot."""
    job = replace(JOBS["cifar"], join_s=2.0, leave_s=1.0)
    training = Training(workers=4)
    training.resize(job, 8, boot_s=10.0)
    assert (training.completion_s, training.gpu_s, training.booting_gpu_s) == (12.0, 48.0, 40.0)
    assert training.done == pytest.approx(10.0 * job.rate(4))
    training.resize(job, 4, boot_s=10.0)
    assert (training.completion_s, training.gpu_s) == (13.0, 48.0 + 8.0)
    assert training.used_gpu_s == 56.0 + 40.0


@given(st.integers(1, 16).map(lambda k: 4 * k), st.integers(0, 50))
@settings(max_examples=10, deadline=None)
def test_autoscaling_trains_all_samples_once(start: int, seed: int) -> None:
    found = play_elastic(None, OneJob(job="imagenet", start=start, seed=seed))
    assert isinstance(found, Training)
    job = JOBS["imagenet"]
    assert found.done == pytest.approx(job.samples)
    assert job.least <= found.workers <= job.most
    assert found.settled_s <= found.completion_s
    fastest = static(job, job.most).completion_s
    assert fastest <= found.completion_s
    assert found.gpu_s >= job.least * found.completion_s - 1e-6


def test_a_patient_rule_wants_two_windows_and_gives_up_at_the_most() -> None:
    windows = StepWindows(is_patient=True, windows={4: [10.0], 8: [20.0, 22.0]})
    known = windows.known(8)
    assert set(known) == {8}
    spread = np.std([20.0, 22.0], ddof=1) / 21.0
    assert known[8].samples_per_s == 21.0
    assert known[8].error == pytest.approx(spread / math.sqrt(2))
    long = StepWindows(is_patient=True, windows={4: [10.0, 12.0] * (MOST_WINDOWS // 2)})
    assert long.known(4)[4].error == 0.0
    assert set(StepWindows(is_patient=False, windows={4: [10.0]}).known(4)) == {4}


def test_utilities_by_hand() -> None:
    job = JOBS["cpus"]
    assert Dollars(shape="linear", most=7.0, price_per_h=1.0).utility(job, 4) == (
        (0.0, 7.0), (20_000.0, 0.0),
    )  # fmt: skip
    (at_s, most), (end_s, end) = Dollars(shape="step", most=7.0, price_per_h=1.0).utility(job, 4)
    assert (at_s, most, end) == (3600.0, 7.0, 0.0)
    assert end_s == pytest.approx(static(job, 4).completion_s)


def test_without_stragglers_replacing_changes_nothing() -> None:
    kept, replaced = (
        play_elastic(None, Slowed(slowdown=1.0, replaces=r, seed=3)) for r in (False, True)
    )
    assert kept == replaced
    assert kept.completion_s > STEPS * (COMPUTE_S / 44 + wait_s(44))  # never faster than at the end


# ---- dl2: cluster, rules, learners -------------------------------------------------------------


def cluster(n_jobs: int = 6, seed: int = 0, **about: int) -> Cluster:
    setting = replace(TESTBED, jobs=n_jobs, nodes=4, **about)  # type: ignore[arg-type]
    jobs = [replace(job, arrives=0) for job in draw_trace(setting, seed)]
    return Cluster(setting, SPEEDS, jobs)


def used(one: Cluster) -> Array:
    """Processors and GPUs of all jobs."""
    needs = [one.need(job, job.workers, job.servers) for job in one.active]
    return np.array([sum(of) for of in zip(*needs, strict=True)], float)


RULES: dict[str, Rule] = {
    **DL2_RULES,
    "capped": partial(rules.drf, most=rules.best_equal_sizes(SPEEDS)),
}


@pytest.mark.parametrize("rule", list(RULES))
@pytest.mark.parametrize("seed", range(4))
def test_no_rule_hands_out_more_than_there_is(rule: str, seed: int) -> None:
    one = cluster(seed=seed)
    RULES[rule](one)
    assert (used(one) <= one.capacity).all()
    most = one.setting.most
    assert all(job.workers <= most and job.servers <= most for job in one.active)
    if rule != "capped":
        assert used(one).max() > 0


@pytest.mark.parametrize("seed", range(4))
def test_drf_leaves_no_job_far_behind(seed: int) -> None:
    """Shares differ by at most one bundle's, unless a job has its most."""
    one = cluster(seed=seed)
    rules.drf(one)
    bundle = max(
        max(n / most for n, most in zip(one.need(job, 1, 1), one.capacity, strict=True))
        for job in one.active
    )
    shares = [job.share for job in one.active if job.workers < one.setting.most]
    assert max(shares) - min(shares) <= bundle + 1e-9


def test_optimus_gives_everybody_a_pair_before_a_second_one() -> None:
    one = cluster(4)
    rules.optimus(one)
    assert all(job.workers and job.servers for job in one.active)


def test_work_is_conserved_over_a_trace() -> None:
    setting = replace(TESTBED, jobs=8)
    one = Cluster(setting, SPEEDS, draw_trace(setting, 5))
    rewards = 0.0
    while not one.has_ended:
        rules.drf(one)
        rewards += one.end_slot()
    assert rewards == pytest.approx(8.0)  # each job's epochs over their total
    assert all(job.done == pytest.approx(job.epochs) for job in one.jobs)
    assert all(job.ends > job.arrives for job in one.jobs)


def test_away_nodes_are_drawn_by_seed() -> None:
    setting = replace(TESTBED, jobs=8, absent=0.4)
    trace = draw_trace(setting, 5)

    def ends(seed: int, absent: float) -> list[float]:
        one = Cluster(replace(setting, absent=absent), SPEEDS, trace, seed)
        while not one.has_ended:
            rules.drf(one)
            one.end_slot()
        return [job.ends for job in one.jobs]

    assert ends(1, 0.4) == ends(1, 0.4)
    assert sum(ends(1, 0.4)) > sum(ends(1, 0.0))


def test_traces_have_their_shape() -> None:
    jobs = draw_trace(LARGE, 3)
    assert len(jobs) == LARGE.jobs
    assert [job.number for job in jobs] == list(range(LARGE.jobs))
    assert all(few.arrives <= many.arrives for few, many in pairwise(jobs))
    assert all(5.0 <= job.epochs <= 1440 / EPOCH_MIN for job in jobs)
    assert {job.type for job in jobs} == set(range(len(MODELS)))
    minutes = EPOCH_MIN * np.mean([job.epochs for job in draw_trace(replace(LARGE, jobs=4000), 3)])
    assert minutes == pytest.approx(LARGE.mean_min, rel=0.1)


def test_speeds_by_hand() -> None:
    """4 workers and 4 servers train an epoch in 2 min, that is 10 in a slot of 20."""
    assert SPEEDS[:, REFERENCE, REFERENCE] == pytest.approx(TESTBED.slot_min / EPOCH_MIN)
    transfer, wait = 0.6, 0.10  # resnext-110
    one = synthetic(4)[MODELS.index("resnext-110")]
    assert one[2, 4] == pytest.approx(1.0 / (1 / 4 + transfer * 4 / 2 + wait * 3))
    assert not one[0].any()
    assert not one[:, 0].any()
    ring = all_reduce(None, 3, 8)
    assert ring[2, 0, 8] == pytest.approx(8 / (1 + 0.04 * 7))
    relative, is_measured = read_speeds(None, ALL_REDUCE)
    assert relative[:, 0, 1] == pytest.approx(2.0)
    assert not is_measured


@given(st.integers(0, 20))
@settings(max_examples=10, deadline=None)
def test_a_network_takes_only_actions_that_the_mask_allows(seed: int) -> None:
    one = cluster(seed=seed)
    taken: list[tuple[np.ndarray, int]] = []
    Acting(
        scores=lambda rows: np.zeros(3 * len(rows) + 1), chance=np.random.default_rng(seed),
        on_action=lambda _, mask, action: taken.append((mask.copy(), action)),
    )(one)  # fmt: skip
    assert all(mask[action] for mask, action in taken)
    assert all(len(mask) == 3 * len(one.seen) + 1 and mask[-1] for mask, _ in taken)
    assert (used(one) <= one.capacity).all()


def test_a_step_wants_the_action_taken() -> None:
    step = step_of(np.zeros((1, 3)), np.array([True, True, False, True]), 1)
    assert step.wanted.tolist() == [0.0, 1.0, 0.0, 0.0]


def test_the_gradient_of_dense_layers_is_that_of_differences() -> None:
    chance = np.random.default_rng(4)
    net, inputs = dense(5, 3, chance), chance.normal(size=(7, 5))
    weights = chance.normal(size=(7, 3))
    found = net.gradient(inputs, weights)
    for name in ("first", "bias_first", "second", "bias_second", "third", "bias_third"):
        numbers = getattr(net, name)
        at = tuple(int(chance.integers(n)) for n in numbers.shape)
        sums = []
        for off in (1e-6, -1e-6):
            moved = numbers.copy()
            moved[at] += off
            sums.append((replace(net, **{name: moved})(inputs) * weights).sum())
        assert found[name][at] == pytest.approx((sums[0] - sums[1]) / 2e-6, rel=1e-4, abs=1e-6)


def test_memory_keeps_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bftrainer.lab.papers.dl2.published_learner.REPLAY", 3)
    memory, empty = ReplayBuffer(), np.zeros(1)
    for k in range(5):
        memory.add((empty, empty, empty.astype(bool), k, float(k), 1.0))
    assert len(memory) == 3
    *_, taken, reward, goes_on = memory.draw(np.random.default_rng(0), 50)
    assert set(taken.tolist()) == {2, 3, 4}
    assert (taken == reward).all()
    assert goes_on.all()


def test_a_mean_difference_is_taken_trace_by_trace() -> None:
    assert against((1.0, 3.0), (2.0, 2.0)) == pytest.approx(0.0)  # -50% and +50%
    assert against((4.0,), (2.0,)) == pytest.approx(100.0)


def test_probabilities_leave_out_what_is_masked() -> None:
    share = probabilities(np.array([0.0, 9.0, 0.0]), np.array([True, False, True]))
    assert share.tolist() == [0.5, 0.0, 0.5]


def test_the_same_seed_plays_the_same() -> None:
    setting = replace(TESTBED, jobs=4)

    def scores(rows: np.ndarray) -> np.ndarray:
        return np.zeros(3 * len(rows) + 1)

    one, two = (evaluate(setting, SPEEDS, scores, range(2)) for _ in range(2))
    assert one == two
    assert len(one) == 2


# ---- rubberband: profiles and plans ------------------------------------------------------------


def test_a_ring_by_hand() -> None:
    assert sending_s(1, 1e9) == 0.0
    assert sending_s(4, 1e9) == pytest.approx(1.5 * GRADIENT_BYTES / 1e9)


@pytest.mark.parametrize("placed", ["placed", "scattered"])
def test_the_fitted_bandwidth_has_the_least_largest_deviation(placed: str) -> None:
    rates = measured(placed)
    best = fitted_bandwidth(rates)
    worst = max(map(abs, deviations(rates, best)))
    for factor in (0.9, 0.99, 1.01, 1.1):
        assert max(map(abs, deviations(rates, factor * best))) > worst


def test_profiles_by_hand() -> None:
    """A: 103.2 s are shared, 14.9 s come between instances; 8 GPUs are two instances."""
    a = RESNET101["A"]
    assert a.mean_s(1) == pytest.approx(103.2)
    assert a.mean_s(4) == pytest.approx(103.2 / 4)
    assert a.mean_s(8) == pytest.approx(103.2 / 8 + 14.9 / 2)


def test_steady_scaling_goes_on_or_ends() -> None:
    rates = measured("placed")
    on = steady(4.0)
    assert on.mean_s(4) == pytest.approx(4.0 * rates[1] / rates[4])
    assert on.mean_s(16) / on.mean_s(8) == pytest.approx(rates[2] / rates[4])
    flat = steady(4.0, flat_from=8)
    assert flat.mean_s(8) == pytest.approx(on.mean_s(8))
    assert flat.mean_s(128) == pytest.approx(flat.mean_s(8))


def test_a_ring_over_instances_is_slower_than_inside() -> None:
    ring = by_ring(4.0, 512)
    assert ring.mean_s(1) == pytest.approx(4.0)
    assert 1.5 < ring.mean_s(1) / ring.mean_s(2) < 2.0
    assert ring.mean_s(8) == ring.mean_s(4)  # two instances are slower than one
    assert ring.unit_s[3] > ring.unit_s[2]
    assert ring.mean_s(128) < ring.mean_s(4)


def test_means_are_read_as_they_are_printed() -> None:
    """19:24 ± 00:00, 34.00 ± 0.00, 19:15 ± 00:26, 33.21 ± 0.84, and the accuracy."""
    time, cost, real_time, real_cost, _ = means("table2", "20 min, static")
    assert time.value == pytest.approx(19 + 24 / 60)
    assert cost.value == 34.0
    assert (real_time.value, real_cost.value) == (19.25, 33.21)
    assert real_time.spread == pytest.approx(26 / 60)
    assert real_cost.spread == 0.84


@pytest.mark.parametrize("planner", list(Planner))
def test_every_planner_keeps_the_deadline_and_says_when_it_cannot(planner: Planner) -> None:
    one = Planning(
        experiment=study(8, 60), scaling=RESNET101["A"], cloud=WARM_POOL, deadline_s=7200.0,
        planner=planner, most=64,
    )  # fmt: skip
    found = play_plan(None, one)
    assert found is not None
    assert found.time_s <= 7200.0 + 1e-6
    assert play_plan(None, replace(one, deadline_s=1.0)) is None


def test_a_later_deadline_is_never_dearer() -> None:
    costs = []
    for minutes in (90, 120, 180, 240):
        one = Planning(
            experiment=study(8, 60), scaling=RESNET101["A"], cloud=WARM_POOL,
            deadline_s=60.0 * minutes, planner=Planner.EXACT, most=64,
        )  # fmt: skip
        plan = play_plan(None, one)
        assert plan is not None
        costs.append(plan.cost)
    assert all(later <= sooner + 1e-9 for sooner, later in pairwise(costs))
