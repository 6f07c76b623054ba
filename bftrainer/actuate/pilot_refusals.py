"""Pilots that could not be had: why, and how long no more are asked for."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

MAX_PAUSE_S: Final = 300.0


@dataclass(slots=True)
class PilotRefusals:
    """In a row; the pause doubles with each round of pilots."""

    why: str = ""  # the last one; "" since one was accepted
    _rounds: int = 0
    _until_s: float = 0.0

    def may_claim(self) -> bool:
        """Whether the pause is over."""
        return time.monotonic() >= self._until_s

    def refused(self, why: str) -> None:
        """One was refused."""
        self.why = why
        if self.may_claim():  # one round of pilots counts once
            self._rounds += 1
            self._until_s = time.monotonic() + min(MAX_PAUSE_S, 2.0 ** min(16, self._rounds))

    def accepted(self) -> None:
        """One was accepted."""
        self._rounds, self.why = 0, ""
