"""Stochastic gradient descent over MPI, with replicated state.

    bftrainer submit --runtime mpi --nodes 1:4 --interpreter .venv/bin/python mpi_sgd.py

A logistic regression on synthetic points. In every step each member processes its share of the
batch and the gradients are summed. It counts every sample, which shows any sample used twice or
never. Also runs alone, or under mpirun.
"""

from __future__ import annotations

import argparse
import json
import os
import time

import numpy as np

from bftrainer.elastic import mpi

N_POINTS, N_FEATURES = 2000, 8
RATE = 0.5

parser = argparse.ArgumentParser(description="SGD over MPI")
parser.add_argument("--steps", type=int, default=1000)
parser.add_argument("--batch", type=int, default=24)
parser.add_argument("--pause", type=float, default=0.0, help="more work: seconds per step, shared")
parser.add_argument("--out", default="", help="write what came out, as JSON")
options = parser.parse_args()

draws = np.random.default_rng(0)  # the same on every member
points = draws.normal(size=(N_POINTS, N_FEATURES))
labels = (points @ draws.normal(size=N_FEATURES) > 0).astype(float)

weights, velocity = np.zeros(N_FEATURES), np.zeros(N_FEATURES)
counts = np.zeros(2, dtype=np.int64)  # samples, sum of their numbers


def step(run: mpi.Run) -> None:
    """Train on one batch; changes no state before the sums have arrived."""
    first, batch = run.samples, run.batch  # --batch of the submission may change it
    mine = np.arange(first + run.rank, first + batch, run.size)
    time.sleep(options.pause / run.size)
    x, y = points[mine % N_POINTS], labels[mine % N_POINTS]
    error = 1 / (1 + np.exp(-x @ weights)) - y
    part = np.concatenate([x.T @ error, [len(mine), mine.sum()]])
    total = np.empty_like(part)
    run.comm.Allreduce(part, total)
    velocity[:] = 0.9 * velocity + total[:N_FEATURES] / batch
    weights[:] -= RATE * velocity
    counts[:] += total[N_FEATURES:].astype(np.int64)


print(f"pid {os.getpid()}", flush=True)
run = mpi.Run(
    replicated={"weights": weights, "velocity": velocity, "counted": counts}, batch=options.batch
)
if run.loop(step, steps=options.steps):
    accuracy = float(((points @ weights > 0) == labels).mean())
    print(f"step {run.step}, accuracy {accuracy:.3f}")
    if options.out:
        result = {
            "step": run.step,
            "samples": int(counts[0]),
            "index_sum": int(counts[1]),
            "weights": weights.tolist(),
        }
        with open(options.out, "w", encoding="utf-8") as file:  # noqa: PTH123 - a plain script
            json.dump(result, file)
