"""Loads a run's state from disk when no member has one.

Of the checkpoints in the directory, it loads the one with the most steps that can be verified
and is of this model; the log says why others were skipped. Called by ``state_transfer`` on
rank 0.
"""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path

from bftrainer.elastic import checkpoint, codec
from bftrainer.elastic.checkpoint import UnreadableError, VerifiedCheckpoint
from bftrainer.elastic.errors import ElasticError
from bftrainer.elastic.patience import patiently

log = logging.getLogger("bftrainer.elastic")


class _OtherModelError(Exception):
    """A readable state of another model."""


def find(directory: Path | None, layout: int) -> VerifiedCheckpoint | None:
    """Return the usable checkpoint with the most steps, None if there is none.

    Raises:
        ElasticError: BFT-1408, when the only states are of another model; BFT-1343, when the file
            system does not let them be read now.
    """
    others = []
    for path in (
        []
        if directory is None
        else patiently(partial(checkpoint.newest_first, directory), directory)
    ):
        try:
            return patiently(partial(_load, path, layout), path)
        except _OtherModelError as problem:
            others.append(path)
            log.warning("BFT-1413: skipped checkpoint %s: %s", path, problem)
        except (OSError, UnreadableError) as problem:
            log.warning("BFT-1413: skipped checkpoint %s: %s", path, problem)
    if others:
        # Starting from scratch here would look like a resume.
        raise ElasticError(
            "BFT-1408",
            f"The saved state was written by a different model: checkpoint {others[0]}.",
            "Name another --checkpoint-dir, or remove the old checkpoints.",
        )
    return None


def _load(path: Path, layout: int) -> VerifiedCheckpoint:
    """Return a verified state whose structure can be decoded, which its checksum does not prove."""
    header, tensors = checkpoint.read(path)
    if header.get("layout") != layout:
        raise _OtherModelError("it was written by a different model")
    try:
        codec.decode(header["structure"], tensors)
    except KeyError:
        raise UnreadableError("it has no structure") from None
    except ElasticError as problem:
        raise UnreadableError(problem.cause) from problem
    return VerifiedCheckpoint(source=str(path), header=header, tensors=tensors)
