"""Checks of a spec that all runtimes share; each raises ``UsageError``."""

from __future__ import annotations

import signal
from pathlib import Path

from bftrainer.ground.backend_choice import AUTO, BACKENDS
from bftrainer.model.errors import ExitCode, UsageError
from bftrainer.model.trainer import LR_RULES, BatchRange, TrainerSpec

MOST_BATCH, MOST_PER_WORKER = 10**9, 1 << 16
MAX_WORKERS_PER_NODE = 64  # the agent talks to each of them
NO_SIGNAL = "none"
_NOT_HANDLED = (signal.SIGKILL, signal.SIGSTOP)


def check_paths(spec: TrainerSpec, **paths: str) -> None:
    """Refuse relative paths; the keywords are used in the messages."""
    for what, path in paths.items():
        if not Path(path).is_absolute():
            raise unusable(
                f"The {what.replace('_', ' ')} {path!r} of {spec.name} is not an absolute path.",
                "Workers run on other nodes: give a full path on a shared file system.",
            )


def check_size_and_length(spec: TrainerSpec) -> None:
    """Refuse an invalid range of nodes, two lengths, an unknown back end."""
    if not 1 <= spec.n_min <= spec.n_max:
        raise unusable(
            f"The size {spec.n_min}:{spec.n_max} of {spec.name} is not a range of nodes.",
            "Give --nodes MIN:MAX with 1 <= MIN <= MAX.",
        )
    if spec.has_several_lengths:
        raise unusable(
            f"{spec.name} has several of epochs, samples and steps.",
            "Give one of --epochs, --samples and --steps.",
        )
    if spec.backend not in BACKENDS or (spec.backend != AUTO and spec.runtime != "torch"):
        raise unusable(
            f"{spec.name} cannot have the back end {spec.backend!r} with runtime {spec.runtime}.",
            f"Give --backend {', '.join(BACKENDS)} with --runtime torch only.",
        )
    if spec.batch is not None:
        _check_batch(spec, spec.batch)
    if not 1 <= spec.workers_per_node <= MAX_WORKERS_PER_NODE:
        raise unusable(
            f"{spec.name} has {spec.workers_per_node} workers per node.",
            f"Give --workers-per-node from 1 to {MAX_WORKERS_PER_NODE}.",
        )


def _check_batch(spec: TrainerSpec, batch: BatchRange) -> None:
    rules = {"torch": LR_RULES, "mpi": ("none",)}.get(spec.runtime)
    if rules is None:
        raise unusable(
            f"{spec.name} cannot have --batch: runtime {spec.runtime} has none.",
            "Omit --batch, or use --runtime torch or mpi.",
        )
    if batch.lr_rule not in rules:
        raise unusable(
            f"{spec.name} cannot have the learning rate rule {batch.lr_rule[:40]!r} with runtime"
            f" {spec.runtime}.",
            f"Give --lr-rule {', '.join(rules)}.",
        )
    if not 1 <= batch.least <= batch.most <= MOST_BATCH:
        raise unusable(
            f"{batch.least}:{batch.most} is not a range of batches from 1 to {MOST_BATCH}.",
            "Give --batch MIN:MAX with 1 <= MIN <= MAX.",
        )
    if not 1 <= batch.per_worker <= MOST_PER_WORKER:
        raise unusable(
            f"A worker of {spec.name} is to process {batch.per_worker} samples at once.",
            f"Give --batch-per-worker from 1 to {MOST_PER_WORKER}.",
        )


def check_one_per_node(spec: TrainerSpec, runtime: str) -> None:
    """Refuse several workers per node for a runtime that starts one process on each."""
    if spec.workers_per_node != 1:
        raise unusable(
            f"{spec.name} has {spec.workers_per_node} workers per node; a trainer of runtime"
            f" {runtime} has one.",
            "Omit --workers-per-node, or use --runtime torch.",
        )


def unusable(cause: str, next_step: str) -> UsageError:
    """Return the error of a trainer that cannot run."""
    return UsageError("BFT-1305", cause, next_step, exit_code=ExitCode.VALIDATION_FAILED)


def check_in_place(spec: TrainerSpec) -> None:
    """Check a training script that is resized in place.

    Raises:
        BftError: see the other checks; also if it has a checkpoint contract.
    """
    check_paths(
        spec,
        script=spec.script,
        interpreter=spec.interpreter,
        working_directory=spec.cwd,
        checkpoint_directory=spec.checkpoint_dir,
    )
    check_size_and_length(spec)
    if spec.contract is not None:
        raise unusable(
            f"{spec.name} is resized in place, without stopping at a checkpoint.",
            "Omit --launch and the checkpoint options, or use --runtime command.",
        )


def signal_number(name: str) -> signal.Signals | None:
    """Return the signal; None for ``none`` and for what no program can handle."""
    found = signal.Signals.__members__.get(f"SIG{name.upper().removeprefix('SIG')}")
    return None if found in _NOT_HANDLED else found
