"""The runtime for MPI programs that use ``bftrainer.elastic.mpi``.

A record comes in, a ``StartWorker`` goes out that starts one process per node in the
user's interpreter, without ``mpiexec``: the processes connect to each other (MPICH).
"""

from __future__ import annotations

from bftrainer.elastic.protocol import WorkerConfig, to_body
from bftrainer.trainer import TrainerRecord, TrainerSpec
from bftrainer.wire.messages import StartWorker
from trainers.runtimes.base import Resize
from trainers.runtimes.checking import check_paths, check_size_and_length, unusable


class MpiRuntime:
    """Processes that connect when they join and part when they leave."""

    name = "mpi"
    resize = Resize.IN_PLACE

    def check(self, spec: TrainerSpec) -> None:
        """Refuse what no agent could start; the library is looked at on the node."""
        check_paths(
            spec,
            script=spec.script,
            interpreter=spec.interpreter,
            working_directory=spec.cwd,
            checkpoint_directory=spec.checkpoint_dir,
        )
        check_size_and_length(spec)
        if spec.epochs is not None:
            raise unusable(
                f"{spec.name} has a number of epochs; an MPI program counts steps.",
                "Give --samples, or nothing: then the program's own number of steps holds.",
            )
        if spec.contract is not None:
            raise unusable(
                f"{spec.name} is resized in place: it is never asked to write and end.",
                "Leave out --launch and the options about checkpoints, or use --runtime command.",
            )

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
        """Return the order that starts this node's process."""
        spec = record.spec
        config = WorkerConfig(
            trainer_id=record.trainer_id,
            worker_id=worker_id,
            node=node,
            script=spec.script,
            args=spec.args,
            cwd=spec.cwd,
            environment=spec.environment,
            log_path=log_path,
            checkpoint_dir=spec.checkpoint_dir,
            checkpoint_interval_s=spec.checkpoint_interval_s,
            samples=spec.samples,
            address=address,
            incarnation=incarnation,
        )
        return StartWorker(
            worker_id=worker_id,
            trainer_id=record.trainer_id,
            interpreter="",
            config=to_body(config),
            program="trainers.mpi",
            options={"interpreter": spec.interpreter},
        )


RUNTIME = MpiRuntime()
