"""Refused pilot requests: the reason, and the pause before the next request."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

MAX_PAUSE_S: Final = 300.0


@dataclass(slots=True)
class PilotRefusals:
    """Consecutive refusals; the pause doubles with each round of requests."""

    why: str = ""  # of the last one; "" after an accepted request
    _rounds: int = 0
    _until_s: float = 0.0

    def may_claim(self) -> bool:
        """Whether the pause is over."""
        return time.monotonic() >= self._until_s

    def refused(self, why: str) -> None:
        """Record a refusal."""
        self.why = why
        if self.may_claim():  # a round of requests counts once
            self._rounds += 1
            self._until_s = time.monotonic() + min(MAX_PAUSE_S, 2.0 ** min(16, self._rounds))

    def accepted(self) -> None:
        """Record an accepted request."""
        self._rounds, self.why = 0, ""
