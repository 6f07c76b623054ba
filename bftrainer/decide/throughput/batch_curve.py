"""The throughput curve of a trainer that admits several batches, and their choice. Pure.

Statistical efficiency (Qiao et al., "Pollux", OSDI'21, section 3): a sample of a batch m is worth
(phi + m0) / (phi + m) of one of the batch m0; the noise scale phi is the variance of the gradient
over its squared norm, in samples. Goodput is throughput times efficiency: throughput grows with
the batch, efficiency falls; the larger the noise, the larger the best batch.

Model: a step over b samples on w workers takes

    t(b, w) = t_sample ceil(b/w) + t_pass passes + t_doubling log2(w) + t_sync (w - 1)/w

with non-negative parts fitted to the throughputs measured per size and batch. The best batch of a
size has the most samples per second (Saxena et al., "Effective elastic scaling of deep learning
workloads", arXiv 2006.13878, eq. 2). With the learning rate rule ``adascale`` samples count with
their statistical efficiency (goodput). Until the noise scale is known it counts as 0: the least
batch is the best. Called by ``curves`` for decisions and by ``fleet.trainers`` for workers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from bftrainer.decide.throughput.fit import Fitted, MeasuredSize, fitted_parts
from bftrainer.model.trainer import ADASCALE, BatchRange, TrainerRecord
from milp.portable import log2
from milp.problem import Curve

Rates = npt.NDArray[np.float64]
Batches = TypeVar("Batches", float, Rates)
# Seconds of the parts in units of t_sample per_worker, before anything was measured, and how far
# they may be off.
_GUESS: Final = (1.0, 0.25, 0.04, 0.01)
_SPREAD: Final = (1.0, 0.5, 0.15, 0.05)
WORTH_IT: Final = 1.05  # a batch is changed at an unchanged size for at least this factor
SIZES_UP_TO: Final = 8  # each size is a breakpoint of the curve; beyond, powers of two


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


def efficiency(batch: Batches, least_batch: float, noise_scale: float) -> Batches:
    """Return what a sample of a global batch is worth, that of the least one being 1."""
    return (noise_scale + least_batch) / (noise_scale + batch)


class BatchThroughput(NamedTuple):
    """The measured throughput with one batch on some workers."""

    workers: int
    batch: int
    samples_per_s: float
    error: float  # relative standard error


class Model(NamedTuple):
    """A model of the throughput of batches on a number of workers."""

    bounds: BatchRange
    parts: tuple[float, ...]  # seconds of the model's parts; of no known unit if not measured
    noise_scale: float

    def worths(self, workers: int, batches: Sequence[int]) -> Rates:
        """Return the throughput of each batch, under ``adascale`` times its efficiency."""
        sizes = np.array(batches, dtype=np.float64)
        columns = _basis(workers, sizes, self.bounds.per_worker)
        step_s = np.zeros(len(sizes))
        for seconds, column in zip(self.parts, columns, strict=True):
            step_s += seconds * column  # in this order, on every processor
        rates: Rates = sizes / step_s
        if self.bounds.lr_rule == ADASCALE:
            rates *= efficiency(sizes, self.bounds.least, self.noise_scale)
        return rates

    def worth(self, workers: int, batch: int) -> float:
        """Return the same of one batch."""
        return float(self.worths(workers, (batch,))[0])

    def best(self, workers: int) -> int:
        """Return the best batch; where none is admitted, the nearest that can be trained with.

        Too few workers take the least batch in several passes; of too many some have no samples.
        """
        if batches := candidates(self.bounds, workers):
            return batches[int(np.argmax(self.worths(workers, batches)))]
        if workers <= self.bounds.most:
            return self.bounds.least
        return self.bounds.most


def fitted_with_batches(record: TrainerRecord, points: tuple[MeasuredSize, ...]) -> Fitted:
    """Return the curve of a trainer that admits several batches; ``points``: its best, by size."""
    spec = record.spec
    model = _model_of(record)
    return Fitted(_curve(model, spec.workers_per_node, spec.n_max), points)


def batches_of(record: TrainerRecord, most_nodes: int) -> tuple[int, ...]:
    """Return the batch to train with on 1, 2, … nodes; empty: it admits only its own.

    At its present size a trainer keeps its batch unless another is worth clearly more.
    """
    if record.spec.batch is None or most_nodes < 1:
        return ()
    model, per_node = _model_of(record), record.spec.workers_per_node
    best_batches = [_best(model, per_node * n) for n in range(1, most_nodes + 1)]
    size, batch = record.progress.size, record.progress.batch
    if 0 < size <= most_nodes and record.spec.batch.least <= batch <= record.spec.batch.most:
        workers = per_node * size
        if model.worth(workers, best_batches[size - 1]) < WORTH_IT * model.worth(workers, batch):
            best_batches[size - 1] = batch
    return tuple(best_batches)


def _model_of(record: TrainerRecord) -> Model:
    bounds, costs, per_node = record.spec.batch, record.costs, record.spec.workers_per_node
    if bounds is None:
        raise ValueError(f"{record.trainer_id} admits one batch")
    errors = {(entry.size, entry.batch): entry.told_error for entry in costs.throughput}
    points: list[BatchThroughput] = []
    for size, batch, rate in costs.samples_per_s_by_batch:
        error = min(1.0, errors.get((size, batch), 0.05))
        points.append(BatchThroughput(per_node * size, batch, rate, error))
    return Model(bounds, _parts(bounds.per_worker, tuple(points)), costs.noise_scale)


@lru_cache(maxsize=1024)
def _parts(per_worker: int, measured: tuple[BatchThroughput, ...]) -> tuple[float, ...]:
    if not measured:
        return tuple([part / per_worker for part in _GUESS])
    rows = []
    for workers, batch, *_ in measured:
        columns = _basis(workers, np.array([float(batch)]), per_worker)
        rows.append([float(column[0]) / batch for column in columns])
    _, _, values, errors = zip(*measured, strict=True)
    return tuple(fitted_parts(rows, values, errors, _GUESS, _SPREAD))


@lru_cache(maxsize=1 << 14)
def _best(model: Model, workers: int) -> int:
    return model.best(workers)


@lru_cache(maxsize=1024)
def _curve(model: Model, each: int, n_max: int) -> Curve:
    sizes = set(range(1, min(n_max, SIZES_UP_TO) + 1))
    sizes.add(n_max)
    for k in range(n_max.bit_length()):
        sizes.add(1 << k)
    rates: list[float] = []
    for size in sorted(sizes):
        workers = each * size
        rates.append(model.worth(workers, _best(model, workers)))
    return Curve(sizes=tuple(sorted(sizes)), samples_per_s=tuple(rates))


def _basis(workers: int, batches: Rates, per_worker: int) -> tuple[Rates, ...]:
    """Seconds of a step over each batch, of one unit of each part in turn."""
    shares = np.ceil(batches / workers)
    every = np.ones(len(batches))
    return (
        shares,
        per_worker * np.ceil(shares / per_worker),
        per_worker * log2(workers) * every,
        per_worker * ((workers - 1.0) / workers) * every,
    )
