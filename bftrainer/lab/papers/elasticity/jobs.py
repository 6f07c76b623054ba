"""The jobs of section 7: how long a step takes by workers, what a change of size costs.

The paper plots step times without numbers; ``ASSUMED`` says what was assumed in their place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

EVERY_STEPS = 10  # N: measured before a decision
STEP_NOISE, BOOT_NOISE = 0.03, 0.15  # relative deviation of one step, of one boot

BATCH = 1024  # of CIFAR-10
EPOCH_OF_CIFAR, EPOCH_OF_IMAGENET = 50_000, 1_281_167  # samples
STEP_AT_4_S, SLOWER_AT_24 = 0.2, 0.2
LOCAL_BATCH, MOST_BATCH = 64, 4096  # of ImageNet, section 7.1.2
SECONDS_ON_32, FASTER_ON_64 = 4300.0, 1.85
COMPUTE_S, FIXED_S, PER_WORKER_S = 27.0, 0.55, 0.0045  # of a step of CIFAR-10 on CPUs

ASSUMED = {
    "N": f"{EVERY_STEPS} batches are measured before each decision",
    "CIFAR-10": f"sizes 4 to 24, a step of {STEP_AT_4_S:g} s on 4 GPUs that takes "
    f"{SLOWER_AT_24:.0%} longer on 24 (the largest saving of time is 16%), boots of 50 s (the time "
    "to settle)",
    "ImageNet": f"sizes 4 to 64, starts on 32, 36, ... 64 GPUs, 5 epochs in {SECONDS_ON_32:,.0f} s "
    f"on 32, 64 are {FASTER_ON_64:g} times as fast (a compromise: 45% less time needs 1.95 times, "
    "7.4% more GPU time less than 1.85 times), boots of 45 s (the time to settle)",
    "GPU time": "booting GPUs count as used",
    "noise": f"a step deviates by {STEP_NOISE:.0%} and a boot by {BOOT_NOISE:.0%} (log-normal)",
    "CPU cluster": f"a step takes {COMPUTE_S:g} s / k + {FIXED_S:g} s + {PER_WORKER_S:g} s k on k "
    "workers (50 epochs take about 50 min at best), 4 at first, 4 to 60 by 4, boots of 60 s",
    "Fig. 8": "the linear utility is 0 from 20,000 s on; the step function falls from 60 min to 0 "
    "at the time that the first size would take",
    "Fig. 10": "4 workers at first, boots of 60 to 120 s; only computation is slowed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job and what changes of its size cost."""

    step_s: Callable[[int], float]  # by workers
    batch: Callable[[int], int]  # samples per step, by workers
    samples: float
    least: int  # workers
    most: int
    unit: int  # K
    boot_s: float  # until new workers can join; the others train
    join_s: float  # nobody trains
    leave_s: float
    step_noise: float = STEP_NOISE
    boot_noise: float = BOOT_NOISE

    def rate(self, workers: int) -> float:
        """Samples per second."""
        return self.batch(workers) / self.step_s(workers)


def cifar() -> Job:
    """ResNet-56 on GPUs, 200 epochs, one global batch (section 7.1.1); pauses: Table 1."""
    return Job(
        step_s=lambda k: STEP_AT_4_S * (1.0 + SLOWER_AT_24 * (k - 4) / 20),
        batch=lambda _: BATCH,
        samples=200.0 * EPOCH_OF_CIFAR,
        least=4,
        most=24,
        unit=4,
        boot_s=50.0,
        join_s=3.179,
        leave_s=2.612,
    )


def imagenet(*, step_noise: float = STEP_NOISE, boot_noise: float = BOOT_NOISE) -> Job:
    """ResNet-50 on GPUs, 5 epochs, one batch per GPU up to a limit (section 7.1.2)."""
    samples = 5.0 * EPOCH_OF_IMAGENET

    def batch(k: int) -> int:
        return min(LOCAL_BATCH * k, MOST_BATCH)

    def rate(k: int) -> float:
        return samples / SECONDS_ON_32 * (1.0 + (FASTER_ON_64 - 1.0) * (k - 32) / 32)

    return Job(
        step_s=lambda k: batch(k) / rate(k),
        batch=batch,
        samples=samples,
        least=4,
        most=64,
        unit=4,
        boot_s=45.0,
        join_s=6.813,
        leave_s=4.376,
        step_noise=step_noise,
        boot_noise=boot_noise,
    )


def on_cpus() -> Job:
    """ResNet-56 on 60 machines, 50 epochs (section 7.3)."""
    return Job(
        step_s=lambda k: COMPUTE_S / k + wait_s(k),
        batch=lambda _: BATCH,
        samples=50.0 * EPOCH_OF_CIFAR,
        least=4,
        most=60,
        unit=4,
        boot_s=60.0,
        join_s=3.179,
        leave_s=2.612,
    )


def wait_s(workers: int) -> float:
    """Return what a step on CPUs takes besides computation."""
    return FIXED_S + PER_WORKER_S * workers


JOBS: dict[str, Callable[[], Job]] = {"cifar": cifar, "imagenet": imagenet, "cpus": on_cpus}
