"""What the journal returns: entries and pilot records. Only the journal creates entries."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from bftrainer.model.canonical import CanonicalError, decode, parse
from bftrainer.model.trainer import TrainerRecord

T = TypeVar("T")
_PILOT_ID = re.compile(r"p[0-9]{6,15}\Z")
_TRAINER_ID = re.compile(r"t[1-9][0-9]{0,14}\Z")


class PilotState(enum.StrEnum):
    """State of a pilot, as requested and observed."""

    REQUESTED = "requested"  # submitted to the batch system, or about to be
    RUNNING = "running"
    CANCELLED = "cancelled"  # cancellation requested, end not observed yet
    ENDED = "ended"

    @property
    def is_active(self) -> bool:
        """Whether its job may still be in the queue or on a node."""
        return self is not PilotState.ENDED


@dataclass(frozen=True, slots=True, kw_only=True)
class PilotRecord:
    """A pilot in the daemon's memory and in the journal's projection."""

    pilot_id: str  # "p000001", "p000002", ...; never reused
    node: str
    job_id: str | None  # None: not submitted yet, or the reply was lost
    public_key: str  # of its agent, CURVE, Z85
    requested_s: float
    time_limit_s: float
    owner: str  # whose pilot it is
    state: PilotState = PilotState.REQUESTED
    ended_s: float | None = None
    reason: str = ""  # why it is in this state, one sentence
    user: str = ""  # it runs as, and only whose trainers it serves; "": the daemon's, and all
    ADDED: ClassVar = frozenset({"user"})  # not written while unused; see CONTRIBUTING.md

    def __post_init__(self) -> None:
        """Refuse an id that is not of our numbering."""
        pilot_ordinal(self.pilot_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalEntry:
    """One line of the journal, with the records it changed."""

    seq: int  # 1, 2, 3, ... without gaps
    at_s: float
    incarnation: int
    kind: str
    payload: str  # canonical JSON
    trainers: tuple[TrainerRecord, ...]
    pilots: tuple[PilotRecord, ...]
    sha256: str  # of this entry and the previous entry's hash

    def payload_as(self, cls: type[T]) -> T:
        """Return the payload as the class it was written from."""
        return decode(self.payload, cls)

    def payload_if(self, cls: type[T]) -> T | None:
        """Return the payload; None if another release wrote it in another form."""
        try:
            return self.payload_as(cls)
        except CanonicalError:
            return None

    def plain(self) -> Any:
        """Return the payload as dicts, lists and numbers."""
        return parse(self.payload)


def pilot_ordinal(pilot_id: str) -> int:
    """Return 17 for "p000017"."""
    if not _PILOT_ID.match(pilot_id):
        raise ValueError(f"{pilot_id!r} is not a pilot id such as p000017")
    return int(pilot_id[1:])


def trainer_ordinal(trainer_id: str) -> int:
    """Return 3 for "t3"."""
    if not _TRAINER_ID.match(trainer_id):
        raise ValueError(f"{trainer_id!r} is not a trainer id such as t3")
    return int(trainer_id[1:])
