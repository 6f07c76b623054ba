"""What a trainer runtime must offer, and how one is found by name.

A trainer's record comes in, the order that starts one of its workers goes out.
Called by ``bftrainer.actuate``; ``trainers.runtimes.torch`` is the built-in one.
"""

from __future__ import annotations

from typing import Protocol

from bftrainer.plugins import load_plugin
from bftrainer.trainer import TrainerRecord, TrainerSpec
from bftrainer.wire.messages import StartWorker

ENTRY_POINT_GROUP = "bftrainer.runtimes"


class Runtime(Protocol):
    """Turns trainers of one kind into workers."""

    name: str

    def check(self, spec: TrainerSpec) -> None:
        """Raise ``UsageError`` BFT-1305 when such a trainer cannot run."""

    def start_message(
        self,
        record: TrainerRecord,
        *,
        worker_id: str,
        node: str,
        address: str,
        incarnation: int,
        log_path: str,
    ) -> StartWorker:
        """Return the order for the agent on ``node`` that starts this worker.

        ``address`` is the agent's data-plane address, where the worker listens.
        """


def load_runtime(name: str) -> Runtime:
    """Return the named runtime from its entry point.

    Raises:
        UsageError: BFT-1304 when no such plug-in is installed.
    """
    runtime: Runtime = load_plugin(ENTRY_POINT_GROUP, name, what="trainer runtime", code="BFT-1304")
    return runtime
