"""How a trainer's value rises at best with its size, and the price of a node that follows.

Takes values by size; called by ``milp.options``, which remembers the slopes of a row. With
them at hand the price takes one sort, without them ``milp.exact.dual`` searches for it.
"""

from __future__ import annotations

from collections.abc import Iterable

from milp.tables import FloatArray

SAME_SLOPE = 1.0 - 1e-12  # edges that steep beside each other are one: float noise


def rising_edges(points: Iterable[tuple[int, float]]) -> list[tuple[float, int]]:
    """Slope and length of the rising edges of the least concave curve above the points.

    Points are sizes, from 0 on and ascending, with their values. Slopes fall.
    """
    corners: list[tuple[int, float]] = []
    edges: list[tuple[float, int]] = []
    for size, value in points:
        if not corners:
            corners.append((size, value))
            continue
        slope = (value - corners[-1][1]) / (size - corners[-1][0])
        while edges and slope >= edges[-1][0] * SAME_SLOPE:
            corners.pop()
            edges.pop()
            slope = (value - corners[-1][1]) / (size - corners[-1][0])
        if slope > 0:
            edges.append((slope, size - corners[-1][0]))
            corners.append((size, value))
    return edges


def price_of(edges: FloatArray, capacity: int) -> float:
    """Price of a node at which what all trainers take by themselves just fills the pool.

    ``edges[0]`` and ``edges[1]`` are the slopes and lengths of all trainers' edges, in any
    order. The steepest are taken first; the price is the slope of the first that does not
    fit, 0 if all do.
    """
    slopes, lengths = edges
    order = (-slopes).argsort(kind="stable")
    first = int(lengths.take(order).cumsum().searchsorted(capacity, side="right"))
    return float(slopes[order[first]]) if first < len(order) else 0.0
