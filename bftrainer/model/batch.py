"""The global batches that a trainer admits, and how its learning rate follows (``--batch``)."""

from __future__ import annotations

from dataclasses import dataclass

ADASCALE = "adascale"
LR_RULES = (ADASCALE, "linear", "sqrt", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRange:
    """The global batches that a trainer admits."""

    least: int  # samples per update, of all workers together
    most: int
    per_worker: int  # samples that one worker can process at once
    lr_rule: str = ADASCALE  # one of LR_RULES; of torch trainers
