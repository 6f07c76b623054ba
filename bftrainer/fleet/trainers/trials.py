"""What is special about trainers that are trials: reports and rungs. Pure.

``actuate.trainers`` calls it; the study itself is run by ``bftrainer.study``, outside the daemon.
"""

from __future__ import annotations

from dataclasses import replace

from bftrainer.elastic import protocol
from bftrainer.elastic.protocol import MAX_REPORTS, Reported
from bftrainer.fleet.generations.members import Ended
from bftrainer.model.errors import UsageError
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

    A message repeats the last reports of the training. Known ones that are not before its first
    one are of a future that was undone, unless it has them, too.
    """
    if said.generation < record.progress.generation or not said.reports:
        return record
    heard_s = {_position(one): one.reported_s for one in record.reports}
    first = _position(said.reports[0])
    reports = (
        *(one for one in record.reports if _position(one) < first),
        *(
            Report(
                value=one.value,
                step=one.step,
                epoch=one.epoch,
                samples=one.samples,
                reported_s=heard_s.get(_position(one), now_s),
            )
            for one in said.reports
        ),
    )
    return record if reports == record.reports else replace(record, reports=thinned(reports))


def thinned(reports: tuple[Report, ...]) -> tuple[Report, ...]:
    """Drop every second of too many reports, none of those that a worker may repeat."""
    while len(reports) > MOST_REPORTS:
        reports = reports[:-MAX_REPORTS][::2] + reports[-MAX_REPORTS:]
    return reports


def _position(report: Report | protocol.Report) -> tuple[int, int, int]:
    return report.samples, report.epoch, report.step


def check_growth(record: TrainerRecord, change: TrainerChange) -> bool:
    """Refuse a budget that cannot be granted; return whether one is.

    Raises:
        UsageError: BFT-1601, it is no trial, or the budget is out of its range; BFT-1602, it
            trains.
    """
    tag, budget = record.spec.trial, record.spec.budget
    if change.budget is None or change.budget == budget:
        return False
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
    return True
