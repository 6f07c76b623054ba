"""Statistical efficiency: what a sample of a larger batch is worth.

Source: Qiao et al., "Pollux" (OSDI'21), section 3: a sample of a batch m is worth
(phi + m0) / (phi + m) of one of the batch m0; the noise scale phi is the variance of the gradient
over its squared norm, in samples. Goodput is throughput times efficiency: throughput grows with
the batch, efficiency falls; the larger the noise, the larger the best batch.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

Batches = TypeVar("Batches", float, npt.NDArray[np.float64])


def efficiency(batch: Batches, least_batch: float, noise_scale: float) -> Batches:
    """Return what a sample of a global batch is worth, that of the least one being 1."""
    return (noise_scale + least_batch) / (noise_scale + batch)
