"""Explains a trainer's failures, back end, batch and speed. Pure.

The failures of a final trainer are in its reason. Nothing is said of a back end where there is no
choice: one worker, or models that are not on GPUs. Speeds are those that decisions assume. Called
by ``views``.
"""

from __future__ import annotations

from bftrainer.decide.throughput.batch_curve import efficiency
from bftrainer.decide.throughput.curves import fitted, is_known
from bftrainer.fleet.generations.failures import MAX_BACKOFF_S
from bftrainer.ground.backend_choice import DEVICES
from bftrainer.model.decision import Settings
from bftrainer.model.quantities import quantity
from bftrainer.model.trainer import ADASCALE, TrainerRecord, TrainerState, with_place
from bftrainer.model.views import SizeSpeed
from milp.problem import Curve, Marginal, Objective
from milp.worth import curve_at


def trouble(record: TrainerRecord, budget: int, now_s: float) -> str:
    """Say which failure in a row it had, why, and what happens next; "": none.

    Args:
        record: the trainer.
        budget: the policy's ``failure_budget``.
        now_s: monotonic.
    """
    row = record.failing
    if record.state.is_final or not row.count:
        return ""
    wait_s = row.next_try_s - now_s
    is_running = record.state is TrainerState.RUNNING and record.progress.size
    if is_running:
        begin = "Goes on"
    elif 0.0 < wait_s <= MAX_BACKOFF_S:  # more: the machine was rebooted since
        begin = "Waits a moment"
        if wait_s >= 1.0:
            begin = f"Waits {wait_s:.0f} s"
    else:
        begin = "Is tried again"
    return (
        f"{begin} after failure {row.count} of {budget} without getting any further, on"
        f" {row.node}: {with_place(row.cause, row.place)} Its log: {row.log_path}"
    )


def trouble_sentences(record: TrainerRecord, budget: int, now_s: float) -> tuple[str, ...]:
    """Say so in an explanation, unless it is being cancelled: then it is not tried again."""
    if record.cancelled_s is not None:
        return ()
    return tuple(filter(None, [trouble(record, budget, now_s)]))


def divergence_sentences(record: TrainerRecord) -> tuple[str, ...]:
    """Say that its loss is no finite number any more."""
    if record.diverged is None:
        return ()
    return (record.diverged.cause,)


def backend_sentences(record: TrainerRecord) -> tuple[str, ...]:
    """Say whether gradients stay on the GPUs and, if not, why."""
    progress = record.progress
    name, _, reason = progress.backend.removesuffix(")").partition(" (")
    if progress.size < 2 or record.state.is_final:
        return ()
    if name in DEVICES:
        return (f"Its workers average gradients with {name.upper()}, from GPU to GPU.",)
    if not reason:
        return ()
    return (
        f"Its workers average gradients with {name}, through the memory of their hosts: {reason}.",
    )


def batch_sentences(record: TrainerRecord) -> tuple[str, ...]:
    """Say which batch it trains with, and why not another."""
    bounds, progress = record.spec.batch, record.progress
    if bounds is None or not (progress.size and progress.batch) or record.state.is_final:
        return ()
    batch = f"Its global batch is {progress.batch} of {bounds.least}:{bounds.most}"
    if bounds.lr_rule != ADASCALE:
        return (f"{batch}, the most samples per second at this size.",)
    if not record.costs.noise_scale:
        return (f"{batch}; it grows when the noise of the gradients is known.",)
    noise = record.costs.noise_scale
    share = efficiency(float(progress.batch), bounds.least, noise)
    worth = f"{100 * share:.0f}% of one in a batch of {bounds.least}"
    return (f"{batch}; the noise scale is {quantity(noise)} samples, so each is worth {worth}.",)


def planned_speed(record: TrainerRecord, settings: Settings, planned: int) -> float:
    """Return samples per second on so many nodes as decisions assume it; 0: not known, or none."""
    if not planned or record.state.is_final or not is_known(record):
        return 0.0
    return max(0.0, curve_at(fitted(record, explores=settings.explore_budget > 0.0).curve, planned))


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
    samples_per_unit = _samples_per_unit(curve, settings.objective, spec.weight)
    smaller, larger = planned - 1, max(planned + 1, spec.n_min)
    if spec.sizes:
        smaller = max([size for size in spec.sizes if size < planned], default=smaller)
        larger = min([size for size in spec.sizes if size > planned], default=larger)
    changes: dict[int, float | None] = {smaller: None, planned: None, larger: None}
    if marginal and marginal.loss_of_one_fewer is not None:
        changes[smaller] = -marginal.loss_of_one_fewer * samples_per_unit
    if marginal and marginal.gain_of_one_more is not None and larger == planned + 1:
        changes[larger] = marginal.gain_of_one_more * samples_per_unit
    left_samples = (record.progress.total or spec.samples or 0) - record.progress.samples
    speeds: list[SizeSpeed] = []
    for size, change in changes.items():
        if not 0 < size <= spec.n_max or not spec.has_size(size):
            continue
        samples_per_s, left_s = curve_at(curve, size), None
        if samples_per_s <= 0.0:
            continue
        if left_samples > 0:
            left_s = left_samples / samples_per_s
        speed = SizeSpeed(
            size=size, samples_per_s=samples_per_s, left_s=left_s, change_samples=change
        )
        speeds.append(speed)
    return tuple(speeds)


def _samples_per_unit(curve: Curve, objective: Objective, weight: float) -> float:
    """Return how many samples one unit of the objective stands for (``milp.problem``)."""
    if objective is Objective.THROUGHPUT:
        return 1.0
    if objective is Objective.WEIGHTED:
        return curve_at(curve, 1) / weight
    return curve_at(curve, 1)
