"""Exact sizes for trainers all of which must run: a dynamic program over nodes.

Source: Saxena et al., "Effective elastic scaling of deep learning workloads" (arXiv 2006.13878),
eq. 4 and 5: P(j, K) = max over k of P(j-1, K-k) + T_j(k). The index of the tables is not K but the
nodes beyond everybody's least size: at most those are to be distributed, and where there are as
many trainers as nodes there is nothing left to search. Used by ``ibm_dp`` and by the reproduction
of the paper. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
BLOCK = 64  # sizes of a trainer tried at once: bounds the memory


def best_sizes(nodes: int, least: Sequence[int], worth: Sequence[Floats]) -> list[int] | None:
    """Return the sizes of the greatest total worth; of equal ones the earlier trainers get more.

    Args:
        nodes: that all have together.
        least: the least size of each trainer.
        worth: by trainer, what each size is worth, from the least one on; -inf excludes a size.

    Returns:
        ``None`` if there are not enough nodes for the least sizes.
    """
    spare, sizes = nodes - sum(least), list(least)
    if spare < 0:
        return None
    choosing: list[int] = []
    rows: list[Floats] = []
    for j, its_worth in enumerate(worth):
        row = its_worth[: spare + 1]
        if len(row) > 1:
            choosing.append(j)
            rows.append(row)
    if not choosing:
        return sizes
    tables = _tables(rows[:-1], spare)
    for j, full_row, table in zip(
        reversed(choosing), reversed(rows), reversed(tables), strict=True
    ):
        row = full_row[: spare + 1]
        extra = int((table[spare::-1][: len(row)] + row).argmax())
        sizes[j] += extra
        spare -= extra
    return sizes


def _tables(rows: Sequence[Floats], spare: int) -> list[Floats]:
    """Return the greatest worth of the first 0, 1, 2, ... trainers by their nodes to spare."""
    widest = max(map(len, rows), default=1)
    padded = np.full(widest + spare, -np.inf)
    table = padded[widest - 1 :]
    table[:] = 0.0
    step = padded.itemsize
    # [extra, spare]: the worth of the trainers before, if this one takes ``extra``
    before = np.lib.stride_tricks.as_strided(table, (widest, spare + 1), (-step, step))
    memory = np.empty((min(widest, BLOCK), spare + 1))
    tables = [table.copy()]
    for row in rows:
        worths = row[:BLOCK, None]
        sums = np.add(before[: len(worths)], worths, out=memory[: len(worths)])
        best = np.maximum.reduce(sums, axis=0)
        for first in range(BLOCK, len(row), BLOCK):  # these need ``first`` nodes to spare
            worths = row[first : first + BLOCK, None]
            beyond = before[first : first + len(worths), first:]
            sums = np.add(beyond, worths, out=memory[: len(worths), first:])
            np.maximum(best[first:], np.maximum.reduce(sums, axis=0), out=best[first:])
        table[:] = best
        tables.append(best)
    return tables
