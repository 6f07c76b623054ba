"""Episodes drawn at random: a churny pool, diverse networks, lengths of minutes to hours."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bftrainer.batch.traces.generator import GeneratorParameters, generate
from bftrainer.lab.teach.episode import Episode
from bftrainer.lab.workloads.builders import diverse

HOURS = 4.0
N_TRAINERS = 40
MEAN_ARRIVAL_S = 240.0
NODES = (8, 16, 32, 64)
HOLES_PER_NODE_H = 3.0
SPREAD = 1.0  # of the logarithm of a length
MEAN_NODE_S = 3600.0  # a trainer's length on one node


def draw(seed: int) -> Episode:
    """Draw an episode; the same seed gives the same."""
    chance = np.random.default_rng((seed, 59))
    n_nodes = int(chance.choice(NODES))
    trace = generate(
        GeneratorParameters(
            n_nodes=n_nodes,
            machine_nodes=n_nodes,
            hours=HOURS,
            holes_per_hour=HOLES_PER_NODE_H * n_nodes,
            length_scale_s=300.0,
            seed=seed,
        )
    )
    # The load follows the pool, so that there is always something to decide.
    arrivals = MEAN_ARRIVAL_S * max(NODES) / n_nodes / 4
    workload = diverse(n_trainers=N_TRAINERS, seed=seed, mean_arrival_s=arrivals)
    lengths = chance.lognormal(np.log(MEAN_NODE_S) - SPREAD**2 / 2, SPREAD, N_TRAINERS)
    return Episode(
        trace=trace,
        submissions=tuple(
            replace(one, samples=max(1.0, length * one.curve.samples_per_s[0]))
            for one, length in zip(workload, lengths, strict=True)
            if one.submit_s < HOURS * 3600.0
        ),
    )
