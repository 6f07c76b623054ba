"""All that the hook for transformers uses and that transformers does not promise to keep.

Looked at in ``transformers`` 5.0 to 5.23. Used by ``huggingface``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# What can be looked up without an object, in ``transformers``.
NAMES = ("Trainer._save_checkpoint", "Trainer._save")
# Sums of losses since the last line of the log. Without one that line's mean is wrong after a
# worker has joined, and nothing else.
LOSSES = ("_total_loss_scalar", "_globalstep_last_logged")
LOSS = "_tr_loss"  # the same, as a tensor


def replace_saving(
    trainer: Any, checkpoint: Callable[..., None], files: Callable[..., None]
) -> Any:
    """Have a Trainer write checkpoints and files by these; return its own two.

    Without them every worker would write the same files: the script fails before it trains.
    """
    originals = trainer._save_checkpoint, trainer._save  # noqa: SLF001
    trainer._save_checkpoint, trainer._save = checkpoint, files  # noqa: SLF001
    return originals


def mark_skipped(optimizer: Any, *, is_skipped: bool) -> None:
    """Tell Accelerate's optimizer that the loss scaler has skipped an update.

    Without the mark a schedule would be stepped for it.
    """
    optimizer._is_overflow = is_skipped  # noqa: SLF001


def sums_of(trainer: Any) -> dict[str, Any]:
    """Return a Trainer's sums of losses."""
    sums = {name: getattr(trainer, name) for name in LOSSES if hasattr(trainer, name)}
    loss = getattr(trainer, LOSS, None)
    if loss is not None:
        sums[LOSS] = loss.item()
    return sums


def set_sums(trainer: Any, sums: dict[str, Any]) -> None:
    """Restore them."""
    for name, value in sums.items():
        if name == LOSS:
            getattr(trainer, LOSS).fill_(value)
        else:
            setattr(trainer, name, value)
