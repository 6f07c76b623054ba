"""The workloads of the paper's experiments, and the throughput of their networks (Table 2).

Source: Liu et al., "BFTrainer" (arXiv 2106.12091), Table 2: ImageNet, data parallelism,
a minibatch of 32 per GPU, thousands of samples per second.

The command line calls ``by_name``, other code the builders. The same arguments give the same
workload, bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bftrainer.batch.traces.text import TraceError
from bftrainer.lab.workloads.submission import Submission, TrainerWorkload
from milp.problem import Curve

SIZES = (1, 2, 4, 8, 16, 32, 64)
SAMPLES = 130e6  # 100 epochs of ImageNet, as each trainer of the paper
_KILO_SAMPLES_PER_S = {
    "AlexNet": (7.1, 13.1, 21.1, 40.5, 74.0, 130.8, 202.1),
    "ResNet18": (5.2, 10.6, 20.4, 39.6, 78.0, 144.8, 262.7),
    "MnasNet": (3.2, 6.0, 11.5, 23.1, 43.9, 83.5, 160.5),
    "MobileNets": (3.0, 5.9, 11.4, 22.0, 42.5, 82.3, 155.2),
    "ShuffleNet": (2.8, 5.3, 10.0, 20.4, 38.9, 74.1, 145.1),
    "VGG-16": (1.2, 2.4, 4.7, 9.3, 18.3, 36.2, 70.2),
    "DenseNet": (1.0, 2.0, 3.8, 7.6, 15.0, 28.8, 57.8),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Table2Network:
    """A network of Table 2."""

    name: str
    curve: Curve

    @property
    def slug(self) -> str:
        """Its name on the command line."""
        return self.name.lower()

    def scaling_efficiency(self, size: int) -> float:
        """Return the throughput at a size of the table over that of one node, per node."""
        at = SIZES.index(size)
        return self.curve.samples_per_s[at] / self.curve.samples_per_s[0] / size


NETWORKS: Mapping[str, Table2Network] = {
    name.lower(): Table2Network(
        name=name,
        curve=Curve(
            sizes=SIZES, samples_per_s=tuple(round(1000.0 * kilo, 3) for kilo in kilo_samples_per_s)
        ),
    )
    for name, kilo_samples_per_s in _KILO_SAMPLES_PER_S.items()
}


N_TRAINERS = 1000
RESCALE_UP_S, RESCALE_DOWN_S = 18.0, 12.0  # Elastic Horovod on Summit, as in the paper
RESCALE_SPREAD_S = 1.0  # diverse trainers: 17 to 19 s up, 11 to 13 s down
MEAN_ARRIVAL_S = 36.0  # between diverse trainers: a hundred per hour


def hpo(
    network: Table2Network,
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
