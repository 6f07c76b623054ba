"""The papers' clusters and jobs against other ways to compute them: queues, closed forms, sums."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bftrainer.decide.policies.scaling_rule import Throughput
from bftrainer.lab.papers.elasticity import simulator
from bftrainer.lab.papers.elasticity.replays import Dollars, OneJob, Slowed
from bftrainer.lab.papers.elasticity.replays import play as play_elastic
from bftrainer.lab.papers.elasticity.simulator import (
    BOOT_S,
    EVERY_STEPS,
    JOBS,
    JOIN_S,
    START,
    STEPS,
    ElasticJob,
    SlowedJob,
    SlowedOutcome,
    Training,
    autoscaled,
    static,
)
from bftrainer.lab.papers.ibm.jobs import ELASTIC, Category, IbmJob, Sizes, read_world, sizes_of
from bftrainer.lab.papers.ibm.replays import Experiment, SensitivityRow
from bftrainer.lab.papers.ibm.replays import play as play_ibm
from bftrainer.lab.papers.ibm.simulator import IbmOutcome, Rules, Simulation

WORLD = read_world("ordered")
few = settings(max_examples=40, deadline=None)
Drawn = list[tuple[float, float]]  # minutes since the job before, and of the job
drawn_jobs = st.lists(st.tuples(st.floats(0.01, 5.0), st.floats(0.5, 20.0)), min_size=1, max_size=9)


# ---- ibm ---------------------------------------------------------------------------------------


def jobs_of(drawn: Drawn, *factors: float) -> list[IbmJob]:
    arrivals = np.cumsum([gap for gap, _ in drawn]).tolist()
    sizes = Sizes(least=1, factors=np.array(factors))
    return [
        IbmJob(at_min=at_min, minutes=minutes, sizes=sizes)
        for at_min, (_, minutes) in zip(arrivals, drawn, strict=True)
    ]


def simulated(jobs: Sequence[IbmJob], gpus: int, **rules: float) -> IbmOutcome:
    return Simulation(jobs, Rules(gpus=gpus, **rules)).run()  # type: ignore[arg-type]


@given(drawn_jobs, st.integers(1, 3))
@few
def test_jobs_of_one_gpu_that_wait_are_a_queue_with_servers(drawn: Drawn, gpus: int) -> None:
    """Each takes the server that is free first: the recursion of Kiefer and Wolfowitz."""
    jobs, free_min = jobs_of(drawn, 1.0), [0.0] * gpus
    expected = []
    for one in jobs:
        begins_min = max(one.at_min, heapq.heappop(free_min))
        heapq.heappush(free_min, begins_min + one.minutes)
        expected.append(begins_min + one.minutes - one.at_min)
    found = simulated(jobs, gpus, waits=True, overtakes=False)
    assert found.completion_min.tolist() == pytest.approx(expected)
    assert found.sjs == pytest.approx(100.0)


@given(drawn_jobs, st.integers(1, 3))
@few
def test_jobs_of_one_gpu_that_do_not_wait_are_a_queue_with_losses(drawn: Drawn, gpus: int) -> None:
    jobs, busy_until = jobs_of(drawn, 1.0), list[float]()
    for one in jobs:
        busy_until = [end for end in busy_until if end > one.at_min]
        if len(busy_until) < gpus:
            busy_until.append(one.at_min + one.minutes)
            continue
        jobs = [other for other in jobs if other is not one]
    found = simulated(jobs_of(drawn, 1.0), gpus)
    assert found.n_dropped == len(drawn) - len(jobs)
    assert found.completion_min.tolist() == pytest.approx([one.minutes for one in jobs])
    assert found.ends_min.tolist() == pytest.approx(sorted(j.at_min + j.minutes for j in jobs))


@given(drawn_jobs, st.integers(9, 12))
@few
def test_jobs_that_scale_perfectly_never_leave_a_gpu_idle(drawn: Drawn, gpus: int) -> None:
    """However they share, the work that is left falls by one per GPU and minute."""
    jobs = jobs_of(drawn, *map(float, range(1, gpus + 1)))
    ends_min = 0.0
    for one in jobs:
        ends_min = max(ends_min, one.at_min) + one.minutes / gpus
    found = simulated(jobs, gpus)
    assert found.n_dropped == 0
    assert found.ends_min[-1] == pytest.approx(ends_min)
    assert found.sjs == pytest.approx(100.0)


@given(drawn_jobs, st.sampled_from([3.0, 10.0]))
@few
def test_with_a_delta_and_room_for_all_each_waits_for_the_next_round(
    drawn: Drawn, delta_min: float
) -> None:
    jobs = jobs_of(drawn, 1.0)
    found = simulated(jobs, 20, delta_min=delta_min)
    waits = found.completion_min - [one.minutes for one in jobs]
    rounds = [delta_min * math.ceil(one.at_min / delta_min) - one.at_min for one in jobs]
    assert waits.tolist() == pytest.approx(rounds)


def test_who_comes_at_a_multiple_of_the_delta_starts_at_once() -> None:
    found = simulated(jobs_of([(5.0, 2.0), (5.0, 3.0)], 1.0), 2, delta_min=5.0)
    assert found.completion_min.tolist() == [2.0, 3.0]


@given(drawn_jobs, st.integers(1, 4))
@few
def test_who_waits_gets_no_job_dropped_and_all_the_work_done(drawn: Drawn, gpus: int) -> None:
    jobs = jobs_of(drawn, 1.0, 1.5)
    for rules in ({}, {"overtakes": False}, {"passes_over": True}):
        found = simulated(jobs, gpus, waits=True, **rules)
        assert found.optimal_gpu_min == pytest.approx(sum(one.minutes for one in jobs))
        assert 75.0 - 1e-6 <= found.sjs <= 100.0 + 1e-6  # two GPUs are worth 1.5


def test_a_job_without_elasticity_has_its_length_and_an_efficiency_of_100() -> None:
    run = Experiment(seed=4, minutes=240.0, category=4, high=1.0, low=1.0)
    found = play_ibm(None, run)
    assert [found.sjs, found.jct_min] == pytest.approx([100.0, 30.0])
    ends = round(found.n_jobs * (1.0 - found.drop_ratio / 100.0))
    assert 0 < found.completed < ends  # some end after the last arrival
    assert play_ibm(None, replace(run, batch="random")) == found


def test_more_gpus_drop_fewer_jobs() -> None:
    run = Experiment(seed=2, minutes=240.0, category=1, high=1.0, low=0.5)
    ratios = [play_ibm(None, replace(run, gpus=gpus)).drop_ratio for gpus in (4, 12, 80)]
    assert ratios == sorted(ratios, reverse=True)
    assert ratios[0] > 0.0
    assert ratios[-1] == 0.0


@pytest.mark.parametrize(
    "change",
    [
        SensitivityRow(network=0.0),
        SensitivityRow(largest_batch_fits=True),
        SensitivityRow(delta_min=10.0),
        SensitivityRow(arrivals=(0.1, 0.1)),
        SensitivityRow(k_max=1),
        SensitivityRow(fit="free"),
    ],
)
def test_every_assumption_that_is_changed_changes_the_outcome(change: SensitivityRow) -> None:
    run = Experiment(seed=1, minutes=60.0)
    assert play_ibm(None, replace(run, change=change)) != play_ibm(None, run)


def test_one_gpu_per_job_at_most_wastes_nothing() -> None:
    """Of one size, jobs have their largest batch, and every GPU does 1."""
    run = Experiment(seed=1, minutes=60.0, change=SensitivityRow(k_max=1))
    assert play_ibm(None, run).sjs == pytest.approx(100.0)
    assert play_ibm(None, replace(run, change=SensitivityRow())).sjs < 100.0


def test_the_order_in_which_waiting_jobs_are_tried_matters_where_some_need_several() -> None:
    run = Experiment(seed=1, minutes=60.0, waits=True, batch="random")
    kinds = (SensitivityRow(), SensitivityRow(overtakes=False), SensitivityRow(passes_over=True))
    found = [play_ibm(None, replace(run, change=kind)) for kind in kinds]
    assert len({one.jct_min for one in found}) == 3
    assert {one.drop_ratio for one in found} == {0.0}
    assert found[1].jct_min > found[2].jct_min  # strictly first come, first served is slowest


@pytest.mark.parametrize("category", WORLD.categories[:3], ids=lambda one: one.model)
def test_no_fixed_batch_scales_better_than_the_best(category: Category) -> None:
    best = sizes_of(WORLD, category, ELASTIC)
    for batch in range(category.b_min, category.b_max + 1, 16):
        fixed = sizes_of(WORLD, category, batch)
        beside = best.factors[fixed.least - best.least :][: len(fixed.factors)]
        assert (fixed.factors <= beside + 1e-12).all()
        assert (fixed.factors <= np.arange(fixed.least, fixed.least + len(fixed.factors))).all()


# ---- elasticity --------------------------------------------------------------------------------


def elastic(exponent: float, most: int = 24) -> ElasticJob:
    """A job whose rate is 100 samples/s times a power of its workers, measured without noise."""
    return ElasticJob(
        step_s=lambda k: float(k) ** -exponent, batch=lambda _: 100, samples=200_000.0, most=most,
        boot_s=5.0, join_s=1.0, leave_s=1.0, step_noise=0.0, boot_noise=0.0,
    )  # fmt: skip


def scaled(job: ElasticJob, start: int, threshold: float = 0.1) -> Training:
    rule = Throughput(threshold=threshold, standard_errors=0.0)
    return autoscaled(job, start, lambda *_: rule, np.random.default_rng(1))


@given(st.lists(st.floats(0.1, 4000.0), max_size=6))
@few
def test_to_train_in_parts_is_to_train_at_once(parts: list[float]) -> None:
    job = JOBS["cifar"]
    in_parts, at_once = Training(workers=8), Training(workers=8)
    for seconds in parts:
        in_parts.train(job, seconds)
    at_once.train(job, math.fsum(parts))
    assert in_parts.done == pytest.approx(at_once.done)
    assert in_parts.completion_s == pytest.approx(at_once.completion_s)
    assert in_parts.gpu_s == pytest.approx(8 * in_parts.completion_s)
    assert in_parts.done <= job.samples * (1 + 1e-12)


def test_new_workers_are_paid_until_the_job_ends_if_it_ends_before_they_join() -> None:
    job = elastic(1.0)
    training = Training(workers=4, done=job.samples - 400.0)  # a second is left
    training.resize(job, 8, boot_s=5.0)
    assert training.done == job.samples
    assert training.booting_gpu_s == pytest.approx(4 * 1.0)
    assert training.completion_s == pytest.approx(1.0 + job.join_s)


@pytest.mark.parametrize("start", [4, 12, 24])
def test_who_scales_perfectly_ends_at_the_most(start: int) -> None:
    job = elastic(1.0)
    found = scaled(job, start)
    assert found.workers == job.most
    assert found.done == pytest.approx(job.samples)
    assert found.completion_s >= static(job, job.most).completion_s


@pytest.mark.parametrize("start", [4, 12, 24])
def test_who_does_not_scale_ends_at_the_least(start: int) -> None:
    assert scaled(elastic(0.0), start).workers == 4


def test_who_scales_up_to_12_workers_ends_there() -> None:
    """From 16 on the rule comes down again: between 12 and 16 nothing is gained."""
    job = replace(elastic(1.0), step_s=lambda k: 1.0 / min(k, 12))
    assert [scaled(job, start).workers for start in (4, 12, 24)] == [12, 12, 12]


@pytest.mark.parametrize(("threshold", "workers"), [(0.40, 24), (0.43, 4)])
def test_the_threshold_is_of_the_gain_per_worker(threshold: float, workers: int) -> None:
    """Of a root, workers 5 to 8 bring 41% of what the first 4 do each, and later ones more."""
    assert scaled(elastic(0.5), 4, threshold).workers == workers


def test_fewer_pauses_and_boots_never_take_longer() -> None:
    job = elastic(1.0)
    slow = replace(job, boot_s=50.0, join_s=10.0)
    assert scaled(slow, 4).completion_s > scaled(job, 4).completion_s
    assert scaled(slow, 4).booting_gpu_s > scaled(job, 4).booting_gpu_s


def test_a_dear_worker_is_not_hired_and_one_for_nothing_is() -> None:
    cheap, dear = (
        play_elastic(
            None,
            OneJob(
                job="cpus", start=4, seed=1, step_noise=0.0,
                dollars=Dollars(shape="linear", most=100.0, price_per_h=price),
            ),
        )
        for price in (1e-6, 1e4)
    )  # fmt: skip
    assert isinstance(cheap, Training)
    assert isinstance(dear, Training)
    assert dear.workers <= 8 < cheap.workers
    assert cheap.completion_s < dear.completion_s


class Booting(np.random.Generator):
    """All boots take a minute."""

    def __init__(self) -> None:
        super().__init__(np.random.PCG64(0))

    def uniform(self, *_: object) -> float:  # type: ignore[override]
        return BOOT_S[0]


def test_a_job_without_stragglers_in_closed_form() -> None:
    """At each size 10 steps, those in a minute of boot, and a pause; the rest at 44."""
    found = SlowedJob(slowdown=1.0, replaces=False, chance=Booting()).run()
    expected_s, left = 0.0, STEPS
    for k in range(START, START + 40):
        each_s = 27.0 / k + 0.55 + 0.0045 * k
        steps = EVERY_STEPS + math.ceil(BOOT_S[0] / each_s)
        expected_s += steps * each_s + JOIN_S
        left -= steps
    expected_s += left * (27.0 / 44 + 0.55 + 0.0045 * 44)
    assert found.completion_s == pytest.approx(expected_s, rel=1e-9)
    assert found == SlowedOutcome(completion_s=found.completion_s, lives_s=(), workers=44)


def test_a_straggler_stays_until_its_replacement_has_booted() -> None:
    """10 steps at most until the detector is asked, and its reports need some before."""
    job = SlowedJob(slowdown=4.0, replaces=True, chance=Booting())
    found = job.run()
    assert len(found.lives_s) == simulator.MOST_SLOW
    assert all(life >= BOOT_S[0] + JOIN_S for life in found.lives_s)
    assert not any(slow > 1.0 for slow in job.slow_of.values())
    replacements = [name for name in job.slow_of if name.endswith("'")]
    assert len(replacements) == simulator.MOST_SLOW
    assert all(name[:-1] not in job.slow_of for name in replacements)


def test_stragglers_delay_at_most_by_their_factor_and_more_the_slower_they_are() -> None:
    none, slow, slower, slowest = (
        SlowedJob(slowdown=factor, replaces=False, chance=Booting()).run().completion_s
        for factor in (1.0, 4.0 / 3.0, 2.0, 4.0)
    )
    assert none < slow < slower < slowest < 4.0 * none


@pytest.mark.parametrize("slowdown", [2.0, 4.0])
def test_replacing_is_never_worse_than_keeping(slowdown: float) -> None:
    kept, replaced = (
        play_elastic(None, Slowed(slowdown=slowdown, replaces=replaces, seed=5))
        for replaces in (False, True)
    )
    assert replaced.completion_s < kept.completion_s
    assert replaced.workers == kept.workers


def test_the_best_size_on_cpus_is_where_the_derivative_vanishes() -> None:
    """27 / k + 0.0045 k is least at sqrt(27 / 0.0045), beyond the 60 machines."""
    best = math.sqrt(simulator.COMPUTE_S / simulator.PER_WORKER_S)
    assert best > JOBS["cpus"].most
    times = [simulator.COMPUTE_S / k + simulator.wait_s(k) for k in range(1, 200)]
    assert times[round(best) - 1] == pytest.approx(min(times), rel=1e-4)


def test_gpu_jobs_are_anchored_where_the_paper_gives_a_number() -> None:
    cifar, imagenet = JOBS["cifar"], JOBS["imagenet"]
    assert static(imagenet, 32).completion_s == pytest.approx(4300.0)
    assert static(imagenet, 64).completion_s == pytest.approx(4300.0 / 1.85)
    assert static(cifar, 24).completion_s == pytest.approx(1.2 * static(cifar, 4).completion_s)
    rates = [imagenet.rate(k) for k in range(32, 65, 4)]
    gains = [more - less for less, more in pairwise(rates)]
    assert gains == pytest.approx([gains[0]] * len(gains))  # a straight line
