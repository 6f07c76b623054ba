"""What users write of their jobs, read within bounds: beyond them it is a doubt, not an error.

The text of one field comes in; called by ``parse``, ``asked`` and ``hook.lines``. A job of
which something cannot be read is like one whose constraint is beyond us: that condition is
left out (``queue.requests``). Nobody can write a job that keeps us from seeing the others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from bftrainer.hostlist import ParseError, expand
from bftrainer.model.cluster import Job

T = TypeVar("T")
LOG = logging.getLogger("bftrainer.slurm")

LONGEST = 4096  # characters of a field; of most Slurm takes 1,024 (measured on 22.05)
MOST_NODES = 8192  # of a list
MOST_NODES_IN_ALL = 1 << 18  # of the different lists of one look
MOST_PARTITIONS = 256
UNREAD = " we cannot read"
NOTHING = frozenset({"", "(null)", "N/A", "NONE", "None", "none", "Unknown", "n/a"})


def said(text: str) -> str:
    """Return what is said; Slurm's words for "none" give ""; raises ``ParseError``: too much."""
    if len(text) > LONGEST:
        raise ParseError(f"a field of {len(text)} characters: {text[:80]!r}")
    return "" if text in NOTHING else text


@dataclass(slots=True)
class Doubts:
    """What of one job could not be read."""

    found: list[str] = field(default_factory=list)

    def read(self, what: str, text: str, reader: Callable[[str], T], otherwise: T) -> T:
        """Read a field; note it and go on without it if that cannot be done."""
        try:
            return reader(text)
        except ParseError:
            self.found.append(what)
            return otherwise

    def partitions(self, text: str) -> tuple[str, ...]:
        """Return the names of partitions, each once, and not more than there can be."""
        names = tuple(dict.fromkeys(filter(None, text.split(","))))
        some = tuple([name for name in names if len(name) <= LONGEST][:MOST_PARTITIONS])
        if len(some) < len(names):
            self.found.append("a list of partitions")
        return some

    def words(self) -> str:
        """Say what, for ``Job.unclear``."""
        return f"{' and '.join(self.found)}{UNREAD}" if self.found else ""


@dataclass(slots=True)
class NodeLists:
    """The lists of nodes that users wrote, of one look: the same text is written out once."""

    known: dict[str, tuple[str, ...]] = field(default_factory=dict)
    left: int = MOST_NODES_IN_ALL

    def names(self, text: str) -> tuple[str, ...]:
        """Write one out, each name once.

        Raises:
            ParseError: it is none, or there is too much of it.
        """
        found = self.known.get(text)
        if found is None:
            found = tuple(dict.fromkeys(expand(text, min(MOST_NODES, self.left))))
            self.left -= len(found)
            self.known[text] = found
        return found


@dataclass(slots=True)
class Unread:
    """Jobs of which something could not be read: said once of each, with their number."""

    shown: frozenset[str] = frozenset()
    total: int = 0

    def note(self, jobs: Iterable[Job]) -> None:
        """Log those that the look before did not have."""
        now = {job.counts_as: job for job in jobs if job.unclear.endswith(UNREAD)}
        new = sorted(now.keys() - self.shown)
        self.shown = frozenset(now)
        self.total += len(new)
        if new:
            job = now[new[0]]
            LOG.warning(
                "%d jobs ask for something that cannot be read, %d so far; job %s of %s for %s. "
                "They are treated as if they could start wherever the rest allows.",
                *(len(new), self.total, new[0], job.user, job.unclear),
            )
