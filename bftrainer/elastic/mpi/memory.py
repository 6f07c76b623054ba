"""Keeps each member's rows in the memory of two members, so that one may be lost.

At intervals each member copies its rows and sends them to the next rank, where they are when it
dies. ``run`` decides when; ``state_transfer`` restores from the copies. Not needed for state
that all members have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bftrainer.elastic.mpi.comm import Comm
from bftrainer.elastic.mpi.state import MpiState

KEPT = 2  # a copy is usable once all members have it; until then the previous one is needed

Held = tuple[int, int, tuple[int, ...]]  # step, size, ranks whose rows are held


@dataclass(frozen=True, slots=True, kw_only=True)
class StateCopy:
    """This member's part of the state at a step."""

    step: int
    size: int
    arrays: list[bytearray]
    blocks: dict[int, list[bytearray]]  # by rank at that size, in the order of the rows


class RecentCopies:
    """The newest copies of this member."""

    def __init__(self, state: MpiState) -> None:
        self._state = state
        self._copies: list[StateCopy] = []

    def take(self, comm: Comm, step: int) -> None:
        """Copy this member's rows and those of the previous rank; all members call it."""
        rows = list(self._state.rows.values())
        own = [bytearray(one.memory()) for one in rows]
        blocks = {comm.rank: own}
        if comm.size > 1:
            left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
            spans = [one.share(comm.size, left) for one in rows]
            theirs = [
                bytearray(span.count * one.row_bytes) for span, one in zip(spans, rows, strict=True)
            ]
            requests = [comm.Irecv(block, left, tag) for tag, block in enumerate(theirs)]
            requests += [comm.Isend(block, right, tag) for tag, block in enumerate(own)]
            comm.wait(*requests)
            blocks[left] = theirs
        fresh = StateCopy(
            step=step, size=comm.size, arrays=self._state.copy_arrays(), blocks=blocks
        )
        self._copies = [*self._copies[1 - KEPT :], fresh]

    def held(self) -> list[Held]:
        """Return which copies this member has."""
        return [(c.step, c.size, tuple(sorted(c.blocks))) for c in self._copies]

    def find(self, step: int, size: int) -> StateCopy | None:
        """Return this member's copy of a step and size, if any."""
        found = [c for c in self._copies if (c.step, c.size) == (step, size)]
        return found[-1] if found else None


def choose(said: Sequence[Sequence[Held]]) -> tuple[int, int] | None:
    """Return step and size of the newest copy that the members have completely. Pure."""
    ranks: dict[tuple[int, int], set[int]] = {}
    for one in said:
        for step, size, owners in one:
            ranks.setdefault((step, size), set()).update(owners)
    whole = [key for key, found in ranks.items() if len(found) == key[1]]
    return max(whole, default=None)
