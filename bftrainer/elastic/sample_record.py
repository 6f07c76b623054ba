"""Notes which samples a worker was handed, their losses, and which updates it committed.

Off unless ``$BFT_RECORD_SAMPLES`` names a directory, as ``bftrainer try`` sets it. Every process
appends JSON lines to a file of its own, a batch's before the script gets it: a worker may be
killed in a step that others commit. ``bftrainer.lab.tryout.records`` puts the files together.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bftrainer.elastic.loss_rule import LossRule
from bftrainer.elastic.membership import GenerationInfo
from bftrainer.elastic.run_info import RunInfo
from bftrainer.elastic.worker_keeper import own_name

VARIABLE = "BFT_RECORD_SAMPLES"


class SampleRecord:
    """The file of this process."""

    def __init__(self, directory: Path) -> None:
        self._out = (directory / f"samples-{own_name()}.jsonl").open("a", buffering=1)

    def handed(self, info: GenerationInfo, indices: Sequence[int], **where: int) -> None:
        """Note the samples of a pass.

        ``where``: ``at``, the place of the first in the epoch; ``of``, the epoch's samples;
        ``number`` of the pass; ``may_repeat``: the order is the script's own.
        """
        self._write("handed", info, epoch=info.epoch, indices=list(indices), **where)

    def lost(self, info: GenerationInfo, loss: float, rule: LossRule) -> None:
        """Note the loss of a pass, or of a part of one, and how passes are put together."""
        weight = rule.samples if rule.given is None else rule.given
        number = rule.passes
        self._write("loss", info, loss=loss, weight=weight, number=number, reduction=rule.kind)

    def entered(self, info: GenerationInfo) -> None:
        """Note that a generation begins, after ``step`` updates."""
        self._write("entered", info, samples=info.samples, at_s=time.time())

    def committed(self, info: GenerationInfo) -> None:
        """Note an update."""
        self._write("committed", info, samples=info.samples, at_s=time.time())

    def _write(self, kind: str, info: GenerationInfo, **what: object) -> None:
        line: dict[str, Any] = {"kind": kind, "generation": info.generation, **what}
        line |= {"attempt": info.attempt, "step": info.step, "rank": info.rank, "size": info.size}
        self._out.write(json.dumps(line) + "\n")


def record_of(run: RunInfo) -> SampleRecord | None:
    """Return the record of a run, which notes its generations and updates; None: not wanted."""
    directory = os.environ.get(VARIABLE)
    if not directory:
        return None
    record = SampleRecord(Path(directory))
    run.on_entered(record.entered)
    run.on_committed(record.committed)
    run.on_loss(record.lost)
    return record
