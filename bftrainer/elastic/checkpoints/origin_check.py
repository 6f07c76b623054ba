"""Asks whether a run may go on from a checkpoint, by ``origin``: on submission and in a worker.

A trial of a study is not asked: its directory is its own, and a state that another trial trained
comes there on purpose (``reports``). Standard library only; for every runtime.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import bftrainer
from bftrainer.elastic.checkpoints.origin import (
    KEY,
    Difference,
    RunOrigin,
    compare,
    digest_of,
    environment_of,
)
from bftrainer.elastic.process import reports
from bftrainer.ground import files
from bftrainer.ground.errors import ElasticError
from bftrainer.ground.protocol import WorkerConfig
from bftrainer.ground.regular_file import open_stream

CONTINUE = "BFT_CONTINUE"  # in a worker's environment, one of these; else it is not asked for
ARGUMENTS, SCHEDULE_OLD, SCHEDULE_NEW = WAYS = ("arguments", "schedule-old", "schedule-new")
_PACKAGES = (
    *("torch", "numpy", "transformers", "accelerate", "lightning", "pytorch_lightning"),
    *("horovod", "mpi4py"),
)
_CHUNK_BYTES = 1 << 20
UNKNOWN = "that checkpoint does not say with which arguments it was trained"


class Submitted(Protocol):
    """What a trainer's spec and a worker's configuration have in common."""

    @property
    def script(self) -> str:
        """Absolute path."""

    @property
    def args(self) -> tuple[str, ...]:
        """Arguments of the script."""

    @property
    def cwd(self) -> str:
        """Absolute path."""

    @property
    def environment(self) -> tuple[tuple[str, str], ...]:
        """Variables of its workers."""


def origin_of(
    what: Submitted, trainer_id: str = "", versions: Mapping[str, str] = MappingProxyType({})
) -> RunOrigin:
    """Return the origin of what a run writes; reads the script."""
    script, cwd = os.path.realpath(what.script), os.path.realpath(what.cwd)
    name = script
    if script.startswith(os.path.join(cwd, "")):  # noqa: PTH118 - as realpath has it
        name = os.path.relpath(script, cwd)
    return RunOrigin(
        trainer=trainer_id,
        script=name,
        digest=_digest_of(script),
        args=what.args,
        environment=environment_of(what.environment),
        versions=dict(versions),
    )


def _digest_of(script: str) -> str:
    try:
        with open_stream(script, is_typed=True) as file:
            return digest_of(*iter(partial(file.read, _CHUNK_BYTES), b""))
    except (OSError, ValueError):
        return ""


def _versions() -> dict[str, str]:
    """Return the versions of Python and of packages that the script has imported."""
    versions = {"bftrainer": bftrainer.__version__, "python": platform.python_version()}
    for name in _PACKAGES:
        version = getattr(sys.modules.get(name), "__version__", None)
        if version is not None:
            versions[name] = str(version)
    return versions


def newest_header(directory: Path) -> tuple[Path, Mapping[str, Any]] | None:
    """Return the newest checkpoint whose header can be read, which is not verified."""
    with suppress(OSError):
        for path in files.newest_first(directory):
            with suppress(OSError, files.UnreadableError):
                return path, files.peek(path)
    return None


def refusal(place: str, step: int, origin: RunOrigin, difference: Difference) -> ElasticError:
    """Return BFT-1450: the checkpoint is of other arguments."""
    trainer = origin.trainer or "another trainer"
    return ElasticError(
        "BFT-1450",
        f"The checkpoint in {place} (step {step} of {trainer}) was trained with other arguments:"
        f" {difference.words()}.",
        "Submit it with --fresh to set that aside and begin anew, with -J NAME for a directory of"
        " its own, or with --continue to go on from it with the new arguments.",
    )


def in_a_sentence(step: int, origin: RunOrigin | None, difference: Difference) -> str:
    """Return from where a run goes on, and what differs there."""
    if origin is None:
        return f"goes on from step {step}: {UNKNOWN}"
    sentence = f"goes on from step {step}"
    if origin.trainer:
        sentence += f" of {origin.trainer}"
    if words := difference.words():
        sentence += f": {words}"
    return sentence


class OriginCheck:
    """This worker's origin, and its judgement of the checkpoint that it goes on from."""

    def __init__(self, config: WorkerConfig) -> None:
        self.origin = RunOrigin()
        if config.checkpoint_dir:  # now: the script may change while it runs
            self.origin = origin_of(config, config.trainer_id, _versions())
        way = dict(config.environment).get(CONTINUE, "")
        self.way = way if way in WAYS else ""

    def header(self) -> dict[str, Any]:
        """Return what headers of checkpoints have of it."""
        return {KEY: self.origin.body()}

    def admit(self, header: Mapping[str, Any], source: str) -> bool:
        """Say what differs; return whether this run is to go on in its own way.

        Raises:
            ElasticError: BFT-1450, it was trained with other arguments and ``--continue`` is not
                given.
        """
        if reports.trial_mark():
            return False
        path, origin = Path(source), RunOrigin.read(header)
        step = files.step_of(path)
        difference = Difference() if origin is None else compare(origin, self.origin)
        if origin is not None and difference.refusals and not self.way:
            raise refusal(str(path.parent), step, origin, difference)
        if origin is None or difference.words():
            sys.stderr.write(f"bftrainer: {in_a_sentence(step, origin, difference)}\n")
        return bool(self.way) and (origin is None or difference.is_other)
