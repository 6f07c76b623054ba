"""What is special about trainers that are trials: reports and rungs. Pure.

``actuate.trainers`` calls it; the study itself is run by ``bftrainer.study``, outside the daemon.
"""

from __future__ import annotations

from dataclasses import replace

from bftrainer.actuate.group import Ended
from bftrainer.elastic.protocol import Reported
from bftrainer.errors import UsageError
from bftrainer.model.study import MOST_REPORTS, Report
from bftrainer.model.trainer import TrainerChange, TrainerRecord, TrainerSpec, TrainerState


def is_at_rung(spec: TrainerSpec, done: Ended) -> bool:
    """Whether a trial that has ended used up a budget that its study may enlarge.

    A script that left its loop early has ended for good.
    """
    tag, budget = spec.trial, spec.budget
    if tag is None or tag.most is None or budget is None or budget >= tag.most:
        return False
    if spec.runtime != "torch":  # others may count what they like
        return True
    return (done.samples if spec.epochs is None else done.epoch) >= budget


def at_rung(record: TrainerRecord, done: Ended, now_s: float) -> TrainerRecord:
    """Return the record of a trial that waits for its study."""
    progress = replace(
        record.progress,
        size=0,
        samples_per_s=0.0,
        step=done.step,
        epoch=done.epoch,
        samples=done.samples,
    )
    return replace(
        record,
        state=TrainerState.PARKED,
        reason=f"It has trained its budget of {record.spec.budget}.",
        progress=progress,
        workers=(),
        rung_s=now_s,
    )


def with_reports(record: TrainerRecord, said: Reported, now_s: float) -> TrainerRecord:
    """Return the record with what was reported; the same object if that is known.

    A report of the same progress replaces an earlier one: the training was repeated from a
    checkpoint.
    """
    known = {(r.epoch, r.samples, r.step): r for r in record.reports}
    for one in said.reports:
        key = one.epoch, one.samples, one.step
        before = known.get(key)
        if before is None or before.value != one.value:
            known[key] = Report(
                value=one.value,
                step=one.step,
                epoch=one.epoch,
                samples=one.samples,
                reported_s=now_s if before is None else before.reported_s,
            )
    reports = tuple(known[key] for key in sorted(known))
    if reports == record.reports:
        return record
    return replace(record, reports=thinned(reports))


def thinned(reports: tuple[Report, ...]) -> tuple[Report, ...]:
    """Drop every second of too many reports, never the last one."""
    while len(reports) > MOST_REPORTS:
        reports = reports[-1::-2][::-1]
    return reports


def check_growth(record: TrainerRecord, change: TrainerChange) -> None:
    """Refuse a budget that cannot be granted.

    Raises:
        UsageError: BFT-1601, it is no trial, or the budget is out of its range; BFT-1602, it
            trains.
    """
    tag, budget = record.spec.trial, record.spec.budget
    if change.budget is None or change.budget == budget:
        return
    if tag is None or budget is None or not budget < change.budget <= (tag.most or budget):
        raise UsageError(
            "BFT-1601",
            f"Trainer {record.trainer_id} cannot have the budget {change.budget}.",
            "Only a trial's budget can grow, up to the full budget of its study.",
        )
    if record.rung_s is None:
        raise UsageError(
            "BFT-1602",
            f"Trial {record.trainer_id} has not trained its budget of {budget} yet.",
            "Enlarge it when it waits at its rung.",
        )
