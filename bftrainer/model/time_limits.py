"""Time limits of trainers, written as for sbatch. Pure.

A limit is wall time from a trainer's first step on, whether the trainer has nodes or not.
"""

from __future__ import annotations

import re
from typing import Final

from bftrainer.model.errors import UsageError

MOST_S: Final = 10**9
_DAY_S, _HOUR_S, _MINUTE_S = 86_400, 3600, 60
_NONE: Final = frozenset({"0", "-1", "unlimited", "infinite", "none"})
# Forms of sbatch: MINUTES, MINUTES:SECONDS, HOURS:MINUTES:SECONDS, and D-HH[:MM[:SS]].
_FORM: Final = re.compile(r"(?:(\d{1,5})-)?(\d{1,7})(?::(\d{1,7}))?(?::(\d{1,7}))?\Z", re.ASCII)
_UNITS_S: Final = {1: (_MINUTE_S,), 2: (_MINUTE_S, 1), 3: (_HOUR_S, _MINUTE_S, 1)}


def parse_time_limit(text: str) -> float:
    """Return the seconds of ``90``, ``90:00``, ``1:30:00``, ``1-12``, ``1-12:30``; 0.0: no limit.

    Raises:
        UsageError: BFT-1063, it has none of the forms of sbatch.
    """
    if text.strip().lower() in _NONE:
        return 0.0
    match = _FORM.match(text.strip())
    if match is None:
        raise _refusal(text)
    parts = [int(part) for part in match.groups()[1:] if part is not None]
    units_s = _UNITS_S[len(parts)]
    seconds = 0
    if match[1] is not None:
        seconds, units_s = int(match[1]) * _DAY_S, (_HOUR_S, _MINUTE_S, 1)
    for part, unit_s in zip(parts, units_s, strict=False):
        seconds += part * unit_s
    if not 0 < seconds <= MOST_S:
        raise _refusal(text)
    return float(seconds)


def limit_text(limit_s: float) -> str:
    """Return a limit as squeue writes it: 1:30:00, or 1-12:00:00."""
    days, seconds = divmod(round(limit_s), _DAY_S)
    hours, seconds = divmod(seconds, _HOUR_S)
    minutes, seconds = divmod(seconds, _MINUTE_S)
    if days:
        return f"{days}-{hours:02d}:{minutes:02d}:{seconds:02d}"
    return f"{hours}:{minutes:02d}:{seconds:02d}"


def _refusal(text: str) -> UsageError:
    return UsageError(
        "BFT-1063",
        f"--time {text[:40]!r} is not a time limit.",
        "Write minutes (90), HH:MM:SS (1:30:00), D-HH (1-12) or D-HH:MM:SS; 0 is no limit.",
    )
