"""Builds the ``WorkerConfig`` of a worker, the same for all runtimes. Pure.

Called by ``bftrainer.fleet``, for the runtime that makes the order.
"""

from __future__ import annotations

from bftrainer.elastic.checkpoint_gap import LIVES
from bftrainer.elastic.protocol import BY_DAEMON, TELLS, WorkerConfig
from bftrainer.model.node_request import asked
from bftrainer.model.trainer import TrainerRecord


def worker_config(
    record: TrainerRecord,
    *,
    worker_id: str,
    node: str,
    address: str,
    incarnation: int,
    log_path: str,
) -> WorkerConfig:
    """Return the configuration of a worker.

    ``address`` is the agent's data-plane address, where the worker listens. The seed is the
    trainer's: all workers must draw the same permutation of the data in every epoch.
    """
    spec = record.spec
    trial = spec.trial.environment if spec.trial is not None else ()
    lasted = " ".join(f"{life_s:.1f}" for life_s in record.lives.lasted_s)
    lives = ((LIVES, lasted),) if lasted else ()
    return WorkerConfig(
        trainer_id=record.trainer_id,
        worker_id=worker_id,
        node=node,
        script=spec.script,
        args=spec.args,
        cwd=spec.cwd,
        environment=(
            *spec.environment,
            *trial,
            *((name, BY_DAEMON) for name in TELLS),
            *lives,
        ),
        log_path=log_path,
        checkpoint_dir=spec.checkpoint_dir,
        checkpoint_interval_s=spec.checkpoint_interval_s,
        epochs=spec.epochs,
        samples=spec.samples,
        address=address,
        incarnation=incarnation,
        seed=0,
        backend=spec.backend,
        local_size=spec.workers_per_node,
        gpus=asked(spec).n_gpus // spec.workers_per_node,
        preamble=spec.preamble,
        batch_per_worker=0 if spec.batch is None else spec.batch.per_worker,
        lr_rule="" if spec.batch is None else spec.batch.lr_rule,
    )
