"""Updates trainers' records: users' changes, workers' reports, trials, lives, ends. Pure.

A torch trainer reports the step at which it begins when it enters a generation. A program that is
restarted may report it only with its first progress. Studies themselves are run by
``bftrainer.study``, outside the daemon.

Called by ``trainers``, which stores and journals the records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from bftrainer.fleet.generations.generation import GenerationMachine, mark_of
from bftrainer.fleet.generations.members import Ended, Parked, Regrouped, Rescaled
from bftrainer.ground import protocol
from bftrainer.ground.protocol import MAX_REPORTS, Diverged, Progress, Remarked, Reported, Saved
from bftrainer.model.errors import UsageError
from bftrainer.model.study import MOST_REPORTS, Report
from bftrainer.model.trainer import (
    CheckpointContract,
    Divergence,
    Lives,
    Mark,
    MeasuredCosts,
    Remark,
    TrainerChange,
    TrainerProgress,
    TrainerRecord,
    TrainerSpec,
    TrainerState,
)

CANCELLED = "Cancelled by its user."
KEPT = 8  # lives whose length is remembered
MOST_REMARKS = 12  # of a trainer
SAVE_GRACE_S = 30.0  # time for a cancelled trainer's workers to save and leave


def written(record: TrainerRecord) -> TrainerRecord:
    """Return the record for the journal: of a first life its progress tells as much.

    The release before does not know ``lives``, and must be able to take over.
    """
    lives = record.lives
    is_first = lives.starts <= 1 and not lives.lasted_s and lives.lost == lives.furthest == Mark()
    if is_first and lives != Lives():
        return replace(record, lives=Lives())
    return record


def read(record: TrainerRecord) -> TrainerRecord:
    """Return a record of the journal with what ``written`` left out."""
    reached = mark_of(record.progress)
    if record.lives != Lives() or reached == Mark():
        return record
    return replace(record, lives=Lives(reached=reached, starts=1, began_s=record.started_s or 0.0))


def began(lives: Lives, at: Mark | None, now_s: float) -> Lives:
    """Return them after a start without survivors; ``at`` is None until that is told."""
    lives = replace(lives, starts=lives.starts + 1, is_told=False, began_s=now_s)
    if at is None:
        return lives
    return progressed_lives(lives, at)


def progressed_lives(lives: Lives, to: Mark) -> Lives:
    """Return them after a report of the present life."""
    if lives.is_told:
        if to.is_beyond(lives.reached):
            lives = replace(lives, reached=to)
        return lives
    before, starts = lives.reached, lives.starts
    if to.is_beyond(lives.furthest):
        starts = 1
    return replace(
        lives,
        is_told=True,
        reached=to,
        lost=Mark(
            step=lives.lost.step + max(0, before.step - to.step),
            epoch=lives.lost.epoch + max(0, before.epoch - to.epoch),
            samples=lives.lost.samples + max(0, before.samples - to.samples),
        ),
        starts=starts,
        furthest=lives.furthest.joined(to),
    )


def ended(lives: Lives, now_s: float, *, is_saved: bool) -> Lives:
    """Return them after the last node was left."""
    if is_saved or not lives.began_s:
        return lives
    lasted_s = (*lives.lasted_s, max(0.0, now_s - lives.began_s))
    return replace(lives, lasted_s=lasted_s[-KEPT:])


def save_grace_s(contract: CheckpointContract | None) -> float:
    """Return how long a cancelled trainer may take; programs declare it themselves."""
    if contract is None:
        return SAVE_GRACE_S
    return contract.grace_s


def cancelling(grace_s: float) -> str:
    """Say what a cancelled trainer still does."""
    return f"Cancelling: it writes a checkpoint and ends, within {grace_s:g} s."


def cancelled(record: TrainerRecord, step: int, *, is_saved: bool) -> str:
    """Say what is left of a cancelled trainer."""
    if record.cancelled_s is None:
        return CANCELLED
    if is_saved:
        return f"{CANCELLED} Its state after step {step} is in its checkpoint."
    return f"{CANCELLED} It wrote no checkpoint when it was asked to; the last one stays."


def still(record: TrainerRecord, reason: str) -> str:
    """Return the reason to show in a state that is not final."""
    if record.cancelled_s is None:
        return reason
    return record.reason


def last_progress(progress: TrainerProgress, machine: GenerationMachine) -> TrainerProgress:
    """Return the final progress of a trainer without nodes."""
    return replace(
        progress,
        size=0,
        samples_per_s=0.0,
        gpu_use=None,
        step=max(progress.step, machine.mark.step),
        epoch=max(progress.epoch, machine.mark.epoch),
        samples=max(progress.samples, machine.mark.samples),
    )


def complete(spec: TrainerSpec, done: Ended) -> str:
    """Say that the training is complete, or how much of it the script did."""
    if spec.runtime == "torch":  # others may count what they like
        for unit, goal, progress in (
            ("epochs", spec.epochs, done.epoch),
            ("samples", spec.samples, done.samples),
            ("steps", spec.steps, done.step),
        ):
            if goal is not None and progress < goal:
                return (
                    f"Its script ended after {progress} of {goal} {unit} (--{unit}): it left its"
                    " loop, or its checkpoint is one of a training that was complete."
                )
    return "Its training is complete."


def lived(record: TrainerRecord, said: Progress) -> TrainerRecord:
    """Return the record with what a report of the present generation says of this life."""
    if said.generation != record.progress.generation:
        return record
    lives = progressed_lives(record.lives, mark_of(said))
    if lives is record.lives:
        return record
    return replace(record, lives=lives)


def progressed(
    record: TrainerRecord, said: Progress, costs: MeasuredCosts, now_s: float
) -> TrainerRecord:
    """Return the record after a member's report.

    The generation stays: it changes together with the size, when the last member has entered.
    """
    progress = replace(
        record.progress,
        step=said.step,
        epoch=said.epoch,
        samples=said.samples,
        samples_per_s=said.samples_per_s,
        total=said.total or record.progress.total,
        reported_s=now_s,
        node_s=_attained_node_s(record.progress, now_s),
    )
    return replace(record, costs=costs, progress=progress)


def rescaled(
    record: TrainerRecord, done: Rescaled | Regrouped, costs: MeasuredCosts, now_s: float
) -> TrainerRecord:
    """Return the record after a complete generation; the agents may have announced it."""
    shrunk_s, saved_step = record.shrunk_s, record.saved_step
    if done.size < done.size_before and record.spec.rescale_rest_s:
        shrunk_s = now_s
    if is_start(done):
        saved_step = done.step or None
    diverged, remarks = record.diverged, list[Remark]()
    if is_undone(diverged, done.step):
        diverged = None
    for remark in record.remarks:
        is_present = remark.generation in (0, done.generation)
        if is_present and not is_undone(remark, done.step):
            remarks.append(remark)
    return replace(
        record,
        last_generation=max(record.last_generation, done.generation),
        state=TrainerState.RUNNING,
        reason=still(record, ""),
        started_s=record.started_s if record.started_s is not None else now_s,
        rescales=record.rescales + bool(done.size_before),
        restarts=record.restarts + (is_start(done) and record.started_s is not None),
        costs=costs,
        progress=_entered(record.progress, done, now_s),
        lives=_begun(record, done, now_s),
        shrunk_s=shrunk_s,
        saved_step=saved_step,
        diverged=diverged,
        remarks=tuple(remarks),
    )


def is_start(done: Rescaled | Regrouped) -> bool:
    """Return whether a training begins from what its checkpoint holds, and says where."""
    return not (done.size_before or done.is_restart)


def with_checkpoint(record: TrainerRecord, said: Saved) -> TrainerRecord:
    """Return the record after a checkpoint was written."""
    if said.step == record.saved_step:
        return record
    return replace(record, saved_step=said.step)


def is_undone(said: Divergence | Remark | None, step: int) -> bool:
    """Return whether a training that begins after ``step`` begins before this was said of it."""
    return said is not None and step < said.step


def with_divergence(record: TrainerRecord, said: Diverged) -> TrainerRecord:
    """Return the record with what a worker says of its loss; the first of a row is kept."""
    if record.diverged is not None:
        return record
    return replace(record, diverged=Divergence(step=said.step, cause=said.cause))


def with_remark(record: TrainerRecord, said: Remarked) -> TrainerRecord:
    """Return the record with what a worker remarks.

    Of a kind the first is kept, and that of the newest generation.
    """
    remarks: list[Remark] = []
    for remark in record.remarks:
        if remark.kind != said.kind:
            remarks.append(remark)
        elif remark.generation >= said.generation:
            return record
    if len(remarks) >= MOST_REMARKS:
        return record
    remarks.append(
        Remark(kind=said.kind, step=said.step, generation=said.generation, cause=said.cause)
    )
    return replace(record, remarks=tuple(remarks))


def _begun(record: TrainerRecord, done: Rescaled | Regrouped, now_s: float) -> Lives:
    if done.is_restart:
        return began(record.lives, None, now_s)
    if done.size_before:
        return record.lives
    return began(record.lives, mark_of(done), now_s)


def parked(record: TrainerRecord, done: Parked, now_s: float) -> TrainerRecord:
    """Return the record when no member is left."""
    return replace(
        record,
        state=TrainerState.PARKED,
        reason=still(record, "It has no nodes; it resumes from its last checkpoint."),
        progress=replace(record.progress, size=0, samples_per_s=0.0, gpu_use=None),
        lives=ended(record.lives, now_s, is_saved=done.is_saved),
    )


def _attained_node_s(progress: TrainerProgress, now_s: float) -> float:
    """Node-seconds attained until now: its size has not changed since the last report."""
    return progress.node_s + progress.size * max(0.0, now_s - progress.reported_s)


def _entered(
    progress: TrainerProgress, done: Rescaled | Regrouped, now_s: float
) -> TrainerProgress:
    backend, batch = "", progress.batch
    if isinstance(done, Rescaled):
        backend, batch = done.backend, done.batch
    return replace(
        progress,
        generation=done.generation,
        size=done.size,
        step=done.step,
        epoch=done.epoch,
        samples=done.samples,
        samples_per_s=0.0,
        reported_s=now_s,
        node_s=_attained_node_s(progress, now_s),
        backend=backend,
        batch=batch,
    )


def changed(record: TrainerRecord, change: TrainerChange, now_s: float) -> TrainerRecord:
    """Return the record after a change; it is equal if there was nothing to change."""
    held_s, rung_s = record.held_s, record.rung_s
    if change.is_held is False:
        held_s = None
    elif change.is_held:
        held_s = held_s or now_s
    if change.budget not in (None, record.spec.budget):
        rung_s = None
    record = replace(record, spec=change.applied(record.spec), held_s=held_s, rung_s=rung_s)
    if change.time_limit_s is not None and not has_time_over(record, now_s):
        record = replace(record, overtime_s=None)
    return record


def has_time_over(record: TrainerRecord, now_s: float) -> bool:
    """Return whether a trainer that goes on has used up its time limit."""
    if record.state.is_final or record.cancelled_s is not None or record.time_ends_s is None:
        return False
    return record.time_ends_s <= now_s


def unmet(spec: TrainerSpec, others: Mapping[str, TrainerRecord]) -> tuple[str, ...]:
    """Return the trainers that a submitted one has to wait for."""
    unmet_ids: list[str] = []
    for trainer_id in dict.fromkeys((*spec.after, *spec.after_any)):
        other = others.get(trainer_id)
        if other is None or not _meets(other, spec):
            unmet_ids.append(trainer_id)
    return tuple(unmet_ids)


def freed(ended: TrainerRecord, others: Iterable[TrainerRecord]) -> tuple[TrainerRecord, ...]:
    """Return the records that no longer wait for a trainer, now that it has ended."""
    freed_records: list[TrainerRecord] = []
    for other in others:
        if ended.trainer_id not in other.waits_for or other.state.is_final:
            continue
        if _meets(ended, other.spec):
            waits_for = tuple(i for i in other.waits_for if i != ended.trainer_id)
            freed_records.append(replace(other, waits_for=waits_for))
    return tuple(freed_records)


def again(record: TrainerRecord) -> TrainerSpec:
    """Return what is submitted when a trainer that has ended is requeued."""
    spec, unmet_ids = record.spec, set(record.waits_for)
    return replace(
        spec,
        hold=False,
        after=tuple(i for i in spec.after if i in unmet_ids),
        after_any=tuple(i for i in spec.after_any if i in unmet_ids),
    )


def _meets(ended: TrainerRecord, spec: TrainerSpec) -> bool:
    """Return whether this trainer meets the condition; ``after`` counts before ``after_any``."""
    if ended.trainer_id in spec.after:
        return ended.state is TrainerState.FINISHED
    return ended.state.is_final


def is_at_rung(spec: TrainerSpec, done: Ended) -> bool:
    """Return whether a trial that has ended used up a budget that its study may enlarge.

    A script that left its loop early has ended for good.
    """
    tag, budget = spec.trial, spec.budget
    if tag is None or tag.most is None or budget is None or budget >= tag.most:
        return False
    if spec.runtime != "torch":  # others may count what they like
        return True
    if spec.epochs is None:
        return done.samples >= budget
    return done.epoch >= budget


def at_rung(record: TrainerRecord, done: Ended, now_s: float) -> TrainerRecord:
    """Return the record of a trial that waits for its study."""
    progress = replace(
        record.progress,
        size=0,
        samples_per_s=0.0,
        gpu_use=None,
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
    first, reported_s, reports = _position(said.reports[0]), dict[_Position, float](), []
    for report in record.reports:
        position = _position(report)
        reported_s[position] = report.reported_s
        if position < first:
            reports.append(report)
    for message in said.reports:
        at_s = reported_s.get(_position(message), now_s)
        reports.append(
            Report(
                value=message.value,
                step=message.step,
                epoch=message.epoch,
                samples=message.samples,
                reported_s=at_s,
            )
        )
    if tuple(reports) == record.reports:
        return record
    return replace(record, reports=thinned(tuple(reports)))


def thinned(reports: tuple[Report, ...]) -> tuple[Report, ...]:
    """Drop every second of too many reports, none of those that a worker may repeat."""
    while len(reports) > MOST_REPORTS:
        reports = reports[:-MAX_REPORTS][::2] + reports[-MAX_REPORTS:]
    return reports


class _Position(NamedTuple):
    """Where in a training something was reported."""

    samples: int
    epoch: int
    step: int


def _position(report: Report | protocol.Report) -> _Position:
    return _Position(report.samples, report.epoch, report.step)


def check_growth(record: TrainerRecord, change: TrainerChange) -> bool:
    """Refuse a budget that cannot be granted; return whether one is.

    Raises:
        UsageError: BFT-1601, it is no trial, or the budget is out of its range; BFT-1602, its
            present budget is not used up.
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
