"""The file where a user also finds what the workers of a trainer write (``submit --output``).

The pattern of a submission has places for what is known later: %j is the trainer's id, and %% is a
percent sign. Standard library only: agents import this early.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

OUTPUT: Final = "BFT_OUTPUT"  # the pattern, in the environment of workers
_PLACE: Final = re.compile(r"%(?P<width>\d{0,2})(?P<letter>[A-Za-z%])")


class UnknownPlaceError(Exception):
    """A pattern has a place that nobody fills."""


def filled(pattern: str, values: Mapping[str, str], later: str = "") -> str:
    """Return a pattern with its places filled; digits before a letter pad a number with zeros.

    Args:
        pattern: with places such as %x or %4j; %% is a percent sign.
        values: letter -> text.
        later: letters whose places are left for a later call, as are percent signs then.

    Raises:
        UnknownPlaceError: a letter is none of these.
    """

    def text_of(place: re.Match[str]) -> str:
        width, letter = place["width"], place["letter"]
        if letter == "%":
            return "%%" if later else "%"
        if letter in later:
            return place[0]
        if letter not in values:
            raise UnknownPlaceError(place[0])
        text = values[letter].rjust(int(width or 0), "0")
        return text.replace("%", "%%") if later else text

    return _PLACE.sub(text_of, pattern)


def output_path(pattern: str, trainer_id: str) -> str:
    """Return where a trainer's output goes."""
    try:
        return filled(pattern, {"j": trainer_id})
    except UnknownPlaceError:  # of another release
        return pattern
