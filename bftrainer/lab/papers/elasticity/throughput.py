"""Figs. 6 and 7: autoscaling by throughput beside a constant number of GPUs, and under noise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bftrainer.lab.papers.elasticity.replays import OneJob, mean
from bftrainer.lab.papers.elasticity.setting import EXPECTED, ElasticitySeeds, seeds
from bftrainer.lab.papers.elasticity.simulator import JOBS, ElasticJobOutcome
from bftrainer.lab.papers.findings import Chart, Plotted, Reproduced, percent
from bftrainer.lab.papers.paper import Records

STARTS: Mapping[str, tuple[int, ...]] = {
    "cifar": tuple(range(4, 25, 4)),
    "imagenet": tuple(range(32, 65, 4)),
}
NOISE = 0.1  # relative, of a step
GPU_WHY = (
    "by sign: one curve cannot give both 45% less time and so much GPU time (see the assumptions)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trials:
    """Means over seeds of one job's trials; less time and GPU time than static, %."""

    time: tuple[float, float]  # mean and most over the starts
    gpu_time: tuple[float, float]
    least_gpu_time: float
    settled_s: tuple[float, float]
    settled_at: frozenset[int]
    beside_most: float  # GPU time more than static at the largest size, %


def _static(job: str, start: int) -> OneJob:
    return OneJob(job=job, start=start, seed=None)


def _scaled(job: str, start: int, seed: int) -> OneJob:
    return OneJob(job=job, start=start, seed=seed)


def _runs(job: str, extent: ElasticitySeeds) -> tuple[OneJob, ...]:
    return tuple(
        run
        for start in STARTS[job]
        for run in (_static(job, start), *(_scaled(job, start, s) for s in seeds(extent.jobs)))
    )


def cifar_runs(extent: ElasticitySeeds) -> tuple[OneJob, ...]:
    """Return CIFAR-10 from 4 to 24 GPUs."""
    return _runs("cifar", extent)


def imagenet_runs(extent: ElasticitySeeds) -> tuple[OneJob, ...]:
    """Return ImageNet from 32 to 64 GPUs."""
    return _runs("imagenet", extent)


def trials(records: Records, job: str, extent: ElasticitySeeds) -> Trials:
    """Compare each start with the same number of GPUs throughout."""
    starts, largest = STARTS[job], records[_static(job, JOBS[job]().most)]
    time, gpu, settled = list[list[float]](), list[list[float]](), list[list[float]]()
    ends, beside = set[int](), list[float]()
    for seed in seeds(extent.jobs):
        scaled: list[ElasticJobOutcome] = [records[_scaled(job, k, seed)] for k in starts]
        kept: list[ElasticJobOutcome] = [records[_static(job, k)] for k in starts]
        pairs = list(zip(scaled, kept, strict=True))
        time.append([percent(1.0 - ours.completion_s / its.completion_s) for ours, its in pairs])
        gpu.append([percent(1.0 - ours.used_gpu_s / its.used_gpu_s) for ours, its in pairs])
        settled.append([ours.settled_s for ours in scaled])
        ends |= {ours.settled_at for ours in scaled}
        beside += [percent(ours.used_gpu_s / largest.used_gpu_s - 1.0) for ours in scaled]
    return Trials(
        time=_mean_and_most(time),
        gpu_time=_mean_and_most(gpu),
        least_gpu_time=mean([min(of_seed) for of_seed in gpu]),
        settled_s=_mean_and_most(settled),
        settled_at=frozenset(ends),
        beside_most=mean(beside),
    )


def _mean_and_most(by_seed: list[list[float]]) -> tuple[float, float]:
    return mean([mean(one) for one in by_seed]), mean([max(one) for one in by_seed])


def cifar(records: Records, extent: ElasticitySeeds) -> Reproduced:
    """Fig. 6."""
    found = trials(records, "cifar", extent)
    values = zip(
        ("time", "time, most", "gpu time", "gpu time, most", "settled", "settled, most"),
        (*found.time, *found.gpu_time, *found.settled_s),
        strict=True,
    )
    lines = [EXPECTED.line("fig6", key, value) for key, value in values]
    at = EXPECTED.line("fig6", "size", float(max(found.settled_at)), holds=found.settled_at == {4})
    return Reproduced(lines=(*lines, at), charts=(_chart(records, "cifar", "fig6a", extent),))


def imagenet(records: Records, extent: ElasticitySeeds) -> Reproduced:
    """Fig. 7."""
    found = trials(records, "imagenet", extent)
    values = zip(
        ("time", "time, most", "settled", "settled, most"),
        (*found.time, *found.settled_s),
        strict=True,
    )
    lines = [EXPECTED.line("fig7", key, value) for key, value in values]
    from_32 = mean([records[_scaled("imagenet", 32, s)].completion_s for s in seeds(extent.jobs)])
    lines.append(EXPECTED.line("fig7", "from 32", from_32))
    more = {
        "gpu time": -found.gpu_time[0],
        "gpu time, most": -found.least_gpu_time,
        "beside 64": found.beside_most,
    }
    lines += [
        EXPECTED.line("fig7", key, value, holds=value > 0.0, why=GPU_WHY)
        for key, value in more.items()
    ]
    at = EXPECTED.line("fig7", "size", float(min(found.settled_at)), holds=found.settled_at == {64})
    return Reproduced(lines=(*lines, at), charts=(_chart(records, "imagenet", "fig7a", extent),))


def _chart(records: Records, job: str, name: str, extent: ElasticitySeeds) -> Chart:
    starts = STARTS[job]
    kept = [records[_static(job, k)].completion_s for k in starts]
    scaled = [
        mean([records[_scaled(job, k, s)].completion_s for s in seeds(extent.jobs)]) for k in starts
    ]
    x = tuple(float(k) for k in starts)
    return Chart(
        name=name,
        title=f"{job}: completion time by the first number of GPUs",
        x_label="GPUs at first",
        y_label="completion time (s)",
        plotted=(
            Plotted(label="static", x=x, y=tuple(kept)),
            Plotted(label="autoscaling", x=x, y=tuple(scaled)),
        ),
    )


def _noisy(seed: int, *, is_patient: bool) -> OneJob:
    return OneJob(job="imagenet", start=32, seed=seed, is_patient=is_patient, step_noise=NOISE)


def noise_runs(extent: ElasticitySeeds) -> tuple[OneJob, ...]:
    """Return ImageNet from 32 GPUs with noisy steps, by both rules."""
    return tuple(
        _noisy(seed, is_patient=is_patient)
        for is_patient in (False, True)
        for seed in seeds(extent.noise)
    )


def noise(records: Records, extent: ElasticitySeeds) -> Reproduced:
    """Share of trials that reach 64 GPUs, of the paper's rule and of ours."""
    lines = []
    for key, is_patient in (("one window", False), ("two errors", True)):
        ends = [records[_noisy(s, is_patient=is_patient)].settled_at for s in seeds(extent.noise)]
        share = percent(mean([float(end == 64) for end in ends]))
        lines.append(EXPECTED.line("noise", key, share, holds=share >= 90.0))
    return Reproduced(lines=tuple(lines))
