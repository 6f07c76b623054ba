"""The other schedulers of section 6.2, and two that show how much there is to gain."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np

from bftrainer.lab.papers.dl2.cluster import TASKS, Cluster, Dl2Job
from bftrainer.lab.papers.dl2.setting import REFERENCE, Speeds

Step = tuple[int, int]  # workers and servers
OnStep = Callable[[Dl2Job, Step], None]  # before tasks are placed
Ranked = tuple[tuple[float, ...], Step]  # the least is taken first


def _bundle(cluster: Cluster) -> Step:
    return (1, int(cluster.setting.has_servers))


def _most_workers(cluster: Cluster, job: Dl2Job, most: Sequence[int] | None) -> int:
    """Return how many workers a job may have: by its type, or as the setting allows."""
    if most:
        return most[job.type]
    return cluster.setting.most


def _by_rank(
    cluster: Cluster, ranked: Callable[[Dl2Job], Ranked | None], on_step: OnStep | None = None
) -> None:
    """Take the first of all jobs' next steps until one does not fit; None: a job wants no more."""
    heap: list[tuple[tuple[float, ...], Step, Dl2Job]] = []

    def push(job: Dl2Job) -> None:
        next_step = ranked(job)
        if next_step is not None:
            heapq.heappush(heap, (*next_step, job))

    for job in cluster.active:
        push(job)
    while heap:
        _, step, job = heapq.heappop(heap)
        if on_step is not None:
            on_step(job, step)
        if not cluster.give(job, *step):
            break
        push(job)


def drf(cluster: Cluster, most: Sequence[int] | None = None, on_step: OnStep | None = None) -> None:
    """Give a worker and a server to the smallest dominant share until something lacks.

    Args:
        cluster: at the begin of a slot.
        most: workers by type; None: what the setting allows.
        on_step: told of each step that is tried.
    """
    bundle = _bundle(cluster)

    def ranked(job: Dl2Job) -> Ranked | None:
        if job.workers >= _most_workers(cluster, job, most):
            return None
        return (job.share, job.arrives, job.number), bundle

    _by_rank(cluster, ranked, on_step)


def best_equal_sizes(speeds: Speeds) -> tuple[int, ...]:
    """Return per type the number of workers, equal to that of servers, that is fastest."""
    _types, n_servers, n_workers = speeds.shape
    sizes = np.arange(1, n_workers)
    servers = sizes if n_servers > 1 else np.zeros_like(sizes)
    best = sizes[speeds[:, servers, sizes].argmax(axis=1)]  # the first of equal ones
    return tuple(best.tolist())


def _serve(cluster: Cluster, order: Sequence[Dl2Job], most: Sequence[int] | None = None) -> None:
    bundle = _bundle(cluster)
    for job in order:
        while job.workers < _most_workers(cluster, job, most):
            if not cluster.give(job, *bundle):
                return


def _time_left(cluster: Cluster, job: Dl2Job) -> float:
    by_servers = cluster.speeds[job.type]
    size = (REFERENCE, REFERENCE) if len(by_servers) > 1 else (0, 1)
    return float((job.epochs - job.done) / by_servers[size])


def srtf(cluster: Cluster) -> None:
    """Serve the shortest remaining time first."""
    _serve(cluster, sorted(cluster.active, key=partial(_time_left, cluster)))


def tetris(cluster: Cluster, most: Sequence[int] | None = None) -> None:
    """Serve by packing and by remaining time, each relative to its mean (Tetris, SIGCOMM'14).

    ``most`` are the workers that it gives by type, the paper's user-defined threshold.
    """
    if not cluster.active:
        return
    setting, bundle = cluster.setting, _bundle(cluster)
    shortness = np.array([1.0 / _time_left(cluster, job) for job in cluster.active])
    needs = np.array([cluster.need(job, *bundle) for job in cluster.active], float)
    packing = (needs / (setting.cpus, setting.gpus)).sum(1)
    score = packing / packing.mean() + shortness / shortness.mean()
    _serve(cluster, [cluster.active[i] for i in np.argsort(-score, kind="stable")], most)


def _steps(cluster: Cluster, job: Dl2Job) -> list[Step]:
    """Return the steps that keep within a job's most."""
    # Without servers only the first, a worker, is asked about.
    fits = zip(TASKS, cluster.allowed(job), strict=False)
    return [step for step, is_allowed in fits if is_allowed]


def _most_gain(job: Dl2Job, gains: Iterable[tuple[float, Step]]) -> Ranked | None:
    gain, step = max([(0.0, (0, 0)), *gains])
    if gain <= 0.0:
        return None
    return (-gain, job.number), step


def optimus(cluster: Cluster, believed: Speeds | None = None) -> None:
    """Give the worker or server that saves most time, while one does (Optimus, EuroSys'18)."""
    speeds = cluster.speeds if believed is None else believed
    has_servers = cluster.setting.has_servers

    def time_left(job: Dl2Job, step: Step) -> float:
        more_workers, more_servers = step
        servers = job.servers + more_servers if has_servers else 0
        return (job.epochs - job.done) / max(
            1e-9, float(speeds[job.type, servers, job.workers + more_workers])
        )

    def ranked(job: Dl2Job) -> Ranked | None:
        lacks = (int(not job.workers), int(has_servers and not job.servers))
        if any(lacks):
            return (-math.inf, job.number), lacks
        single_steps = [step for step in _steps(cluster, job) if sum(step) == 1]
        time_now = time_left(job, (0, 0))
        return _most_gain(job, [(time_now - time_left(job, step), step) for step in single_steps])

    _by_rank(cluster, ranked)


def greedy(cluster: Cluster, on_step: OnStep | None = None) -> None:
    """Give the step that adds most to the slot's reward (eq. 1), by true speeds."""

    def ranked(job: Dl2Job) -> Ranked | None:
        rate = cluster.rate(job)
        steps = _steps(cluster, job)
        return _most_gain(
            job, [((cluster.rate(job, step) - rate) / job.epochs, step) for step in steps]
        )

    _by_rank(cluster, ranked, on_step)


def fitted(speeds: Speeds, samples: int, seed: int) -> Speeds:
    """Return the speeds that Optimus' model gives when it is fitted to a few sizes of each type.

    Its seconds per sample with w workers and p servers are a/p + (b + c w + d p)/w + e/(p w), all
    coefficients at least 0 (EuroSys'18, section 3.2).
    """
    chance, sizes = np.random.default_rng(seed), np.arange(1, speeds.shape[2])
    servers, workers = np.meshgrid(sizes, sizes, indexing="ij")
    w, p = workers.reshape(-1).astype(float), servers.reshape(-1).astype(float)
    basis = np.stack([w / p, np.ones_like(w), w, p, 1 / p], -1)
    model = np.zeros_like(speeds)
    for k, of_type in enumerate(speeds):
        rate = of_type[1:, 1:].reshape(-1)
        sample = chance.choice(len(rate), samples, replace=False)
        coefficients = _non_negative(basis[sample], (w / rate)[sample])
        model[k, 1:, 1:] = (w / np.maximum(1e-6, basis @ coefficients)).reshape(workers.shape)
    return model


def _non_negative(basis: Speeds, target: Speeds, rounds: int = 4000) -> Speeds:
    """Least squares with coefficients of at least 0, by multiplicative updates."""
    coefficients = np.full(basis.shape[1], 0.01)
    square, mixed = basis.T @ basis, basis.T @ target
    for _ in range(rounds):
        coefficients *= np.maximum(mixed, 1e-12) / np.maximum(square @ coefficients, 1e-12)
    return coefficients
