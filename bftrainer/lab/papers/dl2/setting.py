"""The clusters of section 6, and the amounts that are played."""

from __future__ import annotations

from dataclasses import dataclass

from bftrainer.lab.papers.paper import Extent, read_expected

TABLES = read_expected(__package__)["tables"]

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
SETTINGS = {one.name: one for one in (LARGE, TESTBED, ALL_REDUCE)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts(Extent):
    """Numbers of traces, learners and iterations."""

    traces: int = 10  # a value is the mean of
    learners: int = 5
    iterations: int = 400
    published: int = 3  # learners of the paper
    updates: int = 1200
    all_reduce: int = 50  # iterations


FULL = Amounts()
QUICK = Amounts(
    name="quick",
    shortened="2 learners of 100 iterations instead of 5 of 400; 1 of the paper's instead of 3.",
    learners=2,
    iterations=100,
    published=1,
    updates=600,
    all_reduce=20,
)
