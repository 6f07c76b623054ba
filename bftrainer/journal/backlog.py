"""What could not be written down yet, because the store of the journal could not be written.

``Journal.note`` puts entries in, the next transaction that succeeds takes them out. Of each
trainer and pilot only the latest record is kept, and of the rest only what is short, up to
a number of them: an outage of any length stays small in memory.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Final

from bftrainer.journal.entry_drafts import EntryDraft, Large
from bftrainer.journal.errors import JournalError
from bftrainer.journal.projection import CAUGHT_UP
from bftrainer.journal.records import PilotRecord
from bftrainer.model.trainer import TrainerRecord

LOG = logging.getLogger("bftrainer.journal")
# Disk full, not writable, failing, locked; server away. Anything else is not cured by waiting.
PASSING: Final = frozenset({"BFT-2201", "BFT-2206", "BFT-2207", "BFT-2208", "BFT-2211"})
LONGEST_PAUSE_S: Final = 30.0
KEPT_BYTES: Final = 4096  # of a payload; those of decisions are longer
KEPT_ENTRIES: Final = 1000


@dataclass(slots=True, kw_only=True)
class Backlog:
    """Records that wait, and since when nothing can be written."""

    trouble: JournalError | None = None
    trainers: dict[str, TrainerRecord] = field(default_factory=dict)
    pilots: dict[str, PilotRecord] = field(default_factory=dict)
    kept: deque[tuple[str, str]] = field(default_factory=lambda: deque(maxlen=KEPT_ENTRIES))
    _kinds: Counter[str] = field(default_factory=Counter)  # of all that could not be written
    _tries: int = 0
    _next_try_s: float = 0.0

    def add(self, item: EntryDraft | Large) -> None:
        """Keep the records of an entry, and its payload if that is short."""
        self._kinds[item.kind] += 1
        if isinstance(item, EntryDraft):
            if isinstance(item.payload, str) and len(item.payload) <= KEPT_BYTES:
                self.kept.append((item.kind, item.payload))
            self.trainers |= {record.trainer_id: record for record in item.trainers}
            self.pilots |= {record.pilot_id: record for record in item.pilots}

    def follow(self, later: Backlog) -> None:
        """Take over what came after all that is here."""
        self._kinds += later._kinds
        self.kept += later.kept
        self.trainers |= later.trainers
        self.pilots |= later.pilots

    @property
    def is_waiting(self) -> bool:
        """Whether there is something to be written."""
        return bool(self._kinds)

    def draft(self) -> EntryDraft:
        """Return the entry that says what came late, or not at all, and brings the records."""
        said = {
            "late": dict(self._kinds),
            "kept": len(self.kept),
            "why": self.trouble.code if self.trouble else "slow disk",
        }
        return EntryDraft.of(
            CAUGHT_UP, said, tuple(self.trainers.values()), tuple(self.pilots.values())
        )

    def failed(self, problem: JournalError) -> None:
        """Take note that writing failed; said once, and tried again after a pause."""
        if problem.code not in PASSING:
            return
        if self.trouble is None:
            LOG.error("%s", problem)
        self.trouble = problem
        self._next_try_s = time.monotonic() + min(LONGEST_PAUSE_S, 2.0**self._tries)
        self._tries = min(self._tries + 1, 16)

    def is_due(self) -> bool:
        """Whether it is time to write what waits."""
        has_to = self.is_waiting or self.trouble is not None
        return has_to and time.monotonic() >= self._next_try_s

    def written(self) -> None:
        """Forget what waited: it is on disk."""
        if self.trouble is not None or self.is_waiting:
            LOG.warning(
                "The journal can be written again; %d of %d entries were too long to be kept.",
                self._kinds.total() - len(self.kept),
                self._kinds.total(),
            )
            self.trouble, self._tries = None, 0
            self.trainers, self.pilots, self._kinds = {}, {}, Counter()
            self.kept.clear()
