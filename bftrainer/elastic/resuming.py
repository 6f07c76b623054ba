"""Where a run's first state comes from when no member has one: a copy, or the disk.

The daemon's ``Recall`` and the checkpoint directory come in; the state with most steps
that can be verified and is of this model goes out, and the log says why others were
passed over. Called by ``state_transfer`` on rank 0.
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
    """It can be read, but is of another model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    step: int
    name: str
    load: Callable[[], VerifiedCheckpoint]


def find(
    directory: Path | None, recall: Recall | None, asker: Asker, layout: int
) -> VerifiedCheckpoint | None:
    """Return the state that is furthest, None when there is none at all.

    Raises:
        ElasticError: BFT-1408, when all there is is of another model.
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
        # Starting from nothing beside them would look like a resume, and is not.
        raise ElasticError(
            "BFT-1408",
            f"The state at hand was written by a different model: {others[0]}.",
            "Name another --checkpoint-dir, or remove the old checkpoints.",
        )
    return None


def _of_model(found: VerifiedCheckpoint, layout: int) -> VerifiedCheckpoint:
    if found.header.get("layout") != layout:
        raise _OtherModelError("it was written by a different model")
    return found


def _whole(found: VerifiedCheckpoint) -> VerifiedCheckpoint:
    """Return a state whose structure can be read; a checksum says only that it was written so."""
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
    """Yield what there is, most steps first; with equal steps the file, which is nearer."""
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
    """Learn what the holder has, without taking it yet."""
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
    """A copy must be of this trainer, of a generation before the one that asks."""
    if facts.trainer_id != asker.trainer_id:
        raise CopyError(f"it is of trainer {facts.trainer_id}")
    if facts.generation >= asker.generation:
        raise CopyError(f"it is of generation {facts.generation}, which is not over")
