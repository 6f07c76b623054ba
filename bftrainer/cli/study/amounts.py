"""Times and prices as people write them."""

from __future__ import annotations

import re

from bftrainer.model.errors import UsageError

_NUMBER = r"(\d{1,9}(?:\.\d{1,9})?)"
_TIME = re.compile(rf"(?:{_NUMBER}d)?(?:{_NUMBER}h)?(?:{_NUMBER}m)?(?:{_NUMBER}s)?\Z", re.ASCII)
_STEPS_S = (86_400.0, 3_600.0, 60.0, 1.0)
_PRICE = re.compile(rf"{_NUMBER}(?:/(h|min|s))?\Z", re.ASCII)
_PER_H = {None: 1.0, "h": 1.0, "min": 60.0, "s": 3_600.0}


def parse_time(text: str) -> float:
    """Return the seconds of ``45s``, ``20m``, ``1h30m`` or ``2d`` (BFT-1642)."""
    match = _TIME.match(text)
    if not text or match is None:
        raise UsageError(
            "BFT-1642",
            f"{text[:40]!r} is not a time with a unit.",
            "Write for example 90s, 20m or 1h30m.",
        )
    return sum(float(part or 0) * step for part, step in zip(match.groups(), _STEPS_S, strict=True))


def parse_price(text: str) -> float:
    """Return the price of an hour of ``12.24/h``, ``0.2/min`` or ``0.0034/s`` (BFT-1642)."""
    match = _PRICE.match(text)
    price_h = float(match[1]) * _PER_H[match[2]] if match else 0.0
    if price_h <= 0.0:
        raise UsageError(
            "BFT-1642",
            f"{text[:40]!r} is not a price of an instance.",
            "Write for example 12.24/h; the currency is yours.",
        )
    return price_h
