"""Follows what a trainer keeps from one life to the next. Pure. Called by ``recording``.

A torch trainer tells where it begins when it enters. A program that is restarted may say so only
with its first progress.
"""

from __future__ import annotations

from dataclasses import replace

from bftrainer.model.trainer import Lives, Mark

KEPT = 8  # lives whose length is remembered


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
