"""Follows what a trainer keeps from one life to the next. Pure. Called by ``recording``.

A torch trainer tells where it begins when it enters. A program that is restarted may say so only
with its first progress.
"""

from __future__ import annotations

from dataclasses import replace

from bftrainer.model.trainer import Lives, Mark, TrainerRecord

KEPT = 8  # lives whose length is remembered


def written(record: TrainerRecord) -> TrainerRecord:
    """Return the record for the journal: of a first life its progress tells as much.

    The release before does not know ``lives``, and must be able to take over.
    """
    now = record.lives
    is_first = now.starts <= 1 and not now.lasted_s and now.lost == now.furthest == Mark()
    return replace(record, lives=Lives()) if is_first and now != Lives() else record


def read(record: TrainerRecord) -> TrainerRecord:
    """Return a record of the journal with what ``written`` left out."""
    at = record.progress
    reached = Mark(step=at.step, epoch=at.epoch, samples=at.samples)
    if record.lives != Lives() or reached == Mark():
        return record
    return replace(record, lives=Lives(reached=reached, starts=1, began_s=record.started_s or 0.0))


def began(lives: Lives, at: Mark | None, now_s: float) -> Lives:
    """Return them after a start without survivors; ``at`` is None until that is told."""
    new = replace(lives, starts=lives.starts + 1, is_told=False, began_s=now_s)
    return new if at is None else progressed(new, at)


def progressed(lives: Lives, to: Mark) -> Lives:
    """Return them after a report of the present life."""
    if lives.is_told:
        return replace(lives, reached=to) if to.is_beyond(lives.reached) else lives
    before, lost = lives.reached, lives.lost
    return replace(
        lives,
        is_told=True,
        reached=to,
        lost=Mark(
            step=lost.step + max(0, before.step - to.step),
            epoch=lost.epoch + max(0, before.epoch - to.epoch),
            samples=lost.samples + max(0, before.samples - to.samples),
        ),
        starts=1 if to.is_beyond(lives.furthest) else lives.starts,
        furthest=lives.furthest.joined(to),
    )


def ended(lives: Lives, now_s: float, *, is_saved: bool) -> Lives:
    """Return them after the last node was left."""
    if is_saved or not lives.began_s:
        return lives
    lasted_s = (*lives.lasted_s, max(0.0, now_s - lives.began_s))
    return replace(lives, lasted_s=lasted_s[-KEPT:])
