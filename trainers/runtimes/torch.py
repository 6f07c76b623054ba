"""The runtime for PyTorch scripts that use ``bftrainer.elastic``.

A record comes in, a ``StartWorker`` with the body of a ``WorkerConfig`` goes out.
Nothing here imports torch: that is the template's business, in the user's interpreter.
"""

from __future__ import annotations

from pathlib import Path

from bftrainer.elastic.protocol import WorkerConfig, to_body
from bftrainer.errors import ExitCode, UsageError
from bftrainer.trainer import TrainerRecord, TrainerSpec
from bftrainer.wire.messages import StartWorker


class TorchRuntime:
    """Workers forked from a warm template of the user's interpreter."""

    name = "torch"

    def check(self, spec: TrainerSpec) -> None:
        """Refuse what no agent could start; paths are looked at by the submitter."""
        for what, path in (
            ("script", spec.script),
            ("interpreter", spec.interpreter),
            ("working directory", spec.cwd),
            ("checkpoint directory", spec.checkpoint_dir),
        ):
            if not Path(path).is_absolute():
                raise _unusable(
                    f"The {what} {path!r} of {spec.name} is not an absolute path.",
                    "Workers run on other nodes: give a full path on a shared file system.",
                )
        if not 1 <= spec.n_min <= spec.n_max:
            raise _unusable(
                f"The size {spec.n_min}:{spec.n_max} of {spec.name} is not a range of nodes.",
                "Give --nodes MIN:MAX with 1 <= MIN <= MAX.",
            )
        if spec.epochs is not None and spec.samples is not None:
            raise _unusable(
                f"{spec.name} has both a number of epochs and one of samples.",
                "Give --epochs or --samples, not both.",
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
        """Return the order that forks this worker.

        The seed is that of the trainer, not of the worker: every worker must draw the
        same permutation of the data in every epoch.
        """
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
            epochs=spec.epochs,
            samples=spec.samples,
            address=address,
            incarnation=incarnation,
            seed=0,
        )
        return StartWorker(
            worker_id=worker_id,
            trainer_id=record.trainer_id,
            interpreter=spec.interpreter,
            config=to_body(config),
        )


def _unusable(cause: str, next_step: str) -> UsageError:
    return UsageError("BFT-1305", cause, next_step, exit_code=ExitCode.VALIDATION_FAILED)


RUNTIME = TorchRuntime()
