"""What happens between the events of a replay, worked out from its plans alone.

``PlanRecorder`` is given every plan of a replay with the paper's books and adds up rates and
costs on its own; ``series_of`` makes columns of it. Section 5 shows most results per event
or per six hours, which the totals of a replay do not give.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from bftrainer.model.decision import DecisionInput, Plan
from bftrainer.model.trainer import TrainerRecord
from bftrainer.simulate.trainers import SimTrainer, rates_of
from milp.problem import Curve

Column = NDArray[np.float64]
_rates = lru_cache(maxsize=64)(rates_of)


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Columns of n events; those that close an interval have one entry more."""

    at_s: Column  # n + 1: the events and the end
    pool: Column  # n: nodes from the event on
    rate: Column  # n: samples/s of all trainers from the event on
    rescale: Column  # n: samples that the decision at the event costs
    preemption: Column  # n + 1: samples lost at the event, because nodes left
    preempted: Column  # n + 1: trainers that lost nodes at the event
    excess: Column  # n + 1: samples beyond the ends of the trainers that completed

    def gross(self) -> Column:
        """Return the samples processed between events, costs not taken off."""
        return self.rate * np.diff(self.at_s)

    def net(self) -> Column:
        """Return the samples between events less what the events at both ends cost.

        The costs are those of the decision before and of the nodes lost after.
        """
        return self.gross() - self.rescale - self.preemption[1:] - self.excess[1:]


class PlanRecorder:
    """Sees every plan of a replay."""

    def __init__(self) -> None:
        self._assignment: dict[str, str] = {}
        self._records: dict[str, TrainerRecord] = {}
        self._rows: list[tuple[float, float, float, float, float, float]] = []

    def __call__(self, given: DecisionInput, plan: Plan) -> None:
        """Take note of one decision."""
        pool = {node.name for node in plan.pool}
        before = Counter(self._assignment.values())
        present = Counter(t for n, t in self._assignment.items() if n in pool)
        after = Counter(plan.assignment.values())
        lost, preempted = 0.0, 0
        for trainer_id, size in before.items():
            if present[trainer_id] < size:
                lost += _cost(self._records[trainer_id], size, size - 1)
                preempted += 1
        self._records = {record.trainer_id: record for record in given.trainers}
        rate, fines = 0.0, 0.0
        for trainer_id, record in self._records.items():
            rate += _rate(record, after[trainer_id])
            fines += _cost(record, present[trainer_id], after[trainer_id])
        self._assignment = dict(plan.assignment)
        self._rows.append((given.now_s, len(pool), rate, fines, lost, preempted))

    def series(self, end_s: float, trainers: Iterable[SimTrainer]) -> Series:
        """Return the columns, once the replay is over."""
        at_s, pool, rate, rescale, preemption, preempted = (
            np.array(column, dtype=np.float64) for column in zip(*self._rows, strict=True)
        )
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
    if curve is None or not size:  # a workload's trainers all have a curve
        return 0.0
    return _rates(curve, record.spec.n_max)[size]


def _cost(record: TrainerRecord, before: int, after: int) -> float:
    """What a change of size costs in the paper's books."""
    if before == after:
        return 0.0
    costs = record.costs
    seconds = costs.rescale_up_s if after > before else costs.rescale_down_s
    return _rate(record, before) * (seconds or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """Sums over windows of equal length."""

    hours: Column  # n + 1: edges, from the start on
    n_eq: Column
    outcome: Column  # samples, costs taken off
    rescale: Column
    preemption: Column


def windows_of(series: Series, hours: float) -> Windows:
    """Add a series up in windows of so many hours; a last one that is not full is left out."""
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
    """Amounts by window; one that spans an edge is shared in proportion."""
    so_far = np.concatenate(([0.0], np.cumsum(amounts)))
    return np.diff(np.interp(edges_s, at_s, so_far))


def static_outcome(curve: Curve, n_eq: Column, p_jmax: int, seconds: float) -> Column:
    """Return A_s of each window: its N_eq nodes shared equally by identical trainers."""
    sizes, values = (0, *curve.sizes), (0.0, *curve.samples_per_s)
    return np.interp(n_eq / p_jmax, sizes, values) * p_jmax * seconds


def share_followed(series: Series, within_s: Sequence[float]) -> list[float]:
    """Share of decisions after which a trainer loses nodes within a time."""
    losses = series.at_s[series.preempted > 0]
    events = series.at_s[:-1]
    ahead = np.append(losses, np.inf)[np.searchsorted(losses, events, side="right")] - events
    return [float(np.mean(ahead <= seconds)) for seconds in within_s]
