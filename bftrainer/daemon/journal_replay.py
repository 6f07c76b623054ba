"""Repeats the decisions in a daemon's journal and compares the plans.

Every journalled decision contains its full input. Equal hashes of all plans show that daemon and
simulator decide alike. Called by ``bftrainer replay`` and by the end-to-end tests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cache

from bftrainer.decide.isolation import decide_surely
from bftrainer.decide.policies.base import load_policy
from bftrainer.journal.decisions import DecisionReader
from bftrainer.journal.projection import JournalEntry
from bftrainer.model.canonical import digest
from bftrainer.model.decision import Plan

KIND = "decision"  # of the entries that hold decisions


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """A recorded decision and its repetition."""

    seq: int  # of the journal's entry
    at_s: float
    recorded_sha256: str  # of the plan
    sha256: str  # of the plan taken again
    differing: tuple[str, ...]  # fields of the plan

    @property
    def is_equal(self) -> bool:
        """Return whether it is the same plan."""
        return self.sha256 == self.recorded_sha256


class Repeater:
    """Repeats decisions of one journal, in their order: each is read by the one before it."""

    def __init__(self) -> None:
        self._reader = DecisionReader()
        self._policy_of = cache(load_policy)  # to look for one takes a while

    def repeat(self, entry: JournalEntry) -> Again:
        """Take the decision of an entry of this ``KIND`` again.

        Raises:
            UsageError: BFT-3050, a recorded policy is not installed.
            CanonicalError: BFT-2220, this release cannot read the form of the entry.
        """
        record = self._reader.read(entry)
        plan = decide_surely(record.input, self._policy_of(record.input.settings.policy))
        recorded, now = digest(record.plan), digest(plan)
        differing: tuple[str, ...] = ()
        if now != recorded:
            differing = _differing(record.plan, plan)
        return Again(
            seq=entry.seq,
            at_s=record.input.now_s,
            recorded_sha256=recorded,
            sha256=now,
            differing=differing,
        )


def take_again(entries: Iterable[JournalEntry]) -> Iterator[Again]:
    """Repeat every recorded decision in order; other entries are skipped.

    Raises:
        UsageError, CanonicalError: as ``Repeater.repeat``.
    """
    repeater = Repeater()
    for entry in entries:
        if entry.kind == KIND:
            yield repeater.repeat(entry)


def _differing(recorded: Plan, repeated: Plan) -> tuple[str, ...]:
    names = [field.name for field in fields(Plan)]
    return tuple(
        n
        for n in names
        if digest(replace(recorded, **{n: getattr(repeated, n)})) != digest(recorded)
    )
