"""Numbers and lengths of time as people read them: no exponents, units that fit. Pure.

All surfaces use these: verbs, reports, explanations. Files and JSON have the numbers themselves.
"""

from __future__ import annotations

import math
from typing import Final

LARGE_WORDS: Final = ((1e12, "trillion"), (1e9, "billion"), (1e6, "million"))
LARGE_FROM: Final = 1e7  # smaller numbers are written in full
SMALLEST: Final = 1e-4  # of those below it nobody counts the zeros
MINUTE_S, HOUR_S, DAY_S = 60.0, 3600.0, 86_400.0
# A length of time is shown in the first unit of which it is less than so many.
TIME_UNITS: Final = ((1.0, 1e-3, "ms"), (120.0, 1.0, "s"), (7200.0, MINUTE_S, "min"),
                     (172_800.0, HOUR_S, "h"), (math.inf, DAY_S, "days"))  # fmt: skip


def quantity(value: float, digits: int = 3, *, is_grouped: bool = True) -> str:
    """Return a number with so many significant digits; whole numbers are never rounded to tens.

    As in 0.0123, 12.3, 1,235, 12.3 million, 1.5e-5.

    Args:
        value: any number.
        digits: so many at least, but no zeros at the end.
        is_grouped: whether thousands are set apart and large numbers have words; without, it can
            be typed as a value.
    """
    size = abs(value)
    if not size:  # also -0.0
        return "0"
    if not math.isfinite(value):
        return f"{value:g}"
    if is_grouped and size >= LARGE_FROM:
        scale, word = next(pair for pair in LARGE_WORDS if size >= pair[0])
        return f"{quantity(value / scale, digits)} {word}"
    mantissa, _, exponent = f"{value:.{digits - 1}e}".partition("e")
    if size < SMALLEST:
        return f"{_without_zeros(mantissa)}e{int(exponent)}"
    decimals = max(0, digits - 1 - int(exponent))
    return _without_zeros(f"{value:{',' if is_grouped else ''}.{decimals}f}")


def _without_zeros(text: str) -> str:
    if "." not in text:
        return text
    return text.rstrip("0").rstrip(".")


def time_span(seconds: float, digits: int = 3) -> str:
    """Return a length of time in the unit that fits: 350 ms, 90 s, 24 min, 7.5 h, 3 days."""
    size = abs(seconds)
    if not size or not math.isfinite(seconds):
        return f"{quantity(seconds)} s"
    unit_s, unit = next((unit_s, unit) for below_s, unit_s, unit in TIME_UNITS if size < below_s)
    return f"{quantity(seconds / unit_s, digits)} {unit}"
