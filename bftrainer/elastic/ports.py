"""The ports that our listeners may take: the site's range (policy ``ports``), else any.

Standard library only, because workers use it too. They find the range in their environment.
"""

from __future__ import annotations

import errno
import secrets
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
VARIABLE = "BFT_PORTS"
LEAST, MOST = 1024, 65_535  # lower ones need privileges


def ports_of(text: str) -> range:
    """Return the ports of ``"41000-41100"``; those of "" are port 0 alone: the kernel chooses.

    Raises:
        ValueError: it is no range of ports.
    """
    if not text:
        return range(1)
    first, _, last = text.partition("-")
    if not (first.isdecimal() and last.isdecimal() and len(text) <= 11):
        raise ValueError("not of the form FIRST-LAST")
    if not LEAST <= int(first) <= int(last) <= MOST:
        raise ValueError(f"not within {LEAST}-{MOST}, or the last is before the first")
    return range(int(first), int(last) + 1)


def check_ports(text: str) -> str:
    """Return a range as it is; raise ``ValueError`` if it is none."""
    ports_of(text or "-")
    return text


def listen_within(text: str, listen: Callable[[int], T]) -> T:
    """Call ``listen`` with ports of a range, from any of them on, until one is free.

    Raises:
        Exception: what ``listen`` raised; the last one if all ports are in use.
    """
    ports = ports_of(text)
    # So that those who start together miss; not of the script's own random numbers, which
    # another thread may be drawing now.
    begin = secrets.randbelow(len(ports))
    for position in range(len(ports)):
        try:
            return listen(ports[(begin + position) % len(ports)])
        except Exception as problem:
            is_last = position == len(ports) - 1
            if is_last or getattr(problem, "errno", None) != errno.EADDRINUSE:
                raise
    raise AssertionError("a range has ports")
