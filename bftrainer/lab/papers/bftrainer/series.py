"""A replay over time: rates and costs between its events, computed from its plans alone.

Section 5 shows most results per event or per six hours; a replay's metrics are totals. The sums
here equal them (tests/simulate/test_reproduce.py), although they are computed independently.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from bftrainer.lab.simulator.trainers import SimTrainer, rates_of
from bftrainer.model.decision import DecisionInput, Plan
from bftrainer.model.lookups import by_trainer
from bftrainer.model.trainer import TrainerRecord
from milp.problem import Curve

Column = NDArray[np.float64]
_rates = lru_cache(maxsize=64)(rates_of)


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Columns by event (n events); n + 1 entries include the end of the replay."""

    at_s: Column  # n + 1: events, then the end
    pool: Column  # n: nodes until the next event
    rate: Column  # n: samples/s of all trainers until the next event
    rescale: Column  # n: samples that the decision at this event costs
    preemption: Column  # n + 1: samples lost because nodes left at this event
    preempted: Column  # n + 1: trainers that lost nodes at this event
    excess: Column  # n + 1: samples that completed trainers processed beyond their end

    def gross(self) -> Column:
        """Return the samples processed between events, before costs."""
        return self.rate * np.diff(self.at_s)

    def net(self) -> Column:
        """Return the samples processed between events, less the costs at both ends.

        The costs are those of the decision at the start and of nodes lost at the end.
        """
        return self.gross() - self.rescale - self.preemption[1:] - self.excess[1:]

    def until(self, end_s: float) -> Series:
        """Return the part up to an instant; what happens at it is part of that."""
        n = int(np.searchsorted(self.at_s[:-1], end_s))
        return Series(
            at_s=np.append(self.at_s[:n], end_s),
            pool=self.pool[:n],
            rate=self.rate[:n],
            rescale=self.rescale[:n],
            preemption=self.preemption[: n + 1],
            preempted=self.preempted[: n + 1],
            excess=self.excess[: n + 1],
        )


class PlanRecorder:
    """Records the course of a replay; called with each of its plans."""

    def __init__(self) -> None:
        self._assignment: dict[str, str] = {}
        self._records: dict[str, TrainerRecord] = {}
        self._rows: list[tuple[float, float, float, float, float, float]] = []

    def __call__(self, question: DecisionInput, plan: Plan) -> None:
        """Record one decision."""
        pool = {node.name for node in plan.pool}
        before = Counter(self._assignment.values())
        present = Counter[str]()  # nodes that are still in the pool
        for node_name, trainer_id in self._assignment.items():
            present[trainer_id] += node_name in pool
        after = Counter(plan.assignment.values())
        lost_samples, n_preempted = 0.0, 0
        for trainer_id, size in before.items():
            if present[trainer_id] < size:
                lost_samples += _cost(self._records[trainer_id], size, size - 1)
                n_preempted += 1
        self._records = by_trainer(question.trainers)
        rate, fines = 0.0, 0.0
        for trainer_id, record in self._records.items():
            rate += _rate(record, after[trainer_id])
            fines += _cost(record, present[trainer_id], after[trainer_id])
        self._assignment = dict(plan.assignment)
        self._rows.append((question.now_s, len(pool), rate, fines, lost_samples, n_preempted))

    def series(self, end_s: float, trainers: Iterable[SimTrainer]) -> Series:
        """Return the columns after the end of the replay."""
        columns = np.array(list(zip(*self._rows, strict=True)), dtype=np.float64)
        at_s, pool, rate, rescale, preemption, preempted = columns
        excess = np.zeros(len(at_s) + 1)
        for trainer in trainers:
            beyond = trainer.done - trainer.submission.samples
            if beyond > 0:
                ended_s = end_s if trainer.finished_s is None else trainer.finished_s
                excess[int(np.searchsorted(at_s, ended_s))] += beyond
        return Series(
            at_s=np.append(at_s, end_s),
            pool=pool,
            rate=rate,
            rescale=rescale,
            preemption=np.append(preemption, 0.0),
            preempted=np.append(preempted, 0.0),
            excess=excess,
        )


def _rate(record: TrainerRecord, size: int) -> float:
    curve = record.spec.curve
    if curve is None or not size:  # every trainer of a workload has a curve
        return 0.0
    return _rates(curve, record.spec.n_max)[size]


def _cost(record: TrainerRecord, before: int, after: int) -> float:
    """Return the cost of a change of size in the paper's cost model, samples."""
    if before == after:
        return 0.0
    costs = record.costs
    seconds = costs.rescale_up_s if after > before else costs.rescale_down_s
    return _rate(record, before) * (seconds or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """Sums over windows of equal length."""

    hours: Column  # n + 1: edges, from the start
    n_eq: Column
    outcome: Column  # samples, after costs
    rescale: Column
    preemption: Column


def windows_of(series: Series, hours: float) -> Windows:
    """Sum a series over windows of this length; an incomplete last window is left out."""
    begin_s = float(series.at_s[0])
    count = int((float(series.at_s[-1]) - begin_s) / (3600.0 * hours) + 1e-9)
    edges_s = begin_s + 3600.0 * hours * np.arange(count + 1, dtype=np.float64)
    return Windows(
        hours=(edges_s - begin_s) / 3600.0,
        n_eq=_between(series.at_s, series.pool * np.diff(series.at_s), edges_s) / (3600.0 * hours),
        outcome=_between(series.at_s, series.net(), edges_s),
        rescale=_between(series.at_s, series.rescale, edges_s),
        preemption=_between(series.at_s, series.preemption[1:], edges_s),
    )


def _between(at_s: Column, amounts: Column, edges_s: Column) -> Column:
    """Return amounts by window; an interval that spans an edge is split in proportion."""
    sums = np.concatenate(([0.0], np.cumsum(amounts)))
    return np.diff(np.interp(edges_s, at_s, sums))


def static_outcome(curve: Curve, n_eq: Column, p_jmax: int, seconds: float) -> Column:
    """Return A_s of each window: identical trainers share its N_eq nodes equally."""
    sizes, values = (0, *curve.sizes), (0.0, *curve.samples_per_s)
    return np.interp(n_eq / p_jmax, sizes, values) * p_jmax * seconds


def share_followed(series: Series, within_s: Sequence[float]) -> list[float]:
    """Return the share of decisions after which a trainer loses nodes within each time."""
    losses = series.at_s[series.preempted > 0]
    events = series.at_s[:-1]
    ahead = np.append(losses, np.inf)[np.searchsorted(losses, events, side="right")] - events
    is_within = ahead <= np.array(within_s)[:, None]  # by time, by decision
    shares: list[float] = is_within.mean(axis=1).tolist()
    return shares
