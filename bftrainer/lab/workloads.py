"""Workloads of trainers: the paper's experiments, and files in two formats.

Source of the paper's workloads and of the throughput of their networks: Liu et al., "BFTrainer"
(arXiv 2106.12091), Table 2: ImageNet, data parallelism, a minibatch of 32 per GPU, thousands of
samples per second. The same arguments give the same workload, bit for bit.

Our documents have ``"schema": "bftrainer/workload/1"`` (``workload.schema.json`` in this folder),
the paper's have ``nodes``, ``curves`` and ``jobs``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from bftrainer.batch.traces.text import TraceError, unreadable
from bftrainer.model.node_request import request_of
from milp.plain import Form, codec, parse
from milp.portable import log
from milp.problem import Curve

MAX_NODES = 1_000_000
MAX_TEXT = 200  # characters
SCHEMA = "bftrainer/workload/1"
MAX_BYTES = 256 << 20
_CURVES = ("curve", "utility")
_OWN, _PUBLISHED = Form(), Form(ignores_unknown=True)
# Table 2: samples per second by size, in thousands.
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
N_TRAINERS = 1000
RESCALE_UP_S, RESCALE_DOWN_S = 18.0, 12.0  # Elastic Horovod on Summit, as in the paper
RESCALE_SPREAD_S = 1.0  # diverse trainers: 17 to 19 s up, 11 to 13 s down
MEAN_ARRIVAL_S = 36.0  # between diverse trainers: a hundred per hour


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A submitted trainer."""

    submit_s: float  # after the start of the replay
    name: str
    n_min: int
    n_max: int
    samples: float  # to process
    curve: Curve  # samples per second by size
    rescale_up_s: float
    rescale_down_s: float
    utility: Curve | None = None  # objective of its own; None: follows from ``curve``
    weight: float = 1.0
    network: str = ""  # groups results
    gres: str = ""  # GPUs required on its nodes, as sbatch --gres
    user: str = ""
    account: str = ""
    sizes: tuple[int, ...] = ()  # the only ones of n_min to n_max that it may have; (): all

    def __post_init__(self) -> None:
        """Check the fields.

        Raises:
            ValueError: with the field that is wrong.
        """
        if not self.name or max(map(len, (self.name, self.network, self.gres))) > MAX_TEXT:
            raise ValueError(f"name is empty, or a text has more than {MAX_TEXT} characters")
        for name in ("submit_s", "rescale_up_s", "rescale_down_s"):
            if not 0 <= (value := getattr(self, name)) < math.inf:
                raise ValueError(f"{name} is {value:g}, not a time of 0 s or more")
        for name in ("samples", "weight"):
            if not 0 < (value := getattr(self, name)) < math.inf:
                raise ValueError(f"{name} is {value:g}, not more than 0")
        if not 1 <= self.n_min <= self.n_max <= MAX_NODES:
            raise ValueError(f"n_min {self.n_min} and n_max {self.n_max} are not a range of sizes")
        if any(low >= high for low, high in pairwise((0, *self.sizes))):
            raise ValueError("sizes rise, from 1 on")
        for curve in (self.curve, self.utility or self.curve):
            check_curve(curve)
        request_of(self.gres, "")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerWorkload:
    """Trainers by time of submission; simultaneous ones keep their order (FCFS)."""

    name: str
    submissions: tuple[Submission, ...]

    def __post_init__(self) -> None:
        """Check that times do not decrease and names are unique.

        Raises:
            ValueError: with what is wrong.
        """
        times = [submission.submit_s for submission in self.submissions]
        if times != sorted(times):
            raise ValueError("the trainers are not in the order of their submission")
        if len({submission.name for submission in self.submissions}) != len(times):
            raise ValueError("two trainers have one name")

    def __len__(self) -> int:
        """Return the number of trainers."""
        return len(self.submissions)

    def __iter__(self) -> Iterator[Submission]:
        """Yield the trainers in order."""
        return iter(self.submissions)


