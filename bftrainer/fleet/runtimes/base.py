"""The interface of a trainer runtime, its lookup by name, and a worker's configuration.

A runtime turns a trainer's record into the order that starts one of its workers. Called by
``bftrainer.fleet``; built in are ``torch``, ``command``, ``horovod`` and ``mpi``.

Whatever the runtime, a worker speaks ``bftrainer.ground.protocol`` with the daemon: ``Warm``,
``Ready``, ``Entered``, ``Progress``, ``Saved``, ``Left``, ``Finished``. A runtime chooses how
the process is started (a fork of the warm template, or one of our modules, which may run the
user's program) and what a change of size does to it (``Resize``). See
docs/design/elastic-runtime.md.
"""

from __future__ import annotations

import enum
import functools
from typing import Any, Protocol

from bftrainer.fleet.wire.messages import StartWorker
from bftrainer.ground.checkpoint_gap import LIVES
from bftrainer.ground.protocol import BY_DAEMON, LEAST_NODES, RUN_ID, TELLS, WorkerConfig
from bftrainer.model.declaration import declarations
from bftrainer.model.errors import UsageError
from bftrainer.model.node_request import asked
from bftrainer.model.plugins import load_plugin
from bftrainer.model.trainer import TrainerRecord, TrainerSpec

ENTRY_POINT_GROUP = "bftrainer.runtimes"
# Its process holds 15 s of what was logged, and is killed with the worker.
# How often the trainer was started anew, for scripts that look.
RESTART_COUNTS = ("BFT_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT")
SLURM_RESTARTS = "SLURM_RESTART_COUNT"
WANDB = (("WANDB_RESUME", "allow"), ("WANDB_X_TRANSACTION_LOG_FLUSH_INTERVAL", "1"))


class Resize(enum.StrEnum):
    """The effect of a change of size on the workers that stay."""

    IN_PLACE = "in place"  # they continue in a new generation
    RESTART = "restart"  # all write a checkpoint and end, then all are started again


class Runtime(Protocol):
    """Turns trainers of one kind into workers."""

    name: str
    resize: Resize
    forks: bool  # whether workers are forks of the warm template, which agents then start early
    inherits: bool  # whether trials start from each other's checkpoints, with their own parameters

    def check(self, spec: TrainerSpec) -> None:
        """Raise ``UsageError`` BFT-1305 if such a trainer cannot run."""

    def start_message(self, record: TrainerRecord, config: WorkerConfig) -> StartWorker:
        """Return the order for the agent on ``config.node`` that starts this worker."""


@functools.cache
def load_runtime(name: str) -> Runtime:
    """Return the named runtime from its entry point, which takes 2 ms to find once.

    Raises:
        UsageError: BFT-1304 when no such plug-in is installed.
    """
    runtime: Runtime = load_plugin(ENTRY_POINT_GROUP, name, what="trainer runtime", code="BFT-1304")
    return runtime


@functools.cache
def resize_of(name: str) -> Resize:
    """Return how trainers of a runtime are resized.

    ``IN_PLACE`` if it is no longer installed: a daemon must still be able to read its trainers.
    """
    try:
        return load_runtime(name).resize
    except UsageError:
        return Resize.IN_PLACE


def template_of(spec: TrainerSpec) -> str:
    """Return the interpreter of the template that agents start early for a trainer; "": none.

    Under a preamble or in a container the template is another one, which agents start with the
    first worker.
    """
    if spec.preamble or spec.container or not _forks(spec.runtime):
        return ""
    return spec.interpreter


def inherits(name: str) -> bool:
    """Return whether trials of a runtime can start from each other's checkpoints.

    Raises:
        UsageError: BFT-1304 when no such plug-in is installed.
    """
    return getattr(load_runtime(name), "inherits", False)  # a plug-in may be older than this


@functools.cache
def _forks(name: str) -> bool:
    try:
        return getattr(load_runtime(name), "forks", True)  # a plug-in may be older than this
    except UsageError:  # no longer installed
        return False


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
    trainer's: what scripts draw first (splits, weights, orders) must be the same on all workers.
    """
    spec = record.spec
    # Numbers of trainers begin at 1 with every daemon; trackers are shared.
    run_id = f"{record.trainer_id}-{int(record.submitted_s * 1000):x}"
    environment = [
        (RUN_ID, run_id),
        ("WANDB_RUN_ID", run_id),
        *WANDB,
        *_restart_variables(record),
        *_declared_variables(spec),
        *spec.environment,
    ]
    if spec.trial is not None:
        environment += spec.trial.environment
    environment += [(name, BY_DAEMON) for name in TELLS]
    if record.lives.lasted_s:
        environment.append((LIVES, " ".join(f"{life_s:.1f}" for life_s in record.lives.lasted_s)))
    if spec.n_min > 1:
        environment.append((LEAST_NODES, str(spec.n_min)))
    return WorkerConfig(
        **_declared_fields(spec),
        trainer_id=record.trainer_id,
        worker_id=worker_id,
        node=node,
        environment=tuple(environment),
        log_path=log_path,
        address=address,
        incarnation=incarnation,
        gpus=asked(spec).n_gpus // spec.workers_per_node,
    )


def _restart_variables(record: TrainerRecord) -> list[tuple[str, str]]:
    """Return the variables that count starts, as torchrun and Slurm name them, too."""
    count = str(record.next_restarts)
    variables = [(name, count) for name in RESTART_COUNTS]
    if record.next_restarts:  # as in Slurm, which sets it for a requeued job alone
        variables.append((SLURM_RESTARTS, count))
    return variables


def _declared_fields(spec: TrainerSpec) -> dict[str, Any]:
    """Return the fields of a worker's configuration that trainers' fields declare to be theirs."""
    fields = {}
    parts: list[object] = [spec]
    if spec.batch is not None:
        parts.append(spec.batch)
    for part in parts:
        cls: type = type(part)
        for name, declaration in declarations(cls).items():
            if declaration.worker:
                fields[declaration.worker] = getattr(part, name)
    return fields


def _declared_variables(spec: TrainerSpec) -> list[tuple[str, str]]:
    """Return the variables of a worker that trainers' fields declare."""
    variables = []
    for name, declaration in declarations(TrainerSpec).items():
        value = getattr(spec, name)
        if declaration.variable and value is not None:
            variables.append((declaration.variable, str(value)))
    return variables
