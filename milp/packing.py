"""Whether given sizes fit into node classes, and how.

Takes the sizes and the classes each trainer may take them from; returns one class per
trainer or None. Called by the solver for several classes: when the best sizes of the
pools taken together fit, they are the best.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from milp.tables import BoolArray, IntArray


def pack(sizes: IntArray, may_take: BoolArray, counts: Sequence[int]) -> list[int] | None:
    """Choose for each trainer a class k with ``may_take[k, j]``; sums within ``counts``.

    Exact: walks back from the last trainer over the nodes used in all classes but the
    last (what the last one holds follows from the sum of sizes).
    """
    last = len(counts) - 1
    shape = tuple(count + 1 for count in counts[:last])
    used_elsewhere = np.add.reduce(np.indices(shape)) if last else np.zeros(shape)
    can = np.asarray(int(sizes.sum()) - used_elsewhere <= counts[last], dtype=np.bool_)
    after = [can]  # after[-1][used]: the trainers looked at so far still fit
    for j in range(len(sizes) - 1, -1, -1):
        size = int(sizes[j])
        if size == 0:
            after.append(can)
            continue
        could = can.copy() if may_take[last, j] else np.zeros_like(can)
        for k in range(last):
            if may_take[k, j]:
                to, origin = _shift(len(shape), k, size)
                could[to] |= can[origin]
        can = could
        after.append(can)
    used = [0] * last
    if not can[tuple(used)]:
        return None
    after.reverse()
    classes = [0] * len(sizes)
    for j, size in enumerate(sizes.tolist()):
        if size == 0:
            continue
        for k in range(last + 1):
            moved = tuple(u + size * (k == i) for i, u in enumerate(used))
            in_range = all(u < width for u, width in zip(moved, shape, strict=True))
            if may_take[k, j] and in_range and after[j + 1][moved]:
                classes[j], used = k, list(moved)
                break
    return classes


def _shift(n_axes: int, axis: int, by: int) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """Slices that pair each cell with the one ``by`` further along an axis."""
    to = tuple(slice(None, -by) if i == axis else slice(None) for i in range(n_axes))
    origin = tuple(slice(by, None) if i == axis else slice(None) for i in range(n_axes))
    return to, origin
