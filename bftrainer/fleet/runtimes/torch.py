"""The runtime for PyTorch scripts that use ``bftrainer.elastic``.

Its order holds the body of a ``WorkerConfig``. Nothing here imports torch: the template does, in
the user's interpreter.
"""

from __future__ import annotations

from bftrainer.fleet.runtimes.base import Resize
from bftrainer.fleet.runtimes.checks import check_in_place
from bftrainer.fleet.wire.messages import StartWorker
from bftrainer.ground.protocol import WorkerConfig, to_body
from bftrainer.model.trainer import TrainerRecord, TrainerSpec


class TorchRuntime:
    """Workers forked from a warm template of the user's interpreter."""

    name = "torch"
    resize = Resize.IN_PLACE
    forks = True
    inherits = True

    def check(self, spec: TrainerSpec) -> None:
        """Refuse a spec that no agent could start; the submitter checks the paths."""
        check_in_place(spec)

    def start_message(self, record: TrainerRecord, config: WorkerConfig) -> StartWorker:
        """Return the order that forks this worker."""
        return StartWorker(
            worker_id=config.worker_id,
            trainer_id=record.trainer_id,
            interpreter=record.spec.interpreter,
            config=to_body(config),
        )


RUNTIME = TorchRuntime()
