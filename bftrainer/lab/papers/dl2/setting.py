"""The clusters of section 6, the amounts that are played, and each model's speeds.

Speeds by workers and servers are measured: the records of the published code, which carry no
licence, so that they are read from ``BFTRAINER_DATA/dl2/config_speed.txt`` where somebody put them.
Otherwise they are synthetic.
"""

from __future__ import annotations

import ast
import json
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bftrainer.lab.papers.paper import Extent, read_expected
from bftrainer.model.errors import UsageError
from bftrainer.model.lookups import by_name

TABLES = read_expected(__package__)["tables"]
RESULTS = read_expected(__package__)["results"]

MODELS = (
    "resnet-50",
    "vgg-16",
    "resnext-110",
    "inception-bn",
    "seq2seq",
    "cnn-text-classification",
    "dssm",
    "wlm",
)  # Table 1
WITHOUT_GPU = frozenset({"cnn-text-classification", "dssm"})

Speeds = npt.NDArray[np.float64]  # (type, servers, workers), epochs per slot; [.., 0, ..] is 0

RECORDS = Path("dl2") / "config_speed.txt"
CURVES = Path("jobs-ImageNet-imgps.json")
FLOOR = 0.05  # of a model's fastest record: interpolation gives no less
REFERENCE = 4  # workers and servers, of which an epoch takes 2 minutes
EPOCH_MIN = 2.0

# Synthetic step of w workers and p servers, at one total batch: compute / w + transfer w / p +
# wait (w - 1). Of compute 1 the others say how soon more workers do harm: for resnet-50, vgg-16
# and wlm at 1 to 2 workers per model, later for the others, as in the records.
SYNTHETIC = {
    "resnet-50": (1.6, 0.10),
    "vgg-16": (2.4, 0.08),
    "resnext-110": (0.6, 0.10),
    "inception-bn": (0.25, 0.03),
    "seq2seq": (0.5, 0.12),
    "cnn-text-classification": (0.3, 0.03),
    "dssm": (0.25, 0.02),
    "wlm": (3.0, 0.50),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A cluster and how jobs arrive; a slot is 20 min."""

    name: str
    nodes: int
    jobs: int
    arrivals: int  # most per slot
    window: int  # J, places for jobs
    most: int  # workers of a job, and servers
    mean_min: float = 147.0  # of the jobs
    gpus: int = 2  # of a node
    cpus: int = 8
    slot_min: float = 20.0
    types: int = len(MODELS)
    has_servers: bool = True  # False: all-reduce
    absent: float = 0.0  # share of the nodes that are away, drawn anew for each slot
    error: float = 0.0  # a job has so many more, or fewer, epochs than it says

    @property
    def per_job(self) -> int:
        """Actions per job: a worker, a server, both; or a worker only."""
        return 3 if self.has_servers else 1

    @property
    def features(self) -> int:
        """Numbers in a job's row."""
        return self.types + 4 + self.has_servers


LARGE = Setting(name="500 servers", nodes=500, jobs=200, arrivals=10, window=40, most=16)
TESTBED = Setting(name="testbed", nodes=13, jobs=30, arrivals=2, window=16, most=8, mean_min=60.0)
ALL_REDUCE = Setting(
    name="all-reduce",
    nodes=32,
    jobs=60,
    arrivals=3,
    window=20,
    most=16,
    types=7,
    has_servers=False,
)
SETTINGS = by_name((LARGE, TESTBED, ALL_REDUCE))


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts(Extent):
    """Numbers of traces, learners and iterations."""

    traces: int = 10  # a value is the mean of
    learners: int = 5
    iterations: int = 400
    published: int = 3  # learners of the paper
    updates: int = 1200
    all_reduce: int = 50  # iterations
    offline: int = 2  # learners on modelled speeds


def synthetic(most: int) -> Speeds:
    """Return the synthetic speeds, relative to one worker without any transfer."""
    workers = np.arange(1, most + 1)[None, :]
    servers = np.arange(1, most + 1)[:, None]
    speeds = np.zeros((len(MODELS), most + 1, most + 1))
    for k, model in enumerate(MODELS):
        transfer, wait = SYNTHETIC[model]
        step = 1.0 / workers + transfer * workers / servers + wait * (workers - 1)
        speeds[k, 1:, 1:] = 1.0 / step
    return speeds


def measured(path: Path, most: int) -> Speeds:
    """Return the recorded speeds in samples/s, interpolated.

    Raises:
        UsageError: BFT-4171, the file is not one of records.
    """
    rate_of: dict[str, dict[tuple[int, int], float]] = {}  # by model, servers and workers
    try:
        for line in filter(str.strip, path.read_text().splitlines()):
            model, _, _, servers, workers, rates, *_ = ast.literal_eval(line)
            if sum(rates) > 0.0:
                rate_of.setdefault(model, {})[servers, workers] = float(sum(rates))
        points = [rate_of[model] for model in MODELS]
    except (OSError, ValueError, SyntaxError, TypeError, KeyError) as error:
        raise UsageError(
            "BFT-4171",
            f"The file {path} does not hold DL2's records of speeds: {error}.",
            "Put config_speed.txt of the published code there, or remove the file.",
        ) from error
    sizes = range(1, most + 1)
    grid = np.array(list(product(sizes, sizes)), float)  # servers and workers
    speeds = np.zeros((len(MODELS), most + 1, most + 1))
    for k, of_model in enumerate(points):
        places, rate = np.array(list(of_model), float), np.array(list(of_model.values()))
        weights = np.linalg.solve(_distances(places, places), rate)
        on_grid = np.maximum(FLOOR * rate.max(), _distances(grid, places) @ weights)
        speeds[k, 1:, 1:] = on_grid.reshape(most, most)
    return speeds


def all_reduce(path: Path | None, types: int, most: int) -> Speeds:
    """Return speeds without servers: the curves of BFTrainer's Fig. 1, or synthetic ones."""
    sizes = np.arange(1, most + 1)
    speeds = np.zeros((types, 1, most + 1))
    if path is None:
        for k in range(types):
            speeds[k, 0, 1:] = sizes / (1.0 + 0.01 * 2**k * (sizes - 1))
        return speeds
    document: dict[str, Any] = json.loads(path.read_text())
    for k, curve in enumerate(document["curves"][:types]):
        speeds[k, 0, 1:] = np.interp(sizes, document["nodes"], curve["throughput"])
    return speeds


def read_speeds(folder: Path | None, setting: Setting) -> tuple[Speeds, bool]:
    """Return a setting's speeds in epochs per slot, and whether they were measured.

    Raises:
        UsageError: BFT-4171, the file is not one of records.
    """
    if not setting.has_servers:
        path = _file_in(folder, CURVES)
        speeds = all_reduce(path, setting.types, setting.most)
        # One worker trains 2 epochs in a slot.
        return speeds / speeds[:, :, 1:2] * 2.0, path is not None
    path = _file_in(folder, RECORDS)
    speeds = measured(path, setting.most) if path else synthetic(setting.most)
    reference = speeds[:, REFERENCE, REFERENCE][:, None, None]
    return speeds / reference * (setting.slot_min / EPOCH_MIN), path is not None


def _file_in(folder: Path | None, name: Path) -> Path | None:
    if folder is None or not (folder / name).is_file():
        return None
    return folder / name


def _distances(places: Speeds, goals: Speeds) -> Speeds:
    distances: Speeds = np.linalg.norm(places[:, None] - goals[None], axis=2)
    return distances
