"""What the simulated GPU site counts as idle, and which jobs are drawn of Philly's log."""

from __future__ import annotations

import random

import pytest
from _bench.lent_gpus import philly
from _bench.lent_gpus.philly import DAY_S, PhillyJob, WeekDemand
from _bench.lent_gpus.split import IdleSplit, split_of, together

from bftrainer.lab.site.machine import JobSpec, SiteJob
from bftrainer.lab.site.sharing import Share


def ran(
    gpus: int | None, nodes: set[int], start_s: float | None, end_s: float | None = None
) -> SiteJob:
    """Return a job that ran; ``gpus`` of each node, None: all of it."""
    share = None if gpus is None else Share(gpus=gpus)
    spec = JobSpec(number=1, submit_s=0.0, n_nodes=len(nodes), limit_s=1e6, run_s=1e6, share=share)
    return SiteJob(spec=spec, nodes=sum(1 << n for n in nodes), start_s=start_s, end_s=end_s)


def test_idle_gpus_are_leftover_where_any_job_runs() -> None:
    jobs = [
        ran(3, {0}, -50.0, 40.0),  # one GPU is leftover until 20, none from then to 40
        ran(1, {0}, 20.0, 60.0),  # three are from 40 to 60
        ran(None, {1, 2}, 90.0),  # to the end of the window, and beyond
        ran(0, {3}, 10.0, 30.0),  # without a GPU: all four are
        ran(4, {3}, None),  # never started
    ]
    split = split_of(jobs, 4, 4, (0.0, 100.0))
    assert split.used_gpu_s == 3 * 40.0 + 1 * 40.0 + 2 * 4 * 10.0
    assert split.leftover_gpu_s == 1 * 20.0 + 3 * 20.0 + 4 * 20.0
    assert split.whole_gpu_s == 4 * 40.0 + 2 * 4 * 90.0 + 4 * 80.0
    assert split.utilisation == pytest.approx(240.0 / 1600.0)
    assert split.leftover_share == pytest.approx(160.0 / 1360.0)
    both = together([split, IdleSplit(used_gpu_s=1.0, whole_gpu_s=2.0, leftover_gpu_s=3.0)])
    assert (both.used_gpu_s, both.whole_gpu_s, both.leftover_gpu_s) == (241.0, 1202.0, 163.0)


def counted_by_the_second(
    jobs: list[SiteJob], n_nodes: int, gpus_per_node: int, window: tuple[int, int]
) -> tuple[float, float, float]:
    """Return GPU-seconds in use, idle on idle nodes, and idle beside jobs; all times are whole."""
    used = whole = leftover = 0
    for second in range(*window):
        there = [
            job
            for job in jobs
            if job.start_s is not None
            and job.start_s <= second
            and (job.end_s is None or second < job.end_s)
        ]
        for node in range(n_nodes):
            here = [job.spec.share for job in there if job.nodes & (1 << node)]
            gpus = sum(gpus_per_node if share is None else share.gpus for share in here)
            used += gpus
            if not here:
                whole += gpus_per_node
            else:
                leftover += gpus_per_node - gpus
    return used, whole, leftover


@pytest.mark.parametrize("seed", range(4))
def test_idle_gpus_are_as_many_as_counted_second_by_second(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - jobs, not a secret
    jobs = []
    for _ in range(25):
        start_s = chance.randint(-30, 110)
        jobs.append(
            ran(
                chance.choice([None, 0, 1, 1, 2, 8]),
                set(chance.sample(range(5), chance.randint(1, 2))),
                chance.choice([None, start_s, start_s, start_s]),
                chance.choice([None, start_s + chance.randint(1, 60)]),
            )
        )
    split = split_of(jobs, 5, 8, (10.0, 100.0))
    counted = counted_by_the_second(jobs, 5, 8, (10, 100))
    assert (split.used_gpu_s, split.whole_gpu_s, split.leftover_gpu_s) == counted
    assert split.used_gpu_s + split.idle_gpu_s == 5 * 8 * 90.0


# ---- the log ---------------------------------------------------------------------------------

LOG = """\
timestamp,duration,num_gpus,gpu_time,cluster
2017-10-02 00:01:40,50.0,2,100.0,b
2017-10-02 00:00:00,300.0,16,4800.0,a
"""


def test_a_log_is_read_in_order_of_submission() -> None:
    first, second = philly.read(LOG.splitlines())
    assert first == PhillyJob(submit_s=0.0, run_s=300.0, n_gpus=16, user="a")
    assert second == PhillyJob(submit_s=100.0, run_s=50.0, n_gpus=2, user="b")


@pytest.mark.parametrize("text", ["", "timestamp,duration\n2017-10-02 00:01:40,50.0\n"])
def test_what_is_no_log_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="has the columns timestamp, duration"):
        philly.read(text.splitlines())


