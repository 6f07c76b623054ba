"""Extracts rescales with their pauses, parks, give-backs and decisions from the run's journal.

Pure. Called when the daemon has stopped and, with the entries so far, for the live view.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bftrainer.journal.records import JournalEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescale:
    """A generation that became complete."""

    trainer_id: str
    at_s: float
    size_before: int  # 0: a start or a resume
    size: int
    pause_s: float  # worst of all survivors
    reason: str
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveBack:
    """A node handed back because an ordinary job could start on it."""

    at_s: float
    node: str
    job_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Park:
    """A trainer lost its last node."""

    trainer_id: str
    at_s: float
    is_saved: bool  # False: taken by surprise; the last checkpoint counts


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalFacts:
    """Everything of interest in a journal, each list in order of time."""

    generations: tuple[Rescale, ...] = ()
    parks: tuple[Park, ...] = ()
    give_backs: tuple[GiveBack, ...] = ()
    decisions_ms: tuple[float, ...] = ()
    worker_failures: tuple[str, ...] = ()

    @property
    def rescales(self) -> tuple[Rescale, ...]:
        """Changes of size of trainers that were running."""
        return tuple(g for g in self.generations if g.size_before > 0)

    @property
    def resumes(self) -> tuple[Rescale, ...]:
        """Starts of trainers that had been parked."""
        parked = [(p.trainer_id, p.at_s) for p in self.parks]
        return tuple(
            g
            for g in self.generations
            if g.size_before == 0 and any(t == g.trainer_id and at <= g.at_s for t, at in parked)
        )


def collect(entries: Iterable[JournalEntry]) -> JournalFacts:
    """Read the entries of one journal, oldest first."""
    generations: list[Rescale] = []
    parks: list[Park] = []
    give_backs: dict[str, GiveBack] = {}
    decisions_ms: list[float] = []
    failures: list[str] = []
    for entry in entries:
        match entry.kind:
            case "rescaled":
                generations.append(_rescale(entry))
            case "parked":
                payload = entry.plain()
                parks.append(
                    Park(
                        trainer_id=payload["trainer_id"],
                        at_s=entry.at_s,
                        is_saved=payload["what"]["is_saved"],
                    )
                )
            case "worker-failed":
                failures.append(str(entry.plain()["what"]["cause"]))
            case "decision":
                payload = entry.plain()
                decisions_ms.append(float(payload["took_ms"]))
                for release in payload["plan"]["releases"]:
                    _note_give_back(give_backs, entry.at_s, release)
            case _:
                continue
    return JournalFacts(
        generations=tuple(generations),
        parks=tuple(parks),
        give_backs=tuple(give_backs.values()),
        decisions_ms=tuple(decisions_ms),
        worker_failures=tuple(failures),
    )


def _rescale(entry: JournalEntry) -> Rescale:
    payload = entry.plain()
    what: Mapping[str, Any] = payload["what"]
    return Rescale(
        trainer_id=payload["trainer_id"],
        at_s=entry.at_s,
        size_before=int(what["size_before"]),
        size=int(what["size"]),
        pause_s=float(what["pause_s"]),
        reason=str(what["reason"]),
        step=int(what["step"]),
    )


def _note_give_back(found: dict[str, GiveBack], at_s: float, release: Mapping[str, Any]) -> None:
    # A pilot goes back once; a second decision may still name it while it leaves.
    if release["for_job"] and release["pilot_id"] not in found:
        found[release["pilot_id"]] = GiveBack(
            at_s=at_s, node=str(release["node"]), job_id=str(release["for_job"])
        )
