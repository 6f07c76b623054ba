"""Makes a curve concave where its measurements allow it.

Adding the same nodes again rarely brings more than the first time; noise sometimes suggests it, and
a solver that believes it jumps between sizes. Measured values below the line between their
neighbours by no more than their errors are raised to it; if one lies lower, the curve stays as it
is. Called by ``fit``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
TOLERANCE = 2.0  # standard errors of a value and of its neighbours


def concave(sizes: Floats, curve: Floats, measured: Sequence[int], errors: Floats) -> Floats:
    """Return the curve, concave from (0, 0) if the values at ``measured`` allow it.

    ``errors`` are relative, of the measured values. The values in between are changed.
    """
    anchors = _raised(sizes[list(measured)], curve[list(measured)], errors)
    if anchors is None:
        return curve
    end_slope = _end_slope(sizes, curve, measured[-1])
    bent = np.minimum(curve, _ceiling(sizes, sizes[list(measured)], anchors, end_slope))
    bent[list(measured)] = anchors
    bent = _hull(sizes, bent)
    # If the curve already falls, the fall is not extrapolated.
    bent[measured[-1] + 1 :] = np.maximum(bent[measured[-1] + 1 :], anchors[-1])
    return bent


def _raised(sizes: Floats, values: Floats, errors: Floats) -> Floats | None:
    """Measured values raised to their hull; None if one is too far below it."""
    hull = _hull(sizes, values)
    around = np.maximum(np.append(errors[1:], 0.0), np.append(0.0, errors[:-1]))
    allowed = TOLERANCE * np.hypot(errors, around) * values
    return None if bool(np.any(hull - values > allowed + 1e-9 * values)) else hull


def _ceiling(sizes: Floats, xs: Floats, anchors: Floats, end_slope: float) -> Floats:
    """Return the lowest of lines through the anchors.

    Each has a slope that a concave curve through all of them can have there.
    """
    chords = np.diff(np.concatenate(([0.0], anchors))) / np.diff(np.concatenate(([0.0], xs)))
    slopes = 0.5 * (chords + np.append(chords[1:], 0.0))
    slopes[-1] = min(float(chords[-1]), end_slope)
    lines = anchors[:, None] + slopes[:, None] * (sizes[None, :] - xs[:, None])
    return np.asarray(lines.min(axis=0))


def _end_slope(sizes: Floats, curve: Floats, last: int) -> float:
    """Slope of the curve around the largest measured size, beyond which there is no chord."""
    around = np.concatenate(([0.0], sizes)), np.concatenate(([0.0], curve))
    low, high = last, min(last + 2, len(sizes))  # indices into ``around``
    rise = (around[1][high] - around[1][low]) / (around[0][high] - around[0][low])
    return max(0.0, float(rise))


def _hull(sizes: Floats, values: Floats) -> Floats:
    """The least concave function from (0, 0) that is nowhere below the values."""
    corners: list[tuple[float, float]] = [(0.0, 0.0)]
    for x, y in zip(sizes.tolist(), values.tolist(), strict=True):
        while len(corners) > 1:
            (x0, y0), (x1, y1) = corners[-2:]
            if (y1 - y0) * (x - x1) > (y - y1) * (x1 - x0):
                break
            corners.pop()
        corners.append((x, y))
    return np.interp(sizes, [x for x, _ in corners], [y for _, y in corners])
