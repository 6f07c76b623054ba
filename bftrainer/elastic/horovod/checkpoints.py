"""Checkpoints of a Horovod state: writes what the script committed to disk at intervals.

Horovod keeps a committed state in memory only; it is lost when all members are. This converts a
``hvd.elastic.State`` to one of our checkpoint files (``checkpoint``: atomic, fenced, never
pickled) and back. Objects with a ``state_dict`` are saved by it. Called by ``session`` on
rank 0.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from bftrainer.elastic import checkpoint
from bftrainer.elastic.control import Control
from bftrainer.elastic.errors import ElasticError
from bftrainer.elastic.fence import Fence
from bftrainer.elastic.horovod.counts import Counts
from bftrainer.elastic.reports import NO_REPORTS, Reports
from bftrainer.elastic.writer import CheckpointDisk

LAYOUT = 0x48564453  # instead of a model's: a Horovod state is checked when it is restored
_SAVED = "_saved"  # prefix of the committed values in Horovod's handlers


class Saver(CheckpointDisk):
    """Writes and reads the checkpoints of one worker."""

    def __init__(self, control: Control, counts: Counts, reports: Reports) -> None:
        super().__init__(control, control.config.checkpoint_dir)
        self._interval_s = control.config.checkpoint_interval_s
        self._counts, self._reports = counts, reports
        self._last_s = float("-inf")  # the first commit is written

    def is_due(self) -> bool:
        """Return whether a committed state should be written now."""
        return time.monotonic() - self._last_s >= self._interval_s and not self.is_busy()

    def save_aside(self, state: Any, writer: Fence) -> None:
        """Write what was just committed, in a thread; Horovod's committed values are copies."""
        self._last_s = time.monotonic()
        self.aside(self._writing(state, writer))

    def save_now(self, state: Any, writer: Fence) -> None:
        """Write what was committed; returns when it is on disk."""
        self.now(self._writing(state, writer))

    def load(self, state: Any) -> tuple[str, int, int]:
        """Load the newest checkpoint into the state; return its path, steps and samples.

        The path is "" if there is none; the state is then unchanged.

        Raises:
            ElasticError: BFT-1408 when it is of another script.
        """
        found = checkpoint.find(self.directory, LAYOUT)
        if found is None:
            return "", 0, 0
        tree = checkpoint.decode(found.header["structure"], found.tensors)
        try:
            put_back(state, tree)
        except (KeyError, RuntimeError, ValueError) as problem:
            raise _foreign(found.source, str(problem).partition("\n")[0][:200]) from None
        self._reports.load_state_dict(found.header.get("reports", NO_REPORTS))
        return found.source, int(found.header["step"]), int(found.header["samples"])

    def _writing(self, state: Any, writer: Fence) -> Callable[[], object]:
        structure, tensors = checkpoint.encode(committed(state), "hvd.elastic.State")
        step, samples = self._counts.committed
        where = {"step": step, "samples": samples, "reports": self._reports.state_dict()}
        header = {"layout": LAYOUT, **where, "structure": structure}
        parts = checkpoint.parts_of(header, tensors)
        return partial(self.write, parts, writer, step=step, samples=samples, layout=LAYOUT)


def committed(state: Any) -> dict[str, Any]:
    """Return the last committed values of a ``TorchState`` or ``ObjectState``."""
    handlers = getattr(state, "_handlers", {})
    return {
        "objects": {
            name: {"state_dict": value.state_dict()} if _has_state_dict(value) else {"value": value}
            for name, value in getattr(state, "_saved_state", {}).items()
        },
        "handlers": {
            name: {k: v for k, v in vars(handler).items() if k.startswith(_SAVED)}
            for name, handler in handlers.items()
        },
    }


def put_back(state: Any, tree: Mapping[str, Any]) -> None:
    """Set both the committed and the present values of a state.

    Raises:
        KeyError, RuntimeError, ValueError: they do not fit.
    """
    objects: dict[str, Any] = dict(getattr(state, "_saved_state", {}))
    handlers: dict[str, Any] = dict(getattr(state, "_handlers", {}))
    if set(objects) != set(tree["objects"]) or set(handlers) != set(tree["handlers"]):
        raise ValueError("its values have other names")
    for name, kept in tree["objects"].items():
        if "state_dict" in kept:
            objects[name].load_state_dict(kept["state_dict"])
        else:
            objects[name] = kept["value"]
    for name, values in tree["handlers"].items():
        vars(handlers[name]).update(values)
    state._saved_state = objects  # noqa: SLF001 - Horovod has no public way to set it
    state.restore()


def _has_state_dict(value: Any) -> bool:
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")


def _foreign(path: str, why: str) -> ElasticError:
    return ElasticError(
        "BFT-1408",
        f"The checkpoint {path} was written by a different script: {why}.",
        "Name another --checkpoint-dir, or remove the old checkpoints.",
    )
