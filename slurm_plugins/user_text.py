"""Parses user-written job fields within bounds; what exceeds them is a doubt, not an error.

Called by ``parse``, ``asked`` and ``hook.lines`` with the text of one field. A field that cannot be
read is ignored as a condition, like an unsupported constraint (``queue.requests``), so no job can
hide the others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from bftrainer.model.cluster import Job
from bftrainer.model.hostlist import ParseError, expand

T = TypeVar("T")
LOG = logging.getLogger("bftrainer.slurm")

LONGEST = 4096  # characters of a field; Slurm accepts 1,024 for most (measured on 22.05)
MOST_NODES = 8192  # of a list
MOST_NODES_IN_ALL = 1 << 18  # of all different lists of one poll
MOST_PARTITIONS = 256
UNREAD = " we cannot read"
NOTHING = frozenset({"", "(null)", "N/A", "NONE", "None", "none", "Unknown", "n/a"})


def said(text: str) -> str:
    """Return the text; Slurm's words for "none" give ""; raises ``ParseError``: too long."""
    if len(text) > LONGEST:
        raise ParseError(f"a field of {len(text)} characters: {text[:80]!r}")
    return "" if text in NOTHING else text


@dataclass(slots=True)
class Doubts:
    """The fields of one job that could not be read."""

    found: list[str] = field(default_factory=list)

    def read(self, what: str, text: str, reader: Callable[[str], T], otherwise: T) -> T:
        """Parse a field; on failure note it and return the default."""
        try:
            return reader(text)
        except ParseError:
            self.found.append(what)
            return otherwise

    def partitions(self, text: str) -> tuple[str, ...]:
        """Return the partition names, each once, up to a limit."""
        names = tuple(dict.fromkeys(filter(None, text.split(","))))
        some = tuple([name for name in names if len(name) <= LONGEST][:MOST_PARTITIONS])
        if len(some) < len(names):
            self.found.append("a list of partitions")
        return some

    def words(self) -> str:
        """Name them, for ``Job.unclear``."""
        return f"{' and '.join(self.found)}{UNREAD}" if self.found else ""


@dataclass(slots=True)
class NodeLists:
    """User-written node lists of one poll: equal texts are expanded once."""

    known: dict[str, tuple[str, ...]] = field(default_factory=dict)
    left: int = MOST_NODES_IN_ALL

    def names(self, text: str) -> tuple[str, ...]:
        """Expand a list, each name once.

        Raises:
            ParseError: it is malformed or too long.
        """
        found = self.known.get(text)
        if found is None:
            found = tuple(dict.fromkeys(expand(text, min(MOST_NODES, self.left))))
            self.left -= len(found)
            self.known[text] = found
        return found


@dataclass(slots=True)
class Unread:
    """Jobs with unreadable fields: logged once each, with their number."""

    shown: frozenset[str] = frozenset()
    total: int = 0

    def note(self, jobs: Iterable[Job]) -> None:
        """Log those that the last poll did not show."""
        now = {job.counts_as: job for job in jobs if job.unclear.endswith(UNREAD)}
        new = sorted(now.keys() - self.shown)
        self.shown = frozenset(now)
        self.total += len(new)
        if new:
            job = now[new[0]]
            LOG.warning(
                "%d jobs have requests that cannot be read, %d so far; job %s of %s: %s. "
                "These parts of their requests are ignored.",
                *(len(new), self.total, new[0], job.user, job.unclear),
            )