def check_curve(curve: Curve) -> None:
    """Check the sizes and values of a curve.

    Raises:
        ValueError: with what is wrong.
    """
    sizes, values = curve.sizes, curve.samples_per_s
    if not sizes or len(sizes) != len(values):
        raise ValueError("a curve needs as many values as sizes, at least one")
    if sizes[0] < 1 or any(b <= a for a, b in pairwise(sizes)):
        raise ValueError("the sizes of a curve rise, from 1 on")
    if not all(math.isfinite(value) and value >= 0 for value in values):
        raise ValueError("the values of a curve are numbers of 0 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class Table2Network:
    """A network of Table 2."""

    name: str
    curve: Curve

    @property
    def slug(self) -> str:
        """Its name on the command line."""
        return self.name.lower()


def _network(name: str) -> Table2Network:
    rates = tuple(round(1000.0 * kilo, 3) for kilo in _KILO_SAMPLES_PER_S[name])
    return Table2Network(name=name, curve=Curve(sizes=SIZES, samples_per_s=rates))


NETWORKS: Mapping[str, Table2Network] = {
    name.lower(): _network(name) for name in _KILO_SAMPLES_PER_S
}


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
        at_s = sorted(map(float, arrivals_s))
    networks = list(NETWORKS.values())
    choice, costs = _stream(seed, 1), _stream(seed, 2)
    submissions = []
    for i, submit_s in enumerate(at_s):
        number = int(choice.random() * len(networks))
        if is_cyclic:
            number = i % len(networks)
        network = networks[number]
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
        at_s += -log(1.0 - chance.random()) * mean_s
    return times


def _stream(seed: int, purpose: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, purpose])))


def read_workload(path: Path) -> TrainerWorkload:
    """Read either form; times of submission are relative to the first one.

    Raises:
        TraceError: BFT-4002 or BFT-4010, with the trainer and the field that is wrong.
    """
    try:
        return _read(path)
    except OSError as problem:
        raise unreadable(path, problem) from problem
    except (ValueError, TypeError, LookupError) as problem:
        raise TraceError(
            "BFT-4010",
            f"{path.name}: {problem}.",
            "Correct the file; see docs/reference/traces.md.",
        ) from problem


def _read(path: Path) -> TrainerWorkload:
    if path.stat().st_size > MAX_BYTES:
        raise ValueError(f"it is larger than {MAX_BYTES >> 20} MiB")
    document = parse(path.read_bytes())
    if not isinstance(document, dict):
        raise TypeError("it is no JSON object")
    if document.get("schema") == SCHEMA:
        rows = list(map(_with_rates, document["trainers"]))
        trainers = codec(_Own, _OWN).decode({"schema": SCHEMA, "trainers": rows}).trainers
    elif {"nodes", "curves", "jobs"} <= set(document):
        trainers = _published(codec(_Tables, _PUBLISHED).decode(document))
    else:
        raise ValueError(f"it has neither schema {SCHEMA!r} nor nodes, curves and jobs")
    first_s = min((trainer.submit_s for trainer in trainers), default=0.0)
    shifted = (replace(trainer, submit_s=trainer.submit_s - first_s) for trainer in trainers)
    submissions = tuple(sorted(shifted, key=attrgetter("submit_s")))
    return TrainerWorkload(name=str(document.get("name", path.stem))[:100], submissions=submissions)


def _with_rates(row: Any) -> Any:
    """Return a trainer whose curves call their values by the name that ``Curve`` has for them."""
    if not isinstance(row, dict):
        return row
    renamed = dict(row)
    for name in _CURVES:
        curve = row.get(name)
        if isinstance(curve, dict):
            renamed[name] = {
                "samples_per_s" if key == "values" else key: value for key, value in curve.items()
            }
    return renamed


@dataclass(frozen=True, slots=True, kw_only=True)
class _Own:
    """Our form."""

    schema: str
    name: str = ""
    trainers: tuple[Submission, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Values:
    throughput: tuple[float, ...]  # by size; these curves may have a size 0, ours do not
    objective: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    name: str
    submit: float
    n_min: int
    n_max: int
    samples: float
    t_up: float
    t_down: float
    curve: int  # its number


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tables:
    """The paper's form."""

    nodes: tuple[int, ...]
    curves: tuple[_Values, ...]
    jobs: tuple[_Job, ...]


def _published(tables: _Tables) -> tuple[Submission, ...]:
    first = 1 if tables.nodes[:1] == (0,) else 0
    sizes = tables.nodes[first:]
    submissions = []
    for i, job in enumerate(tables.jobs):
        if not 0 <= job.curve < len(tables.curves):
            raise ValueError(f"jobs[{i}]: there is no curve {job.curve}")
        values = tables.curves[job.curve]
        rates, objective = values.throughput[first:], values.objective[first:]
        utility: Curve | None = None
        if objective != rates:
            utility = Curve(sizes=sizes, samples_per_s=objective)
        _, _, network = job.name.partition("-")
        submissions.append(
            Submission(
                submit_s=job.submit,
                name=job.name,
                network=network,
                n_min=job.n_min,
                n_max=job.n_max,
                samples=job.samples,
                rescale_up_s=job.t_up,
                rescale_down_s=job.t_down,
                curve=Curve(sizes=sizes, samples_per_s=rates),
                utility=utility,
            )
        )
    return tuple(submissions)
