"""How trainers end: reasons in sentences, and time limits. Pure. Called by ``actuate.trainers``."""

from __future__ import annotations

from dataclasses import replace

from bftrainer.fleet.generations.generation import GenerationMachine
from bftrainer.fleet.generations.members import Ended
from bftrainer.model.trainer import CheckpointContract, TrainerProgress, TrainerRecord, TrainerSpec

SAVE_GRACE_S = 30.0  # time for a cancelled trainer's workers to save and leave
CANCELLED = "Cancelled by its user."


def save_grace_s(contract: CheckpointContract | None) -> float:
    """Return how long a cancelled trainer may take; programs declare it themselves."""
    return SAVE_GRACE_S if contract is None else contract.grace_s


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
    return reason if record.cancelled_s is None else record.reason


def last_progress(progress: TrainerProgress, machine: GenerationMachine) -> TrainerProgress:
    """Return the final progress of a trainer without nodes."""
    return replace(
        progress,
        size=0,
        samples_per_s=0.0,
        step=max(progress.step, machine.step),
        epoch=max(progress.epoch, machine.epoch),
        samples=max(progress.samples, machine.samples),
    )


def complete(spec: TrainerSpec, done: Ended) -> str:
    """Say that the training is complete, or how much of it the script did."""
    if spec.runtime == "torch":  # others may count what they like
        for what, wanted, has in (
            ("epochs", spec.epochs, done.epoch),
            ("samples", spec.samples, done.samples),
        ):
            if wanted is not None and has < wanted:
                return (
                    f"Its script ended after {has} of {wanted} {what} (--{what}): it left its"
                    " loop, or its checkpoint is one of a training that was complete."
                )
    return "Its training is complete."
