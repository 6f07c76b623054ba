"""Why nodes that the oracle would hold are not held: node-seconds by cause.

At each decision every free node gets one cause; it stands until the next. A node whose GPUs are
lent one by one has a cause for each of them, which counts for as much of the node. Called by
``sidecar``, compared with the oracle's spans by ``arms``.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from bftrainer.decide.limits import BACKS_OFF
from bftrainer.decide.pool import KEPT_FREE

Span = tuple[float, float]
HELD = "held"
UNSEEN = "not yet seen free"
RELEASED = "pilot leaves"
QUEUED = "pilot waits for its first cycle"
LATE = "asked too late for a cycle"
PASSED = "a cycle passed over the pilot"
STARTING = "pilot starts"
BACKED_OFF = "left free: the daemon backs off"
HELD_OFF = "left to the queue for a cycle"
PLANNED = "planned use is near"
RESERVE = "reserve"
UNASKED = "no pilot asked for"


def cause_of(why: str) -> str:
    """Return the cause for a plan's sentence on a node that has no pilot; "": it is in the pool."""
    if not why:
        return UNASKED
    if why == KEPT_FREE:
        return RESERVE
    if why.startswith(BACKS_OFF):
        return BACKED_OFF
    if why.startswith("It is left to the queue"):
        return HELD_OFF
    if why.startswith(("It is ", "It has not been idle")):
        return UNSEEN
    return PLANNED


class CauseSince(NamedTuple):
    """A cause, and from when on it is the one of a node."""

    at_s: float
    cause: str


class Causes:
    """The cause on each node, or each GPU of it, from when to when."""

    def __init__(self, n_parts: Mapping[int, int] = MappingProxyType({})) -> None:
        """``n_parts``: of nodes of which parts are lent, by node; others have one."""
        self._n_parts = n_parts
        self._since: dict[tuple[int, int], list[CauseSince]] = defaultdict(
            lambda: [CauseSince(0.0, UNSEEN)]
        )

    def note(self, now_s: float, node: int, cause: str) -> None:
        """From now on this is the cause on all of a node."""
        for part in range(self._n_parts.get(node, 1)):
            self.note_part(now_s, node, part, cause)

    def note_part(self, now_s: float, node: int, part: int, cause: str) -> None:
        """From now on this is the cause on a part of a node, by its number."""
        since = self._since[node, part]
        if since[-1].cause != cause:
            since.append(CauseSince(now_s, cause))

    def add_up(
        self, usable: Mapping[int, Sequence[Span]], began_s: Mapping[float, float]
    ) -> dict[str, float]:
        """Return the seconds of each cause within the spans of the nodes, which are in order.

        A pilot that waits for its first cycle was asked for late: that counts for the cause at the
        begin of the cycle that could have started it.

        Args:
            usable: spans by node.
            began_s: begin of each cycle by its end.
        """
        total = defaultdict[str, float](float)
        for node, spans in usable.items():
            n_parts = self._n_parts.get(node, 1)
            for part in range(n_parts):
                for cause, seconds in _causes_in(self._since[node, part], spans, began_s):
                    total[cause] += seconds / n_parts
        return dict(total)


def _causes_in(
    causes: Sequence[CauseSince], spans: Sequence[Span], began_s: Mapping[float, float]
) -> Iterator[tuple[str, float]]:
    """Yield the causes within the spans, and for how long."""
    since = [*causes, CauseSince(math.inf, "")]
    n = 0
    for start_s, end_s in spans:
        while since[n + 1].at_s <= start_s:
            n += 1
        k = late = n
        while late and since[late].at_s > began_s.get(start_s, start_s):
            late -= 1
        while since[k].at_s < end_s:
            (since_s, cause), (to_s, _) = since[k], since[k + 1]
            if cause == QUEUED and since[late].cause not in (QUEUED, HELD):
                cause = f"{LATE}: {since[late].cause}"
            yield cause, min(to_s, end_s) - max(since_s, start_s)
            k += 1
