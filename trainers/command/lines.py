"""What a program says of its progress: lines ``BFT ready`` or ``BFT step=7 samples=448``.

Lines of output come in; where the program is, and how fast, go out. Pure: the clock is
an argument. Called by ``keeper``.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass

from bftrainer.elastic.fields import MOST

WINDOW_S = 10.0  # rates are those of the last so many seconds
# Numbers of 15 digits are whole to everybody who reads JSON; nobody trains for so long.
_LINE = re.compile(r"BFT(?=\s)(?:\s+(?:ready|(?:step|samples|epoch)=\d{1,15}))+\s*\Z", re.ASCII)
_NUMBER = re.compile(r"(step|samples|epoch)=(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a program is, in its own numbers, since the beginning of the training."""

    step: int = 0
    epoch: int = 0
    samples: int = 0


def parse_line(line: str, before: Place) -> Place | None:
    """Return where the program is by this line; None when the line is none of ours."""
    if not _LINE.match(line):
        return None
    said = {name: int(number) for name, number in _NUMBER.findall(line)}
    return Place(
        step=said.get("step", before.step),
        epoch=said.get("epoch", before.epoch),
        samples=said.get("samples", before.samples),
    )


class Pace:
    """How fast the places follow each other."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, Place]] = deque()

    def add(self, place: Place, now_s: float) -> None:
        """Take one more place in."""
        self._seen.append((now_s, place))
        while len(self._seen) > 2 and now_s - self._seen[0][0] > WINDOW_S:
            self._seen.popleft()

    def rates(self) -> tuple[float, float]:
        """Return seconds per step and samples per second; 0.0 while they are not known."""
        if not self._seen:
            return 0.0, 0.0
        (from_s, first), (to_s, last) = self._seen[0], self._seen[-1]
        took_s = to_s - from_s
        if took_s <= 0.0:
            return 0.0, 0.0
        steps, samples = last.step - first.step, last.samples - first.samples
        return (took_s / steps if steps > 0 else 0.0), min(MOST, max(0.0, samples / took_s))
