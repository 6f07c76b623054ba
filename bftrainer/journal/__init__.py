"""The append-only record of everything that happened, and the state it adds up to.

Entries come in from the daemon (decisions, launches, submissions); trainers, pilots
and the incarnation come out when it returns. Pilots and submissions are written before
anybody acts on them, all else is noted beside it.
"""

from bftrainer.journal.journal import Journal
from bftrainer.journal.lock import InstanceLock
from bftrainer.journal.records import JournalEntry, PilotRecord, PilotState

__all__ = ["InstanceLock", "Journal", "JournalEntry", "PilotRecord", "PilotState"]
