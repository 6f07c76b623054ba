"""What decisions fail on: counted, and logged when it is new.

``decide_surely`` leaves out whoever is at fault and goes on, so that a defect shows here, in
``status`` and nowhere else. One ``DecisionFailures`` per daemon.
"""

from __future__ import annotations

import logging
from traceback import extract_tb

from bftrainer.model.decision import Known
from bftrainer.surviving.words import sentences

LOG = logging.getLogger("bftrainer.decide")
MOST_PLACES = 1000  # logged; who wants more than that has the journal


class DecisionFailures:
    """Of the decisions of one daemon."""

    def __init__(self) -> None:
        self.count = 0
        self._logged: set[str] = set()
        self._left_out: Known = {}

    def add(self, failure: Exception) -> None:
        """Count one; log it, with its traceback, the first time it comes from a place."""
        self.count += 1
        frames = extract_tb(failure.__traceback__)
        place = f"{type(failure).__name__} {frames[-1].filename}:{frames[-1].lineno}"
        if place not in self._logged and len(self._logged) < MOST_PLACES:
            self._logged.add(place)
            LOG.error("a decision failed; others go on without who is at fault", exc_info=failure)

    def left_out(self, known: Known) -> None:
        """Log who is left out that was not before."""
        if known or self._left_out:
            fresh = {key: one for key, one in known.items() if key not in self._left_out}
            for sentence in sentences(fresh):
                LOG.error("%s", sentence)
            self._left_out = known
