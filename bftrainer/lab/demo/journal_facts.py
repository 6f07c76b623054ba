"""Extracts rescales, parks and give-backs from the entries of a journal. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bftrainer.journal.records import JournalEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescale:
    """A generation that became complete."""

    trainer_id: str
    at_s: float
    size_before: int  # 0: a start or a resume
    size: int
    pause_s: float  # worst of all survivors


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


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalFacts:
    """Everything of interest in a journal, each list in order of time."""

    generations: tuple[Rescale, ...] = ()
    parks: tuple[Park, ...] = ()
    give_backs: tuple[GiveBack, ...] = ()
    worker_failures: tuple[str, ...] = ()

    @property
    def rescales(self) -> tuple[Rescale, ...]:
        """Changes of size of trainers that were running."""
        return tuple(g for g in self.generations if g.size_before > 0)


def collect(entries: Iterable[JournalEntry]) -> JournalFacts:
    """Read the entries of one journal, oldest first."""
    generations: list[Rescale] = []
    parks: list[Park] = []
    give_backs: dict[str, GiveBack] = {}
    failures: list[str] = []
    for entry in entries:
        if entry.kind not in ("rescaled", "parked", "worker-failed", "decision"):
            continue
        payload = entry.plain()
        match entry.kind:
            case "rescaled":
                what = payload["what"]
                generations.append(
                    Rescale(
                        trainer_id=payload["trainer_id"],
                        at_s=entry.at_s,
                        size_before=int(what["size_before"]),
                        size=int(what["size"]),
                        pause_s=float(what["pause_s"]),
                    )
                )
            case "parked":
                parks.append(Park(trainer_id=payload["trainer_id"], at_s=entry.at_s))
            case "worker-failed":
                failures.append(str(payload["what"]["cause"]))
            case _:
                for release in payload["plan"]["releases"]:
                    if job_id := release["for_job"]:
                        # A second decision may still name a pilot while it leaves.
                        give_backs.setdefault(
                            release["pilot_id"],
                            GiveBack(at_s=entry.at_s, node=release["node"], job_id=job_id),
                        )
    return JournalFacts(
        generations=tuple(generations),
        parks=tuple(parks),
        give_backs=tuple(give_backs.values()),
        worker_failures=tuple(failures),
    )
