"""A rescale log that repeats each record at once, from its JSON, and insists on equal answers."""

from __future__ import annotations

from collections.abc import Iterable

from bftrainer.fleet.generations.generation import GenerationMachine
from bftrainer.fleet.generations.rescale_log import KIND, RescaleLog, RescaleRecord, repeat
from bftrainer.journal.projection import JournalEntry
from bftrainer.model.canonical import decode, encode

SHORT = 7  # steps of a record that does not end: the next begins in any state


def repeating(machine: GenerationMachine) -> RescaleLog:
    return RescaleLog(machine, _repeat, most_steps=SHORT)


def repeated_equal(entries: Iterable[JournalEntry]) -> int:
    """Repeat the rescales of a journal; return how many there are."""
    records = [e.payload_as(RescaleRecord) for e in entries if e.kind == KIND]
    differing = [one for record in records for one in repeat(record) if not one.is_equal]
    assert not differing, differing[0]
    return len(records)


def _repeat(record: RescaleRecord) -> None:
    written = encode(record)
    read = decode(written, RescaleRecord)
    assert encode(read) == written
    differing = [one for one in repeat(read) if not one.is_equal]
    assert not differing, differing[0]
