"""The runtime for unmodified elastic Horovod scripts (``hvd.elastic.run``, ``TorchState``).

Its order forks the warm template, which runs ``bftrainer.elastic.horovod``, which in turn runs
the user's script. See docs/howto/train-horovod.md.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import bftrainer
from bftrainer.fleet.runtimes.base import Resize
from bftrainer.fleet.runtimes.checks import check_one_per_node
from bftrainer.fleet.runtimes.torch import RUNTIME as TORCH
from bftrainer.fleet.wire.messages import StartWorker
from bftrainer.ground.protocol import WorkerConfig
from bftrainer.model.trainer import TrainerRecord, TrainerSpec

BOOTSTRAP = Path(bftrainer.__file__).resolve().parent / "elastic" / "horovod" / "__main__.py"


class HorovodRuntime:
    """Horovod scripts, run by our agents instead of ``horovodrun``."""

    name = "horovod"
    resize = Resize.IN_PLACE
    forks = True
    inherits = False  # a checkpoint brings the learning rates that wrote it

    def check(self, spec: TrainerSpec) -> None:
        """Refuse a spec that no agent could start; the worker checks for Horovod itself."""
        TORCH.check(spec)
        check_one_per_node(spec, self.name)

    def start_message(self, record: TrainerRecord, config: WorkerConfig) -> StartWorker:
        """Return the order that forks this worker.

        It contains the present number of workers: if others train, the new one builds its model
        before it knows its rank.
        """
        spec, others = record.spec, record.progress.size
        args = (str(others), spec.script, *spec.args)
        return TORCH.start_message(record, replace(config, script=str(BOOTSTRAP), args=args))


RUNTIME = HorovodRuntime()
