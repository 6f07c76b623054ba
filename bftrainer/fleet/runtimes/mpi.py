"""The runtime for MPI programs that use ``bftrainer.elastic.mpi``.

Its order starts one process per node in the user's interpreter, without ``mpiexec``; the
processes connect to each other (MPICH).
"""

from __future__ import annotations

from bftrainer.fleet.runtimes.base import Resize
from bftrainer.fleet.runtimes.checks import check_in_place, check_one_per_node, unusable
from bftrainer.fleet.wire.messages import StartWorker
from bftrainer.ground.protocol import WorkerConfig, to_body
from bftrainer.model.trainer import TrainerRecord, TrainerSpec


class MpiRuntime:
    """Processes that connect when they join and disconnect when they leave."""

    name = "mpi"
    resize = Resize.IN_PLACE
    forks = False
    inherits = True

    def check(self, spec: TrainerSpec) -> None:
        """Refuse a spec that no agent could start; the MPI library is checked on the node."""
        check_in_place(spec)
        check_one_per_node(spec, self.name)
        if spec.epochs is not None:
            raise unusable(
                f"{spec.name} has a number of epochs; an MPI program counts steps.",
                "Give --samples; without a number the program's own number of steps holds.",
            )

    def start_message(self, record: TrainerRecord, config: WorkerConfig) -> StartWorker:
        """Return the order that starts this node's process."""
        return StartWorker(
            worker_id=config.worker_id,
            trainer_id=record.trainer_id,
            interpreter="",
            config=to_body(config),
            program="trainers.mpi",
            options={"interpreter": record.spec.interpreter},
        )


RUNTIME = MpiRuntime()
