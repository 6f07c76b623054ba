"""Chooses the global batch of a number of workers: the fastest one that a trainer admits.

Source: Saxena et al., "Effective elastic scaling of deep learning workloads" (arXiv 2006.13878),
eq. 2. Pure.
"""

from __future__ import annotations

from collections.abc import Callable

from bftrainer.model.batch import BatchRange


def best_batch(bounds: BatchRange, workers: int, rate: Callable[[int], float]) -> int | None:
    """Return the admitted batch of the highest rate; the smallest of equal ones.

    Args:
        bounds: of the trainer.
        workers: how many train, at least one.
        rate: batch -> samples per second with that number of workers.

    Returns:
        ``None`` if no batch is admitted.
    """
    return max(candidates(bounds, workers), key=rate, default=None)


def candidates(bounds: BatchRange, workers: int) -> list[int]:
    """Return the batches of which one is the fastest, rising.

    A batch is admitted within ``least`` and ``most`` if every worker gets at least one sample and
    at most ``per_worker``.

    A step takes as long as the largest share x of a worker does. Of all batches with that share
    the largest is therefore the fastest, in samples per second: workers * x, or ``most``. No other
    batch is tried.
    """
    if bounds.most < max(bounds.least, workers):
        return []
    first = max(1, -(-bounds.least // workers))
    last = min(bounds.per_worker, -(-bounds.most // workers))
    return [min(share * workers, bounds.most) for share in range(first, last + 1)]
