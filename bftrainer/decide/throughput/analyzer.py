"""Predicts scaling before a trainer has run, from one worker's steps and an all-reduce table.

t(b, k) = t_proc(ceil(b / k)) + t_comm(weights, k), the Job Scalability Analyzer of Saxena et
al., "Effective elastic scaling of deep learning workloads" (arXiv 2006.13878), section
III-B: t_proc is measured on one worker for some batch sizes, t_comm once per cluster for
some numbers of weights and workers; both are interpolated linearly. Beyond the measured number of
workers t_comm grows by its last increase per doubling. Called by ``cli.profile``.

A node with several workers counts as one of the paper's. If each has a whole model, all of them
exchange gradients; shards are exchanged with one worker of each node, in all a model's gradients.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

from bftrainer.model.errors import UsageError
from milp.portable import interpolated, log2
from milp.problem import Curve


@dataclass(frozen=True, slots=True, kw_only=True)
class AllreduceTable:
    """Seconds of one all-reduce of 4-byte weights; one row per number of workers."""

    weights: tuple[int, ...]  # rising
    workers: tuple[int, ...]  # rising, from 2 on
    seconds: tuple[tuple[float, ...], ...]  # [workers][weights]

    def time_s(self, weights: int, workers: int) -> float:
        """t_comm, interpolated; 0 with one worker."""
        if workers < 2:
            return 0.0
        logs = [0.0, *map(log2, self.workers)]
        times = [0.0]
        for row in self.seconds:
            exchange_s = interpolated(weights, self.weights, row)
            if weights > self.weights[-1]:  # proportional to the bytes
                exchange_s = exchange_s * weights / self.weights[-1]
            times.append(exchange_s)
        at = log2(workers)
        if at <= logs[-1]:
            return interpolated(at, logs, times)
        per_doubling = (times[-1] - times[-2]) / (logs[-1] - logs[-2])
        return times[-1] + max(0.0, per_doubling) * (at - logs[-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """The duration of a step on one node; one row per batch size."""

    weights: int  # trained parameters
    global_batch: int  # samples per update, on one node
    is_per_worker: bool = False  # batch per worker is fixed: updates grow with the workers
    batches: tuple[int, ...]  # samples of a node in a step, rising
    seconds: tuple[float, ...]  # median of several steps
    replicas: int = 1  # of the model on a node

    def batch_at(self, nodes: int) -> int:
        """Return the samples per update."""
        if self.is_per_worker:
            return self.global_batch * nodes
        return self.global_batch

    def time_s(self, batch: int) -> float:
        """t_proc, interpolated; beyond the measured sizes, along the nearest two."""
        if len(self.batches) == 1:
            return self.seconds[0]
        if self.batches[0] <= batch <= self.batches[-1]:
            return interpolated(batch, self.batches, self.seconds)
        i = 0 if batch < self.batches[0] else len(self.batches) - 2
        (b0, b1), (t0, t1) = self.batches[i : i + 2], self.seconds[i : i + 2]
        shortest_s = 0.5 * min(self.seconds)
        return max(shortest_s, t0 + (t1 - t0) * (batch - b0) / (b1 - b0))


def predict(steps: StepTimes, table: AllreduceTable, sizes: Sequence[int]) -> Curve:
    """Return the throughput at these sizes, in nodes."""
    rates = []
    for k in sizes:
        batch = steps.batch_at(k)
        exchange_s = table.time_s(steps.weights, k * steps.replicas)
        step_s = steps.time_s(math.ceil(batch / k)) + exchange_s
        rates.append(batch / step_s)
    return Curve(sizes=tuple(sizes), samples_per_s=tuple(rates))


def table_from(data: Any, where: str) -> AllreduceTable:
    """Read what ``bftrainer profile allreduce`` wrote.

    Raises:
        UsageError: BFT-4202, it is not such a table.
    """
    try:
        table = AllreduceTable(
            weights=tuple(map(int, data["weights"])),
            workers=tuple(map(int, data["workers"])),
            seconds=tuple(tuple(map(float, row)) for row in data["seconds"]),
        )
    except (KeyError, TypeError, ValueError) as problem:
        raise _no_table(where, f"{type(problem).__name__}: {problem}") from problem
    shape = list(map(len, table.seconds))
    if not table.workers or shape != [len(table.weights)] * len(table.workers) or not shape[0]:
        raise _no_table(where, "one row per number of workers, one value per number of weights")
    if table.workers[0] < 2 or not (_rises(table.weights) and _rises(table.workers)):
        raise _no_table(where, "weights and workers rise, workers from 2 on")
    if not all(0.0 <= t < math.inf for t in chain.from_iterable(table.seconds)):
        raise _no_table(where, "times are numbers of seconds")
    return table


def table_document(table: AllreduceTable, about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table in the form that ``table_from`` reads."""
    return {
        "table": "allreduce",
        **about,
        "weights": list(table.weights),
        "workers": list(table.workers),
        "seconds": list(map(list, table.seconds)),
    }


def _rises(axis: Sequence[int]) -> bool:
    return all(a < b for a, b in pairwise(axis))


def _no_table(where: str, why: str) -> UsageError:
    return UsageError(
        "BFT-4202",
        f"{where} is not an all-reduce table ({why}).",
        "Make one with: bftrainer profile allreduce --out FILE",
    )
