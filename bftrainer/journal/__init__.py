"""The append-only record of all events, and the state that follows from it.

The daemon appends entries (decisions, launches, submissions); after a restart it reads trainers,
pilots and the incarnation back. Pilots and submissions are on disk before anything depends on
them; other entries are written in the background.
"""

from bftrainer.journal.journal import Journal
from bftrainer.journal.lock import InstanceLock
from bftrainer.journal.projection import JournalEntry, PilotRecord, PilotState

__all__ = ["InstanceLock", "Journal", "JournalEntry", "PilotRecord", "PilotState"]
