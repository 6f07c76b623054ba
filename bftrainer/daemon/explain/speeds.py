"""Says what a trainer's size, and one node more or fewer, mean in samples and in time. Pure.

The figures are those that decisions assume. Called by ``service``.
"""

from __future__ import annotations

from bftrainer.decide.throughput.curves import fitted, is_known
from bftrainer.model.decision import Settings
from bftrainer.model.trainer import TrainerRecord
from bftrainer.model.views import SizeSpeed
from milp.problem import Curve, Marginal, Objective
from milp.worth import curve_at


def near_speeds(
    record: TrainerRecord, settings: Settings, planned: int, marginal: Marginal | None
) -> tuple[SizeSpeed, ...]:
    """Return its planned size, one node fewer, and the next larger; (): throughput not known.

    Args:
        record: the trainer.
        settings: of the policy.
        planned: its nodes in the last decision.
        marginal: what that decision priced; None: nothing.
    """
    spec = record.spec
    if record.state.is_final or not is_known(record):
        return ()
    curve = fitted(record, explores=settings.explore_budget > 0.0).curve
    each = _samples_per_unit(curve, settings.objective, spec.weight)
    larger = max(planned + 1, spec.n_min)
    more = marginal.gain_of_one_more if marginal and larger == planned + 1 else None
    fewer = marginal.loss_of_one_fewer if marginal else None
    changes = {
        planned - 1: None if fewer is None else -fewer * each,
        planned: None,
        larger: None if more is None else more * each,
    }
    left = (record.progress.total or spec.samples or 0) - record.progress.samples
    found = []
    for size, change in changes.items():
        rate = curve_at(curve, size) if size > 0 else 0.0
        if rate > 0.0 and spec.n_min <= size <= spec.n_max:
            left_s = left / rate if left > 0 else None
            found.append(
                SizeSpeed(size=size, samples_per_s=rate, left_s=left_s, change_samples=change)
            )
    return tuple(found)


def _samples_per_unit(curve: Curve, objective: Objective, weight: float) -> float:
    """Return how many samples one unit of the objective stands for (``milp.problem``)."""
    if objective is Objective.THROUGHPUT:
        return 1.0
    return curve_at(curve, 1) / (weight if objective is Objective.WEIGHTED else 1.0)
