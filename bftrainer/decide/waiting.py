"""Does anything wait for a cycle of the scheduler? Then the next look asks for it.

The fold's memory, our pilots and the last snapshot come in. Called by the daemon before
each look, because asking is a request to the controller of its own. A snapshot that was
taken without asking has the cycle that was known last: an old one can only say "not
passed yet", never "passed", so that nothing is taken too early.
"""

from __future__ import annotations

from collections.abc import Iterable

from bftrainer.decide.types import Memory, PilotView
from bftrainer.poll.snapshot import Snapshot


def waits_for_cycle(memory: Memory, pilots: Iterable[PilotView], snapshot: Snapshot | None) -> bool:
    """Whether a give-back or a claim waits for the scheduler to pass over the queue."""
    if memory.held_off:  # dropped as soon as it has passed
        return True
    since_s = [known.at_s for known in memory.gave_back.values()]
    since_s += [p.requested_s for p in pilots if not (p.is_held or p.is_leaving)]
    if not since_s:
        return False
    cycle = snapshot.cycle if snapshot is not None else None
    return cycle is None or cycle.began_s is None or cycle.began_s < max(since_s)
