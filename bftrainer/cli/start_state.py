"""From which state a submitted trainer starts: ``submit --resume-from`` and ``--fresh``."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from bftrainer.api.client import Client
from bftrainer.elastic import files
from bftrainer.model.columns import shown
from bftrainer.model.trainer import TrainerSpec
from bftrainer.study.checkpoint_files import bring, newest_whole, set_aside, unstartable

_ID = re.compile(r"t[0-9]{1,18}\Z", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartState:
    """What is done with a trainer's checkpoint directory before it may start."""

    source: Path | None = None  # directory whose newest checkpoint it starts from
    is_fresh: bool = False  # its own checkpoints are set aside

    @property
    def is_needed(self) -> bool:
        """Whether anything is to be done."""
        return self.is_fresh or self.source is not None

    def check(self, spec: TrainerSpec) -> None:
        """Refuse what cannot be done (BFT-1047)."""
        if not self.is_needed:
            return
        own = Path(spec.checkpoint_dir)
        if spec.runtime == "command":
            raise unstartable(
                "Programs of runtime command keep their state in files of their own.",
                "Copy them, or name a new --checkpoint-dir to start afresh.",
            )
        if self.source is None:
            return
        if os.path.realpath(self.source) == os.path.realpath(own):
            raise unstartable(
                f"{shown(str(own))} is the trainer's own checkpoint directory.",
                "Leave out --resume-from: it goes on from there anyway."
                " Name another -J or --checkpoint-dir to leave it as it is.",
            )
        if not self.is_fresh and files.newest_first(own):
            raise unstartable(
                f"{shown(str(own))} has checkpoints already.",
                "Add --fresh to set them aside, or name another -J or --checkpoint-dir.",
            )
        newest_whole(self.source)

    def prepare(self, directory: Path) -> None:
        """Set checkpoints aside and bring the one to start from."""
        try:
            if self.is_fresh:
                set_aside(directory)
            if self.source is not None:
                bring(self.source, directory)
        except OSError as problem:
            raise unstartable(
                f"The checkpoints in {shown(str(directory))} cannot be changed: {problem}.",
                "Check the directory and its file system, then submit again.",
            ) from problem


def source_of(client: Client, text: str | None) -> Path | None:
    """Return the checkpoint directory that ``--resume-from ID|DIR`` names."""
    if text is None:
        return None
    if _ID.match(text) and not os.path.lexists(text):
        return Path(client.trainer(text).record.spec.checkpoint_dir)
    return Path(text).absolute()
