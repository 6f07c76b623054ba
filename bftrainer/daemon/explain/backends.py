"""Explains which backend averages a trainer's gradients. Pure.

Nothing is said where there is no choice: one worker, or models that are not on GPUs. Called by
``service`` (explain).
"""

from __future__ import annotations

from bftrainer.model.trainer import TrainerRecord


def backend_sentences(record: TrainerRecord) -> tuple[str, ...]:
    """Say whether gradients stay on the GPUs and, if not, why."""
    progress = record.progress
    name, _, reason = progress.backend.removesuffix(")").partition(" (")
    if progress.size < 2 or record.state.is_final:
        return ()
    if name == "nccl":
        return ("Its workers average gradients with NCCL, from GPU to GPU.",)
    if not reason:
        return ()
    return (
        f"Its workers average gradients with {name}, through the memory of their hosts: {reason}.",
    )
