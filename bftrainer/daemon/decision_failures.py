"""Failures of decisions: counted, and logged when new.

``decide_surely`` leaves out what a decision fails on and continues, so a bug shows only here and in
``status``. One ``DecisionFailures`` per daemon.
"""

from __future__ import annotations

import logging
from traceback import extract_tb

from bftrainer.decide.exclusion_words import sentences
from bftrainer.model.decision import Known

LOG = logging.getLogger("bftrainer.decide")
MOST_PLACES = 1000  # logged; the journal has all


class DecisionFailures:
    """The failures of one daemon's decisions."""

    def __init__(self) -> None:
        self.count = 0
        self._logged: set[str] = set()
        self._left_out: Known = {}

    def add(self, failure: Exception) -> None:
        """Count a failure; log the first one of each place, with its traceback."""
        self.count += 1
        frames = extract_tb(failure.__traceback__)
        place = f"{type(failure).__name__} {frames[-1].filename}:{frames[-1].lineno}"
        if place not in self._logged and len(self._logged) < MOST_PLACES:
            self._logged.add(place)
            LOG.error("a decision failed; it is repeated without the cause", exc_info=failure)

    def left_out(self, known: Known) -> None:
        """Log what is newly left out."""
        if known or self._left_out:
            fresh = {key: one for key, one in known.items() if key not in self._left_out}
            for sentence in sentences(fresh):
                LOG.error("%s", sentence)
            self._left_out = known