def test_a_job_has_a_share_of_one_node_or_whole_nodes() -> None:
    share = Share(cpus=24, memory_mb=192_000, gpus=3)
    assert philly.size_of(3, 8) == (1, share)
    assert philly.size_of(8, 8) == (1, Share(cpus=64, memory_mb=512_000, gpus=8))
    assert [philly.size_of(n, 8) for n in (9, 16, 24)] == [(2, None), (2, None), (3, None)]
    assert [philly.used_gpus(n, 8) for n in (3, 8, 12)] == [3, 8, 16]
    assert [philly.used_gpus(n, 4) for n in (3, 6)] == [3, 8]


BEGIN_S = philly.begin_of(1)
DEMAND = WeekDemand(n_nodes=1, gpus_per_node=4, warm_s=100.0, counted_s=1000.0, load=0.5, seed=1)


def logged(at_s: float, run_s: float, n_gpus: int) -> PhillyJob:
    """Return a job that is submitted so long after the begin of the counted span."""
    return PhillyJob(submit_s=BEGIN_S + at_s, run_s=run_s, n_gpus=n_gpus, user="a")


def test_submissions_are_drawn_together_until_the_load_is_right() -> None:
    """2,000 GPU-seconds are wanted; the second job has 4 x (1,000 - 2,000 x factor) of them."""
    log = [logged(0.0, 400.0, 2), logged(2000.0, 1e6, 4)]
    factor = philly.factor_of(log, DEMAND, BEGIN_S)
    assert 800.0 + 4 * (1000.0 - 2000.0 * factor) == pytest.approx(2000.0)
    first, second = philly.draw(log, DEMAND)
    assert (first.submit_s, first.run_s, first.n_nodes) == (100.0, 400.0, 1)
    assert second.submit_s == pytest.approx(100.0 + 2000.0 * factor)
    assert [spec.number for spec in (first, second)] == [1, 2]
    for spec in (first, second):
        assert 2.0 * spec.run_s <= spec.limit_s <= 5.0 * spec.run_s + 60.0
        assert spec.limit_s % 60.0 == 0.0


def test_what_would_run_at_the_begin_comes_then_with_the_rest_of_its_run() -> None:
    """The factor is 0.5: from 50 s on, the third job has 3 x 500 of the 2,000 GPU-seconds."""
    log = [
        logged(-2000.0, 1400.0, 1),  # until 400 s of the counted span: 400 GPU-seconds
        logged(-1000.0, 350.0, 4),  # over before the simulation begins, 100 s before that span
        logged(-900.0, 550.0, 1),  # until 100 s: 100
        logged(1000.0, 900.0, 3),
    ]
    first, third, last = philly.draw(log, DEMAND)
    assert (first.submit_s, third.submit_s) == (0.0, 0.0)
    assert (first.run_s, third.run_s) == pytest.approx((500.0, 200.0))
    assert first.limit_s >= 2 * 1400.0 - 900.0  # of the whole run, less what is over
    assert last.submit_s == pytest.approx(100.0 + 500.0)


def test_too_few_jobs_for_a_load_are_refused() -> None:
    with pytest.raises(ValueError, match="too few jobs"):
        philly.draw([logged(0.0, 10.0, 1)], DEMAND)


def test_each_seed_has_another_stretch_of_the_log() -> None:
    begins_days = [philly.begin_of(seed) / DAY_S for seed in range(1, 6)]
    assert begins_days == [27.0, 37.0, 47.0, 57.0, 30.0]
