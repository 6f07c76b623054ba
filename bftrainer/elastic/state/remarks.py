"""Remarks on a training that goes on, for its user: in the log, ``status`` and checkpoints.

A remark of the training (rank 0's schedule was taken) is part of the state: it is in every later
checkpoint, and whoever goes on from one says it again. A remark of a generation (workers that
cannot be compared) ends with it. Rank 0 says both, once each; what only the worker itself can know
it says itself. The daemon has each as ``Remarked``. Used by ``comparison`` and ``run``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

from bftrainer.elastic.process.control import Control
from bftrainer.elastic.process.generations import GenerationInfo
from bftrainer.elastic.state.state import State
from bftrainer.ground.protocol import Remarked

MOST: Final = 8  # in a state
MOST_CHARACTERS: Final = 600  # of one
MOST_WHO: Final = 60  # of who asks for a group, in the kind of a remark


class Remarks:
    """The remarks of one worker."""

    def __init__(self, control: Control | None, state: State | None = None) -> None:
        """Prepare; without ``control`` they are only in the state and the log."""
        self.state = state
        self.step: Callable[[], int] = lambda: 0  # committed updates by now
        self._control = control
        self._rank = self._generation = 0
        self._sent: set[tuple[str, int]] = set()  # kind, and generation; 0: of the training
        self._printed: set[str] = set()  # kinds

    def begin(self, info: GenerationInfo) -> None:
        """Begin a generation; as rank 0, say what the state has and this worker has not said."""
        self._rank, self._generation = info.rank, info.generation
        if self.state is not None and self._rank == 0:
            for row in self.state.remarks:
                self._say(row["kind"], row["cause"], step=row["step"])

    def lasts(self, kind: str, cause: str) -> None:
        """Remark on the training from here on; all members do.

        Args:
            kind: of each kind the first is kept.
            cause: sentences, with the code.
        """
        remarks: list[dict[str, Any]] = []
        if self.state is not None:
            remarks = self.state.remarks
        if all(row["kind"] != kind for row in remarks) and len(remarks) < MOST:
            step = self.step()
            remarks.append({"kind": kind, "step": step, "cause": cause[:MOST_CHARACTERS]})
            if self._rank == 0:
                self._say(kind, cause, step=step)

    def of_generation(self, kind: str, cause: str) -> None:
        """Remark on this generation; all members do."""
        if self._rank == 0:
            self._say(kind, cause, step=self.step(), generation=self._generation)

    def on_old_member(self) -> None:
        """Remark that nothing is compared in this generation.

        Which member is of the release before, rank 0 perhaps, may not be known: each other one
        says it.
        """
        self._say(
            "release",
            "BFT-1447: A worker of this generation is of the release before, which cannot compare"
            " states: learning rates, schedules and parameters of the workers are not compared"
            " until it has left.",
            step=self.step(),
            generation=self._generation,
        )

    def on_lone_group(self, who: str, cause: str) -> None:
        """Remark that the script, or a library, asks for torch's process group, which is not."""
        self._say(f"group {who[-MOST_WHO:]}", cause, step=self.step())

    def _say(self, kind: str, cause: str, *, step: int, generation: int = 0) -> None:
        if (kind, generation) in self._sent:
            return
        self._sent.add((kind, generation))
        cause = cause[:MOST_CHARACTERS]
        if kind not in self._printed:
            self._printed.add(kind)
            sys.stderr.write(f"bftrainer: warning: {cause}\n")
        if self._control is not None:
            self._control.send(Remarked(kind=kind, step=step, generation=generation, cause=cause))
