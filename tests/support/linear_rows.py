"""Which rows of a linear model some values break."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from milp.reference.linear_model import LinearModel


def broken_groups(model: LinearModel, values: Sequence[float], tolerance: float) -> set[str]:
    """Groups of the rows, bounds and sets that these values break; empty: feasible."""
    at = np.asarray(values, dtype=float)
    broken = {
        group
        for group, value, lower, upper, whole in zip(
            model.column_groups, values, model.lower, model.upper, model.is_integer, strict=True
        )
        if not lower - tolerance <= value <= upper + tolerance
        or (whole and abs(value - round(value)) > tolerance)
    }
    for i, group in enumerate(model.row_groups):
        span = slice(model.starts[i], model.starts[i + 1])
        total = float(at[model.columns[span]] @ np.asarray(model.factors[span]))
        if not model.row_lower[i] - tolerance <= total <= model.row_upper[i] + tolerance:
            broken.add(group)
    for members in model.sos2:
        used = [i for i, column in enumerate(members) if abs(values[column]) > tolerance]
        if used and used[-1] - used[0] > 1:
            broken.add("SOS2")
    return broken
