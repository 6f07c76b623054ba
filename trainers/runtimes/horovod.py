"""The runtime for elastic Horovod scripts (``hvd.elastic.run``, ``TorchState``) as they are.

A record comes in, a ``StartWorker`` goes out: a fork of the warm template that runs
``bftrainer.elastic.horovod``, which in turn runs the user's script. See docs/horovod.md.
"""

from __future__ import annotations

from pathlib import Path

import bftrainer
from bftrainer.trainer import TrainerRecord, TrainerSpec
from bftrainer.wire.messages import StartWorker
from trainers.runtimes.base import Resize
from trainers.runtimes.checking import check_one_per_node
from trainers.runtimes.torch import RUNTIME as TORCH

BOOTSTRAP = Path(bftrainer.__file__).resolve().parent / "elastic" / "horovod" / "__main__.py"


class HorovodRuntime:
    """Horovod under our agents in place of ``horovodrun``."""

    name = "horovod"
    resize = Resize.IN_PLACE

    def check(self, spec: TrainerSpec) -> None:
        """Refuse what no agent could start; whether Horovod is there, a worker finds out."""
        TORCH.check(spec)
        check_one_per_node(spec, self.name)

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
        """Return the order that forks this worker.

        How many train now tells the worker whether it may build its model before it
        knows its rank.
        """
        order = TORCH.start_message(
            record,
            worker_id=worker_id,
            node=node,
            address=address,
            incarnation=incarnation,
            log_path=log_path,
        )
        spec, others = record.spec, record.progress.size
        ours = {"script": str(BOOTSTRAP), "args": (str(others), spec.script, *spec.args)}
        return StartWorker(
            worker_id=worker_id,
            trainer_id=record.trainer_id,
            interpreter=spec.interpreter,
            config={**order.config, **ours},
        )


RUNTIME = HorovodRuntime()
