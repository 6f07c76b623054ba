"""The workloads of the paper's experiments, from a few arguments and a seed.

The command line calls ``by_name``, other code the builders. The same arguments give the same
workload, bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from bftrainer.batch.traces.errors import TraceError
from bftrainer.lab.workloads.networks import NETWORKS, SAMPLES, Network
from bftrainer.lab.workloads.submission import Submission, TrainerWorkload

N_TRAINERS = 1000
RESCALE_UP_S, RESCALE_DOWN_S = 18.0, 12.0  # Elastic Horovod on Summit, as in the paper
RESCALE_SPREAD_S = 1.0  # diverse trainers: 17 to 19 s up, 11 to 13 s down
MEAN_ARRIVAL_S = 36.0  # between diverse trainers: a hundred per hour


def hpo(
    network: Network,
    *,
    n_trainers: int = N_TRAINERS,
    samples: float = SAMPLES,
    rescale_up_s: float = RESCALE_UP_S,
    rescale_down_s: float = RESCALE_DOWN_S,
    n_max: int = 64,
) -> TrainerWorkload:
    """Return identical trials, all submitted at the start (paper, section 5.1)."""
    return TrainerWorkload(
        name=f"hpo-{network.slug}",
        submissions=tuple(
            Submission(
                submit_s=0.0,
                name=f"{network.slug}-{i:05d}",
                n_min=1,
                n_max=n_max,
                samples=samples,
                curve=network.curve,
                rescale_up_s=rescale_up_s,
                rescale_down_s=rescale_down_s,
                network=network.name,
            )
            for i in range(n_trainers)
        ),
    )


def diverse(
    *,
    n_trainers: int = N_TRAINERS,
    seed: int = 1,
    samples: float = SAMPLES,
    mean_arrival_s: float = MEAN_ARRIVAL_S,
    arrivals_s: Sequence[float] | None = None,
    is_cyclic: bool = True,
    rescale_spread_s: float = RESCALE_SPREAD_S,
    n_max: int = 64,
) -> TrainerWorkload:
    """Return trainers of all networks of Table 2 (paper, section 5.2).

    Args:
        n_trainers: their number, unless ``arrivals_s`` gives it.
        seed: of arrivals, networks and rescale costs, which are drawn independently.
        samples: of each trainer.
        mean_arrival_s: between two submissions of the Poisson process; 0: all at the start.
        arrivals_s: times of submission instead, such as those of a trace.
        is_cyclic: networks take turns, as in the paper; otherwise they are drawn.
        rescale_spread_s: costs are drawn from the paper's, plus or minus this.
        n_max: largest size.
    """
    if arrivals_s is None:
        at_s = _poisson(seed, n_trainers, mean_arrival_s)
    else:
        at_s = sorted(float(x) for x in arrivals_s)
    networks = list(NETWORKS.values())
    choice, costs = _stream(seed, 1), _stream(seed, 2)
    submissions = []
    for i, submit_s in enumerate(at_s):
        drawn = int(choice.random() * len(networks))
        network = networks[i % len(networks) if is_cyclic else drawn]
        submissions.append(
            Submission(
                submit_s=submit_s,
                name=f"{network.slug}-{i:05d}",
                n_min=1,
                n_max=n_max,
                samples=samples,
                curve=network.curve,
                rescale_up_s=RESCALE_UP_S + rescale_spread_s * (2 * costs.random() - 1),
                rescale_down_s=RESCALE_DOWN_S + rescale_spread_s * (2 * costs.random() - 1),
                network=network.name,
            )
        )
    return TrainerWorkload(name="diverse", submissions=tuple(submissions))


def workload_names() -> tuple[str, ...]:
    """Return the names ``by_name`` knows."""
    return (*(f"hpo-{slug}" for slug in NETWORKS), "diverse")


def by_name(name: str, *, n_trainers: int = N_TRAINERS, seed: int = 1) -> TrainerWorkload:
    """Return the workload of that name: ``hpo-NETWORK`` or ``diverse``.

    Raises:
        TraceError: BFT-4011, there is no such workload.
    """
    kind, _, slug = name.lower().partition("-")
    if kind == "hpo" and slug in NETWORKS:
        return hpo(NETWORKS[slug], n_trainers=n_trainers)
    if name == "diverse":
        return diverse(n_trainers=n_trainers, seed=seed)
    raise TraceError(
        "BFT-4011",
        f"There is no workload called {name[:60]!r}.",
        f"Use one of {', '.join(workload_names())}, or a JSON file.",
    )


def _poisson(seed: int, count: int, mean_s: float) -> list[float]:
    """Return times of submission: the first is 0, the gaps are those of a Poisson process."""
    chance = _stream(seed, 0)
    at_s, times = 0.0, []
    for _ in range(count):
        times.append(at_s)
        at_s += -math.log1p(-chance.random()) * mean_s
    return times


def _stream(seed: int, purpose: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, purpose])))
