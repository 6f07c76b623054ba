"""``bslots -l``: on which hosts slots are free for how long. Pure.

Where no job waits for slots, bslots prints a sentence. Sources: bslots(1) of LSF 10.1; an output on
Durham's COSMA page on backfill.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from bftrainer.model.hostlist import ParseError

_PART = re.compile(r"(\d{1,6}) (day|hour|minute|second)s?\b")
_UNIT_S = {"day": 86400.0, "hour": 3600.0, "minute": 60.0, "second": 1.0}
_HOST = re.compile(r"(\d{1,6})\*([A-Za-z0-9][A-Za-z0-9._-]{0,254})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Hosts of which slots are free for at least so long."""

    for_s: float  # inf: without limit
    hosts: tuple[str, ...]


def windows(text: str) -> tuple[Window, ...]:
    """Return the windows; () where there is none.

    Raises:
        ParseError: it is not what ``bslots -l`` prints, or cut off.
    """
    if "No backfill window" in text:
        return ()
    if not text.endswith("\n"):
        raise ParseError(f"bslots printed nothing, or was cut off: {text[-60:]!r}")
    return _windows([line.strip() for line in text.split("\n") if line.strip()])


def _windows(lines: list[str]) -> tuple[Window, ...]:
    """Parse blocks of SLOTS, RUNTIME and HOSTS; host names may go on in further lines."""
    blocks: list[dict[str, str]] = []
    key = ""
    for line in lines:
        word, colon, rest = line.partition(":")
        if colon and word in {"SLOTS", "RUNTIME", "HOSTS"}:
            key = word
            if key == "SLOTS":
                blocks.append({})
            if not blocks or key in blocks[-1]:
                raise ParseError(f"{key} twice, or before SLOTS: {line[:60]!r}")
            blocks[-1][key] = rest.strip()
        elif key == "HOSTS":
            blocks[-1]["HOSTS"] += f" {line}"
        elif blocks:
            raise ParseError(f"not a line of bslots: {line[:60]!r}")
        # Else it stands before the first window: "LSF is down. Please wait ...".
    if not blocks:
        raise ParseError(f"no backfill windows: {' '.join(lines)[:60]!r}")
    return tuple(_block(block) for block in blocks)


def _block(block: dict[str, str]) -> Window:
    words = block.get("HOSTS", "").split()
    found = [_HOST.fullmatch(word) for word in words]
    hosts = tuple(one[2] for one in found if one)
    slots = block["SLOTS"]
    if not slots.isdecimal() or not hosts or len(hosts) != len(words):
        raise ParseError(f"not a backfill window: {str(block)[:120]}")
    if sum(int(one[1]) for one in found if one) != int(slots):
        raise ParseError(f"{slots} slots, but other hosts: the output is cut off")
    return Window(for_s=_seconds(block.get("RUNTIME", "")), hosts=hosts)


def _seconds(text: str) -> float:
    if text.upper() == "UNLIMITED":
        return math.inf
    parts = _PART.findall(text)
    if not parts or _PART.sub("", text).strip():
        raise ParseError(f"not a length of time: {text[:40]!r}")
    return sum(int(n) * _UNIT_S[unit] for n, unit in parts)
