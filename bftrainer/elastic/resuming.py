"""Loads a run's state when no member has one: from a copy or from disk.

Of the copy that ``Recall`` names and the checkpoints in the directory, it loads the one with
the most steps that can be verified and is of this model; the log says why others were skipped.
Called by ``state_transfer`` on rank 0.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from bftrainer.elastic import checkpoint, codec, replica_transfer
from bftrainer.elastic.checkpoint import UnreadableError, VerifiedCheckpoint
from bftrainer.elastic.errors import ElasticError
from bftrainer.elastic.protocol import Recall
from bftrainer.elastic.replica_transfer import Asker, CopyError, CopyFacts

log = logging.getLogger("bftrainer.elastic")


class _OtherModelError(Exception):
    """A readable state of another model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    step: int
    name: str
    load: Callable[[], VerifiedCheckpoint]


def find(
    directory: Path | None, recall: Recall | None, asker: Asker, layout: int
) -> VerifiedCheckpoint | None:
    """Return the usable state with the most steps, None if there is none.

    Raises:
        ElasticError: BFT-1408, when the only states are of another model.
    """
    others = []
    for candidate in _candidates(directory, recall, asker):
        try:
            return _whole(_of_model(candidate.load(), layout))
        except _OtherModelError as problem:
            others.append(candidate.name)
            log.warning("BFT-1413: skipped %s: %s", candidate.name, problem)
        except (OSError, UnreadableError, CopyError) as problem:
            log.warning("BFT-1413: skipped %s: %s", candidate.name, problem)
    if others:
        # Starting from scratch here would look like a resume.
        raise ElasticError(
            "BFT-1408",
            f"The saved state was written by a different model: {others[0]}.",
            "Name another --checkpoint-dir, or remove the old checkpoints.",
        )
    return None


def _of_model(found: VerifiedCheckpoint, layout: int) -> VerifiedCheckpoint:
    if found.header.get("layout") != layout:
        raise _OtherModelError("it was written by a different model")
    return found


def _whole(found: VerifiedCheckpoint) -> VerifiedCheckpoint:
    """Return a state whose structure can be decoded, which its checksum does not prove."""
    try:
        codec.decode(found.header["structure"], found.tensors)
    except KeyError:
        raise UnreadableError("it has no structure") from None
    except ElasticError as problem:
        raise UnreadableError(problem.cause) from problem
    return found


def _candidates(
    directory: Path | None, recall: Recall | None, asker: Asker
) -> Iterator[_Candidate]:
    """Yield copy and checkpoints, most steps first; at equal steps the file first."""
    copy = None if recall is None else _ask(recall, asker)
    files = [] if directory is None else checkpoint.newest_first(directory)
    for path in files:
        if copy is not None and copy.step > checkpoint.step_of(path):
            yield copy
            copy = None
        yield _Candidate(
            step=checkpoint.step_of(path),
            name=f"checkpoint {path}",
            load=lambda path=path: _load_file(path),  # type: ignore[misc]  # binds now
        )
    if copy is not None:
        yield copy


def _load_file(path: Path) -> VerifiedCheckpoint:
    header, tensors = checkpoint.read(path)
    return VerifiedCheckpoint(source=str(path), header=header, tensors=tensors)


def _ask(recall: Recall, asker: Asker) -> _Candidate | None:
    """Ask what the holder has, without fetching it."""
    name = f"the copy in the memory of {recall.node}"
    try:
        with replica_transfer.get((recall.host, recall.port), recall.key, asker) as (facts, _):
            _check(facts, asker)
    except CopyError as problem:
        log.warning("BFT-1413: skipped %s: %s", name, problem)
        return None
    return _Candidate(step=facts.step, name=name, load=lambda: _fetch(recall, asker))


def _fetch(recall: Recall, asker: Asker) -> VerifiedCheckpoint:
    with replica_transfer.get((recall.host, recall.port), recall.key, asker) as (facts, file):
        _check(facts, asker)
        header, tensors = checkpoint.read_from(cast("BinaryIO", file), facts.digest)
    return VerifiedCheckpoint(
        source=f"copy on {recall.node}, step {facts.step}", header=header, tensors=tensors
    )


def _check(facts: CopyFacts, asker: Asker) -> None:
    """Require a copy of this trainer and of a generation before the asker's."""
    if facts.trainer_id != asker.trainer_id:
        raise CopyError(f"it is of trainer {facts.trainer_id}")
    if facts.generation >= asker.generation:
        raise CopyError(f"it is of generation {facts.generation}, which is not over")
