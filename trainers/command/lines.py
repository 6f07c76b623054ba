"""Parses a program's lines: ``BFT ready``, ``BFT step=7 samples=448``, ``BFT value=0.2``. Pure.

Also derives its speed; the clock is an argument. Called by ``keeper``.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass

from bftrainer.elastic.fields import MOST

WINDOW_S = 10.0  # rates are averages over this time
# 15 digits are exact in every JSON parser and more than any training needs.
_WORD = r"ready|(?:step|samples|epoch)=\d{1,15}|value=\S{1,40}"
_LINE = re.compile(rf"BFT(?=\s)(?:\s+(?:{_WORD}))+\s*\Z", re.ASCII)
_NUMBER = re.compile(r"\s(step|samples|epoch)=(\d+)(?!\S)")
_VALUE = re.compile(r"\svalue=(\S+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Progress of a program, as it reports it, since the beginning of the training."""

    step: int = 0
    epoch: int = 0
    samples: int = 0


def parse_line(line: str, before: Place) -> Place | None:
    """Return the progress after this line; None if it is not a progress line."""
    if not _LINE.match(line):
        return None
    said = {name: int(number) for name, number in _NUMBER.findall(line)}
    return Place(
        step=said.get("step", before.step),
        epoch=said.get("epoch", before.epoch),
        samples=said.get("samples", before.samples),
    )


def value_in(line: str) -> str | None:
    """Return the metric that a progress line reports, as its text; None: none."""
    found = _VALUE.findall(line)
    return found[-1] if found else None


class Pace:
    """Speed of a program."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, Place]] = deque()

    def add(self, place: Place, now_s: float) -> None:
        """Add a progress report."""
        self._seen.append((now_s, place))
        while len(self._seen) > 2 and now_s - self._seen[0][0] > WINDOW_S:
            self._seen.popleft()

    def rates(self) -> tuple[float, float]:
        """Return seconds per step and samples per second; 0.0 while unknown."""
        if not self._seen:
            return 0.0, 0.0
        (from_s, first), (to_s, last) = self._seen[0], self._seen[-1]
        took_s = to_s - from_s
        if took_s <= 0.0:
            return 0.0, 0.0
        steps, samples = last.step - first.step, last.samples - first.samples
        return (took_s / steps if steps > 0 else 0.0), min(MOST, max(0.0, samples / took_s))
