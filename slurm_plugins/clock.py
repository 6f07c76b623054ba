"""The offset of the controller's clock: converts times that Slurm prints to our clock.

``scontrol show config`` and ``sdiag`` begin with the controller's time in whole seconds. Each
bounds the offset; bounds are kept until one contradicts them. Used by ``slurm_plugins.snapshot``.
Pure.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from bftrainer.model.hostlist import ParseError
from slurm_plugins import parse

_HEADER = re.compile(
    r"^(?:Configuration data as of (\S+)|sdiag output at .*\(([0-9]+)\))$", re.MULTILINE
)


@dataclass(slots=True)
class ControllerClock:
    """The lead of the controller's clock over ours; 0 until something contradicts that."""

    least_s: float = -math.inf
    most_s: float = math.inf

    @property
    def ahead_s(self) -> float:
        """The middle of the possible range, or 0 if possible."""
        if self.least_s <= 0.0 <= self.most_s:
            return 0.0
        return (self.least_s + self.most_s) / 2.0

    def hear(self, text: str, *, sent_s: float, received_s: float) -> None:
        """Process a time printed by the controller between two times of ours."""
        found = _HEADER.search(text)
        try:
            said_s = parse.time_s(found[1] or found[2]) if found else None
        except ParseError:
            return
        if said_s is None:
            return
        least_s, most_s = said_s - received_s, said_s + 1.0 - sent_s
        if least_s <= self.most_s and self.least_s <= most_s:
            least_s, most_s = max(least_s, self.least_s), min(most_s, self.most_s)
        self.least_s, self.most_s = least_s, most_s

    def ours_s(self, theirs_s: float | None) -> float | None:
        """Convert a time of the controller's clock to ours."""
        return None if theirs_s is None else theirs_s - self.ahead_s

    def time_s(self, text: str) -> float | None:
        """Parse a printed time; raises ``ParseError``."""
        return self.ours_s(parse.time_s(text))
