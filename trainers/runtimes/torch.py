"""The runtime for PyTorch scripts that use ``bftrainer.elastic``.

A record comes in, a ``StartWorker`` with the body of a ``WorkerConfig`` goes out.
Nothing here imports torch: that is the template's business, in the user's interpreter.
"""

from __future__ import annotations

from bftrainer.elastic.protocol import to_body
from bftrainer.trainer import TrainerRecord, TrainerSpec
from bftrainer.wire.messages import StartWorker
from trainers.runtimes.base import Resize
from trainers.runtimes.checking import check_in_place
from trainers.runtimes.config import worker_config


class TorchRuntime:
    """Workers forked from a warm template of the user's interpreter."""

    name = "torch"
    resize = Resize.IN_PLACE

    def check(self, spec: TrainerSpec) -> None:
        """Refuse what no agent could start; paths are looked at by the submitter."""
        check_in_place(spec)

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
        """Return the order that forks this worker."""
        config = worker_config(
            record,
            worker_id=worker_id,
            node=node,
            address=address,
            incarnation=incarnation,
            log_path=log_path,
        )
        return StartWorker(
            worker_id=worker_id,
            trainer_id=record.trainer_id,
            interpreter=record.spec.interpreter,
            config=to_body(config),
        )


RUNTIME = TorchRuntime()
