"""Explains what a loss or a restart costs a trainer, and what it keeps. Pure.

Says nothing about trainers resized in place, except MPI programs. Called by ``views`` and
``cli.status``.
"""

from __future__ import annotations

from statistics import mean

from bftrainer.model.columns import counted
from bftrainer.model.quantities import quantity
from bftrainer.model.trainer import Lives, Mark, MeasuredCosts, TrainerRecord

VAIN_STARTS = 3  # so many in a row that begin no further are a finding
PATIENCE = 2.0  # intervals after which a life that got further is expected to have kept it


def kept(record: TrainerRecord) -> str:
    """Return which part of its work was kept; "": it has done none."""
    lives = record.lives
    for unit, n_reached, n_lost in (
        ("samples", lives.reached.samples, lives.lost.samples),
        ("steps", lives.reached.step, lives.lost.step),
        ("epochs", lives.reached.epoch, lives.lost.epoch),
    ):
        n_trained = n_reached + n_lost
        if n_trained:
            share = quantity(100.0 * n_reached / n_trained)
            return f"{share}% of {n_trained} {unit} that it trained"
    return ""


def is_vain(record: TrainerRecord, now_s: float) -> bool:
    """Return whether it starts again and again and makes no lasting progress."""
    lives = record.lives
    if record.state.is_final or lives.starts < VAIN_STARTS:
        return False
    patience_s = PATIENCE * record.spec.checkpoint_interval_s
    is_better = bool(record.progress.size) and now_s - lives.began_s > patience_s
    return not (is_better and lives.reached.is_beyond(lives.furthest))


def vain_sentence(record: TrainerRecord, now_s: float) -> str:
    """Say since how many starts it has kept no progress, and what to do; "": it keeps it."""
    if not is_vain(record, now_s):
        return ""
    lives = record.lives
    began = "it reported none"
    if lives.furthest != Mark():
        began = f"none began beyond {_place(lives.furthest)}"
    elif _has_trained(lives):
        began = "each began from nothing"
    stayed = ""
    if lives.lasted_s:
        stayed = f" Its nodes stayed for {mean(lives.lasted_s):.0f} s on average."
    return f"No progress in its last {lives.starts} starts: {began}.{stayed} {_advice(record)}"


def _has_trained(lives: Lives) -> bool:
    return lives.lost != Mark() or lives.reached.is_beyond(lives.furthest)


def _place(mark: Mark) -> str:
    if mark.step:
        return f"step {mark.step}"
    if mark.samples:
        return counted(mark.samples, "sample")
    return f"epoch {mark.epoch}"


def _advice(record: TrainerRecord) -> str:
    if not _has_trained(record.lives):
        return "It needs longer to begin than its nodes stay: have it import and load less."
    if record.spec.runtime == "torch":
        return "Look in its log for why no checkpoint was written."
    interval_s = record.spec.checkpoint_interval_s
    return (
        f"Have it write checkpoints more often (--checkpoint-interval is {interval_s:g} s), or look"
        " in its log for why it does not."
    )


def loss_sentences(record: TrainerRecord) -> tuple[str, ...]:
    """Say what a node taken without notice costs an MPI program."""
    spec = record.spec
    if spec.runtime != "mpi" or record.state.is_final:
        return ()
    return (
        (
            "It is an MPI program, resized in place. A node that is taken without notice costs it"
            " the step in flight; where its domain is cut up, what it did since the last copy in"
            " a neighbour's memory, and if neighbours are lost together, all since its last"
            f" checkpoint, one every {spec.checkpoint_interval_s:g} s."
        ),
    )


def restart_sentences(record: TrainerRecord) -> tuple[str, ...]:
    """Say that its resizes are restarts, and what they cost."""
    is_restarted = record.spec.contract is not None or record.costs.restart is not None
    if not is_restarted or record.state.is_final:
        return ()
    spec, restart = record.spec, record.costs.restart
    sentences = [
        (
            "A resize of it is a restart, growing or shrinking: it writes a checkpoint and ends,"
            f" then starts at the new size. {_measured(record.costs)}"
        ),
        (
            "A node that is taken without notice costs it all since its last checkpoint; it is"
            f" asked for one every {spec.checkpoint_interval_s:g} s."
        ),
    ]
    if restart is not None and restart.unsaved:
        times = f"{restart.unsaved} times"
        if restart.unsaved == 1:
            times = "once"
        sentences.append(
            f"It was stopped {times} without writing a checkpoint, and lost what it had done"
            f" since the last one. {restart.unsaved_reason}"
        )
    return tuple(sentences)


def _measured(costs: MeasuredCosts) -> str:
    restart = costs.restart
    if restart is None or restart.start_s is None:
        return "It has never run: the decision uses the policy's guess."
    if restart.stop_s is None:
        return (
            f"Its start took {restart.start_s:.2f} s; no stop was measured yet, so the decision"
            " uses the start alone."
        )
    return (
        f"Measured: {restart.stop_s:.2f} s to stop and {restart.start_s:.2f} s to start; the"
        f" decision uses {restart.stop_s + restart.start_s:.2f} s in both directions."
    )
