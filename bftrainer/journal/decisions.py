"""Decisions of a journal, read one after the other: what two have in common is decoded once."""

from __future__ import annotations

from typing import Any

from bftrainer.journal.projection import JournalEntry
from bftrainer.model.canonical import CanonicalError, from_plain
from bftrainer.model.cluster import Job, Node
from bftrainer.model.decision import DecisionRecord, PilotView
from bftrainer.model.trainer import TrainerRecord


class DecisionReader:
    """Decodes decisions in their order: of a thousand nodes, usually a few differ."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, Any]] = {}  # by identity: plain, which lives on; decoded
        self._read: dict[int, tuple[Any, Any]] = {}

    def read(self, entry: JournalEntry) -> DecisionRecord:
        """Return the decision of an entry.

        Raises:
            CanonicalError: BFT-2220, another release wrote it in another form.
        """
        plain = entry.payload
        given = plain.get("input") if isinstance(plain, dict) else None
        snapshot = given.get("snapshot") if isinstance(given, dict) else None
        if isinstance(given, dict) and isinstance(snapshot, dict):
            seen = {**snapshot, **self._decoded(snapshot, nodes=Node, jobs=Job)}
            ours = self._decoded(given, pilots=PilotView, trainers=TrainerRecord)
            plain = {**plain, "input": {**given, **ours, "snapshot": seen}}
        self._known, self._read = self._read, {}
        return from_plain(plain, DecisionRecord)

    def read_if(self, entry: JournalEntry) -> DecisionRecord | None:
        """Return the decision of an entry; None if another release wrote it in another form."""
        try:
            return self.read(entry)
        except CanonicalError:
            return None

    def _decoded(self, plain: dict[str, Any], **lists: type) -> dict[str, Any]:
        return {
            name: [self._item(item, cls) for item in plain[name]]
            for name, cls in lists.items()
            if isinstance(plain.get(name), list)
        }

    def _item(self, plain: Any, cls: type) -> Any:
        known = self._known.get(id(plain)) or (plain, from_plain(plain, cls))
        self._read[id(plain)] = known
        return known[1]
