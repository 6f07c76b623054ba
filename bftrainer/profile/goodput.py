"""Goodput: throughput times statistical efficiency, and the batch where it is largest.

Source: Qiao et al., "Pollux" (OSDI'21), section 3: a sample of a batch m is worth
(phi + m0) / (phi + m) of one of the batch m0 that the learning rate was chosen for; the noise scale
phi is the variance of the gradient over its squared norm, in samples. Throughput grows with the
batch, efficiency falls; the larger the noise, the larger the best batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable


def efficiency(batch: float, initial_batch: float, noise_scale: float) -> float:
    """Return what a sample of a global batch is worth, that of the initial one being 1."""
    return (noise_scale + initial_batch) / (noise_scale + batch)


def best_batch(
    batches: Iterable[int],
    samples_per_s: Callable[[int], float],
    initial_batch: float,
    noise_scale: float,
) -> tuple[int, float]:
    """Return the batch of the largest goodput, and the goodput; the smallest of equal ones.

    Args:
        batches: admissible global batches, at least one, ascending.
        samples_per_s: throughput with a batch.
        initial_batch: the one whose samples count as 1.
        noise_scale: of the gradient, in samples, at least 0.
    """
    goodput = {
        batch: samples_per_s(batch) * efficiency(batch, initial_batch, noise_scale)
        for batch in batches
    }
    best = max(goodput, key=goodput.__getitem__)
    return best, goodput[best]
