"""The stationary temperature of a plate, by conjugate gradients on a repartitioned domain.

    bftrainer submit --runtime mpi --nodes 1:4 --interpreter .venv/bin/python mpi_heat.py

Solves -laplace(u) = f on a square with cold edges. Each member has a block of the grid's rows;
neighbours exchange the rows at their borders. When members join or leave,
``bftrainer.elastic.mpi`` repartitions the rows between two iterations. The solution is that of a
run of fixed size, up to the order of summation in dot products.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

import numpy as np

from bftrainer.elastic import mpi

parser = argparse.ArgumentParser(description="Conjugate gradients over MPI")
parser.add_argument("--grid", type=int, default=64, help="inner points per side")
parser.add_argument("--iterations", type=int, default=200)
parser.add_argument("--pause", type=float, default=0.0, help="more work: seconds per iteration")
parser.add_argument("--out", default="", help="write the solution here (numpy)")
options = parser.parse_args()
n = options.grid


def source(first: int, count: int) -> Any:
    """Return f on some rows: two warm spots."""
    y, x = np.mgrid[first + 1 : first + count + 1, 1 : n + 1] / (n + 1)
    warm = np.exp(-80 * ((x - 0.3) ** 2 + (y - 0.4) ** 2))
    return warm + 0.5 * np.exp(-120 * ((x - 0.7) ** 2 + (y - 0.7) ** 2))


def nothing(first: int, count: int) -> Any:
    """Return zeros on some rows."""
    del first
    return np.zeros((count, n))


solution, residual, direction = (
    mpi.BlockRows(n, nothing),
    mpi.BlockRows(n, source),
    mpi.BlockRows(n, source),
)
squared = np.full(1, np.nan)  # |residual|^2; unknown before the first iteration


def total(run: mpi.Run, *parts: float) -> Any:
    """Return sums over all members."""
    mine = np.array(parts)
    sums = np.empty_like(mine)
    run.comm.Allreduce(mine, sums)
    return sums


def laplace(run: mpi.Run, block: Any) -> Any:
    """Return -laplace of a block, with the neighbours' rows at its borders."""
    padded = np.zeros((len(block) + 2, n + 2))
    padded[1:-1, 1:-1] = block
    above, below, comm = np.zeros(n), np.zeros(n), run.comm
    requests = []
    if comm.rank > 0:
        requests += [comm.Isend(block[0], comm.rank - 1), comm.Irecv(above, comm.rank - 1)]
    if comm.rank < comm.size - 1:
        requests += [comm.Isend(block[-1], comm.rank + 1), comm.Irecv(below, comm.rank + 1)]
    comm.wait(*requests)
    padded[0, 1:-1], padded[-1, 1:-1] = above, below
    inner = 4 * padded[1:-1, 1:-1] - padded[:-2, 1:-1] - padded[2:, 1:-1]
    return (inner - padded[1:-1, :-2] - padded[1:-1, 2:]) * (n + 1) ** 2


def step(run: mpi.Run) -> None:
    """One iteration."""
    time.sleep(options.pause / run.size)
    x, r, p = solution.local, residual.local, direction.local
    if np.isnan(squared[0]):
        squared[:] = total(run, float(np.vdot(r, r)))
    applied = laplace(run, p)
    (curvature,) = total(run, float(np.vdot(p, applied)))
    if squared[0] == 0.0 or curvature == 0.0:
        return  # solved to the last bit
    length = squared[0] / curvature
    x += length * p
    r -= length * applied
    (smaller,) = total(run, float(np.vdot(r, r)))
    p *= smaller / squared[0]
    p += r
    squared[0] = smaller


print(f"pid {os.getpid()}", flush=True)
run = mpi.Run(
    replicated={"squared": squared},
    rows={"solution": solution, "residual": residual, "direction": direction},
)
if run.loop(step, steps=options.iterations):
    whole = np.frombuffer(run.whole("solution")).reshape(n, n)
    print(f"iteration {run.step}, residual {squared[0] ** 0.5:.3e}, warmest {whole.max():.6f}")
    if options.out:
        np.save(options.out, whole)
