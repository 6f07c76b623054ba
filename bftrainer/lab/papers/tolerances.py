"""The rule by which one of our values counts as the paper's, for all papers.

A number is met within half a unit of its last printed digit, and a share of it more that depends
on what ours is computed from alone:

* nothing where published data are counted or summed: no choice is left;
* 1% of a total of a replay of published inputs, such as U. No paper prints which of equal nodes a
  trainer gets, and that alone changes U by up to 0.8% (BFTrainer, result `exact-replay`);
* 5% of what some trainers of such a replay take, such as the runtime of one network: the same
  choice changes those of five of seven networks by up to as much (result `ties`);
* 10% where the paper's inputs are not published, so that ours are drawn, assumed or fitted. The
  papers' own simulators are as far from their clusters (Saxena et al., section IV-H: 4 to 17%).

A number that the paper itself calls about, around or nearly so is met within 5% in any case: of
the numbers that papers print both ways, 8.6% and "about 9%" (BFTrainer, sections 2.1 and 3.6) are
4.6% apart, the others less.

A percentage counts as any other number: 5% of 40% are 2 points.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Self

ABOUT: Final = 0.05
ROUNDING: Final = 1e-9  # of a number; binary fractions do not end at a half
# By ``Inputs``: which share of a number ours may differ.
SHARES: Final = {"counted": 0.0, "published": 0.01, "trainers": 0.05, "assumed": 0.10}


class Inputs(StrEnum):
    """What our value is computed from."""

    COUNTED = "counted"  # published data, counted or summed
    PUBLISHED = "published"  # replayed: a total
    TRAINERS = "trainers"  # replayed, too: of some of the trainers
    ASSUMED = "assumed"  # drawn, assumed or fitted: not published


class Printed(float):
    """A number as it is printed: 14.70 has two decimals, 1.03e6 is in ten thousands."""

    half_unit: float  # of the last digit

    def __new__(cls, text: str) -> Self:
        """Read it."""
        number = super().__new__(cls, text)
        digits, _, exponent = text.lower().partition("e")
        decimals = len(digits.partition(".")[2])
        number.half_unit = 0.5 * 10.0 ** (int(exponent or 0) - decimals)
        return number

    @classmethod
    def clock(cls, text: str) -> Self:
        """Read minutes and seconds, such as 19:24, as minutes."""
        minutes, _, seconds = text.partition(":")
        number = cls(repr(int(minutes) + int(seconds) / 60.0))
        number.half_unit = 0.5 / 60.0
        return number

    def __reduce__(self) -> tuple[type[float], tuple[float]]:
        """Copies and pickles are plain numbers."""
        return float, (float(self),)


def half_unit(number: float | None) -> float:
    """Return half a unit of the last digit; 0 of what is computed from printed numbers."""
    if isinstance(number, Printed):
        return number.half_unit
    return 0.5 if isinstance(number, int) else 0.0


def tolerance(number: float, half: float, inputs: Inputs, *, is_about: bool = False) -> float:
    """Return by how much ours may differ from a printed number, in its unit.

    Args:
        number: the printed one.
        half: half a unit of its last digit.
        inputs: what ours is computed from.
        is_about: the paper itself calls it about so.
    """
    share = SHARES[inputs]
    if is_about:
        share = max(share, ABOUT)
    return half + (share + ROUNDING) * abs(number)
