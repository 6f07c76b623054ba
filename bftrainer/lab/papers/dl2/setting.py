"""The clusters of section 6, assumptions about them, and the published values."""

from __future__ import annotations

from dataclasses import dataclass

from bftrainer.lab.papers.findings import read_expected
from bftrainer.lab.papers.paper import Extent

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

ASSUMED = {
    "arrivals": "a number per slot drawn from a binomial distribution whose mean is a daily wave "
    "(the company's trace is not published)",
    "durations": "log-normal, mean 147 min (testbed 60), from 15 min to a day, at 4 workers and 4 "
    "servers",
    "placement": "a task goes to the node of least load; what does not fit there ends the slot's "
    "allocation",
    "speeds": "between measured numbers of workers and servers by linear radial basis functions; "
    "runs recorded as 0 failed and are left out",
    "begin of a slot": "every job has a worker and a server, as in the published code",
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


FIRST_LEARNER, FIRST_TRACE = 10, 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts(Extent):
    """Numbers of traces, learners and iterations."""

    traces: int  # a value is the mean of
    learners: int
    iterations: int
    published: int  # learners of the paper
    updates: int
    all_reduce: int  # iterations

    def test(self) -> range:
        """Seeds of the traces that are shown."""
        return range(FIRST_TRACE, FIRST_TRACE + self.traces)

    def seeds(self, number: int) -> range:
        """Seeds of learners."""
        return range(FIRST_LEARNER, FIRST_LEARNER + number)


FULL = Amounts(
    name="full",
    traces=10,
    learners=5,
    iterations=400,
    published=3,
    updates=1200,
    all_reduce=50,
)
QUICK = Amounts(
    name="quick",
    shortened="2 learners of 100 iterations instead of 5 of 400; 1 of the paper's instead of 3.",
    traces=10,
    learners=2,
    iterations=100,
    published=1,
    updates=600,
    all_reduce=20,
)


EXPECTED = read_expected(__package__)
