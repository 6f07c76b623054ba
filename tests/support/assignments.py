"""Lines ``KEY = VALUE`` of the files that a site is given."""

from __future__ import annotations

from collections.abc import Iterable


def values_in(lines: Iterable[str]) -> dict[str, str]:
    """Return the value of each key; a line that assigns nothing is a key with an empty one."""
    values = {}
    for line in lines:
        key, _, value = line.partition("=")
        values[key.strip()] = value.strip()
    return values
