"""What a trainer runtime must offer, and how one is found by name.

A trainer's record comes in, the order that starts one of its workers goes out.
Called by ``bftrainer.actuate``; ``torch`` and ``command`` are the built-in ones.

A worker is one process of ours per node, whatever the runtime, and speaks
``bftrainer.elastic.protocol`` with the daemon: ``Warm``, ``Ready``, ``Entered``,
``Progress``, ``Saved``, ``Left``, ``Finished``. What a runtime may choose is how that
process comes to be (a fork of the warm template, or a module of ours that the agent
starts and that keeps the user's programs) and what a change of size does to it
(``Resize``). See docs/design/elastic-runtime.md.
"""

from __future__ import annotations

import enum
import functools
from typing import Protocol

from bftrainer.elastic.protocol import WorkerConfig
from bftrainer.errors import UsageError
from bftrainer.model.trainer import TrainerRecord, TrainerSpec
from bftrainer.plugins import load_plugin
from bftrainer.wire.messages import StartWorker

ENTRY_POINT_GROUP = "bftrainer.runtimes"


class Resize(enum.StrEnum):
    """What a change of size does to the workers that stay."""

    IN_PLACE = "in place"  # they go on, in a new generation
    RESTART = "restart"  # all write a checkpoint and end, then all start anew


class Runtime(Protocol):
    """Turns trainers of one kind into workers."""

    name: str
    resize: Resize

    def check(self, spec: TrainerSpec) -> None:
        """Raise ``UsageError`` BFT-1305 when such a trainer cannot run."""

    def start_message(self, record: TrainerRecord, config: WorkerConfig) -> StartWorker:
        """Return the order for the agent on ``config.node`` that starts this worker.

        Args:
            record: the trainer as it is now.
            config: what every worker is told (``config.worker_config``).
        """


def load_runtime(name: str) -> Runtime:
    """Return the named runtime from its entry point.

    Raises:
        UsageError: BFT-1304 when no such plug-in is installed.
    """
    runtime: Runtime = load_plugin(ENTRY_POINT_GROUP, name, what="trainer runtime", code="BFT-1304")
    return runtime


@functools.cache
def resize_of(name: str) -> Resize:
    """How trainers of a runtime are resized.

    Of one that is not installed any more nobody knows; a daemon must be able to read its
    trainers all the same.
    """
    try:
        return load_runtime(name).resize
    except UsageError:
        return Resize.IN_PLACE
