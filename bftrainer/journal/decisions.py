"""Decisions of a journal, read one after the other: what two have in common is decoded once."""

from __future__ import annotations

from typing import Any, NamedTuple

from bftrainer.journal.projection import JournalEntry
from bftrainer.model.canonical import CanonicalError, from_plain
from bftrainer.model.cluster import Job, Node
from bftrainer.model.decision import DecisionRecord, PilotView
from bftrainer.model.trainer import TrainerRecord


class _Decoded(NamedTuple):
    """A record, and the plain data that it was read from: it lives on, so its identity holds."""

    plain: Any
    record: Any


class DecisionReader:
    """Decodes decisions in their order: of a thousand nodes, usually a few differ."""

    def __init__(self) -> None:
        self._earlier: dict[int, _Decoded] = {}  # of the entry before, by identity
        self._latest: dict[int, _Decoded] = {}

    def read(self, entry: JournalEntry) -> DecisionRecord:
        """Return the decision of an entry.

        Raises:
            CanonicalError: BFT-2220, another release wrote it in another form.
        """
        plain = entry.payload
        if isinstance(plain, dict) and isinstance(plain.get("input"), dict):
            plain = {**plain, "input": self._input(plain["input"])}
        self._earlier, self._latest = self._latest, {}
        return from_plain(plain, DecisionRecord)

    def read_if(self, entry: JournalEntry) -> DecisionRecord | None:
        """Return the decision of an entry; None if another release wrote it in another form."""
        try:
            return self.read(entry)
        except CanonicalError:
            return None

    def _decoded(self, plain: dict[str, Any], **lists: type) -> dict[str, Any]:
        decoded: dict[str, Any] = {}
        for name, cls in lists.items():
            if isinstance(plain.get(name), list):
                decoded[name] = [self._item(item, cls) for item in plain[name]]
        return decoded

    def _input(self, plain: dict[str, Any]) -> dict[str, Any]:
        """Return a decision's input with its lists decoded, if it has a snapshot."""
        snapshot = plain.get("snapshot")
        if not isinstance(snapshot, dict):
            return plain
        snapshot = {**snapshot, **self._decoded(snapshot, nodes=Node, jobs=Job)}
        ours = self._decoded(plain, pilots=PilotView, trainers=TrainerRecord)
        return {**plain, **ours, "snapshot": snapshot}

    def _item(self, plain: Any, cls: type) -> Any:
        decoded = self._earlier.get(id(plain))
        if decoded is None:
            decoded = _Decoded(plain, from_plain(plain, cls))
        self._latest[id(plain)] = decoded
        return decoded.record
