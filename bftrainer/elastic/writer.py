"""Takes snapshots of a run and writes them as checkpoints beside the training.

``membership`` hands over the state at a step boundary: copied and written by a
thread in the ordinary case, written before the call returns when the run parks or
ends. Each file is reported as ``Saved``.
"""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import Any

import torch

from bftrainer.elastic import checkpoint
from bftrainer.elastic.checkpoint import Fence
from bftrainer.elastic.control import Control
from bftrainer.elastic.errors import ElasticError
from bftrainer.elastic.protocol import Saved
from bftrainer.elastic.state import Counters, State

log = logging.getLogger("bftrainer.elastic")


class Writer:
    """Writes the checkpoints of one run while this worker is rank 0."""

    def __init__(self, control: Control, state: State) -> None:
        config = control.config
        self.directory = Path(config.checkpoint_dir) if config.checkpoint_dir else None
        self.interval_s = config.checkpoint_interval_s
        self.last_s = time.monotonic()
        self._control = control
        self._state = state
        self._thread: threading.Thread | None = None
        self._copies: list[torch.Tensor] = []

    def is_due(self) -> bool:
        """Whether a periodic checkpoint should be taken at this boundary."""
        if self.directory is None or time.monotonic() - self.last_s < self.interval_s:
            return False
        return self._thread is None or not self._thread.is_alive()

    def save_aside(self, counters: Counters, fence: Fence) -> None:
        """Copy the state now, write it in a thread."""
        self.last_s = time.monotonic()
        header, tensors = self._collect(counters)
        if [(t.shape, t.dtype) for t in tensors] == [(t.shape, t.dtype) for t in self._copies]:
            for copy, tensor in zip(self._copies, tensors, strict=True):
                copy.copy_(tensor)
        else:
            self._copies = [t.detach().cpu().clone() for t in tensors]
        self._thread = threading.Thread(
            target=self._write_logged,
            args=(header, self._copies, counters.step, counters.samples, fence),
            name="bft-checkpoint",
            daemon=True,
        )
        self._thread.start()

    def save_now(self, counters: Counters, fence: Fence) -> None:
        """Write the state before returning."""
        if self.directory is None:
            return
        if self._thread is not None:
            self._thread.join()
        header, tensors = self._collect(counters)
        self._write(header, tensors, counters.step, counters.samples, fence)

    def load(self, layout: int) -> tuple[Path, Any, list[torch.Tensor]] | None:
        """Return the newest valid checkpoint, made for this model."""
        found = None if self.directory is None else checkpoint.newest_valid(self.directory)
        if found is None:
            return None
        path, header, tensors = found
        if header.get("layout") != layout:
            raise ElasticError(
                "BFT-1408",
                f"The checkpoint {path} was written by a different model.",
                "Name another --checkpoint-dir, or remove the old checkpoints.",
            )
        return path, header["structure"], tensors

    def peek(self) -> dict[str, Any]:
        """Return the newest checkpoint's counters, unverified, or an empty dict."""
        if self.directory is None:
            return {}
        for path in checkpoint.newest_first(self.directory)[:1]:
            try:
                counters: dict[str, Any] = checkpoint.peek(path)["counters"]
            except (OSError, KeyError, checkpoint.UnreadableError) as problem:
                log.warning("BFT-1413: cannot read %s: %s", path, problem)
            else:
                return counters
        return {}

    def _collect(self, counters: Counters) -> tuple[dict[str, Any], list[torch.Tensor]]:
        structure, rest = self._state.encode_rest(counters)
        header = {
            "layout": self._state.layout(),
            "counters": {"epoch": counters.epoch, "is_complete": counters.is_complete},
            "structure": structure,
        }
        return header, [*self._state.model_tensors(), *rest]

    def _write_logged(self, *what: Any) -> None:
        try:
            self._write(*what)
        except OSError as problem:  # a full disk must not end the training
            log.warning("checkpoint not written: %s", problem)

    def _write(
        self,
        header: dict[str, Any],
        tensors: list[torch.Tensor],
        step: int,
        samples: int,
        fence: Fence,
    ) -> None:
        if self.directory is None:
            return
        started = time.monotonic()
        path = checkpoint.path_for(self.directory, step, fence.generation)
        if not checkpoint.claim(self.directory, fence):
            return
        checkpoint.write(path, header, tensors)
        checkpoint.prune(self.directory)
        self._control.send(
            Saved(
                generation=fence.generation,
                step=step,
                samples=samples,
                path=str(path),
                wall_s=time.monotonic() - started,
            )
        )
