"""A job of AdaptDL's cluster: how it progresses on the GPUs it has, second by second.

Epochs end on whole seconds. A change of placement costs a pause. Its batch is fixed, split among
its GPUs as the artifact does.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from pathlib import Path

from bftrainer.lab.adaptdl.application import Application, packed, read_rows
from bftrainer.model.errors import UsageError
from milp.problem import Curve

PAUSE_S = 30


@dataclass(slots=True, kw_only=True, eq=False)
class Job:
    """One job of a workload."""

    name: str
    application: Application
    submitted_s: int
    requested: int  # GPUs that its user asked for
    batch: int  # global
    nodes: tuple[int, ...] = ()  # that of each of its GPUs, those of one together
    epoch: int = 0
    ended_s: int | None = None
    dropped: str = ""  # why the policy ended it; "": it did not
    gpu_s: int = 0  # attained
    _moves: int = 0
    _progress: float = 0.0
    _pause_s: int = 0
    _pace: float | None = None  # progress per second; None: to be computed

    @property
    def is_over(self) -> bool:
        """Whether it needs no GPUs any more."""
        return self.ended_s is not None or bool(self.dropped)

    @property
    def restarts(self) -> int:
        """How often it was given other GPUs after its first ones."""
        return max(0, self._moves - 1)

    def move(self, nodes: tuple[int, ...]) -> None:
        """Give it these GPUs instead of those it has."""
        self.nodes, self._pace = nodes, None
        if nodes:
            self._pause_s = PAUSE_S
            self._moves += 1

    def advance(self, now_s: int, span_s: int) -> None:
        """Train from ``now_s`` on."""
        if not self.nodes or self.is_over:
            return
        application, left_s = self.application, span_s
        self.gpu_s += span_s * len(self.nodes)
        wait_s = min(self._pause_s, left_s)
        self._pause_s -= wait_s
        left_s -= wait_s
        while left_s > 0:
            pace = self._pace = self._pace_now() if self._pace is None else self._pace
            goal = application.progress(self.epoch + 1)
            if self._progress + pace * left_s < goal:
                self._progress += pace * left_s
                return
            left_s -= round((goal - self._progress) / pace)
            self._progress, self._pace = goal, None
            self.epoch += 1
            if self.epoch >= application.epochs:
                self.ended_s = now_s + span_s - left_s
                self.nodes = ()
                return

    def _pace_now(self) -> float:
        application, n_gpus = self.application, len(self.nodes)
        # On one GPU a batch above the smallest takes two passes, for its gradient's noise.
        least = int(n_gpus == 1 and self.batch > application.smallest_batch)
        local, passes = application.split(self.batch, n_gpus, least_passes=least)
        placement = tuple([len(list(same)) for _, same in groupby(self.nodes)])
        time = application.step_time(placement, local)
        if time is None:
            raise UsageError(
                "BFT-3072",
                f"Nothing was measured of {application.name} with {local} samples on each of"
                f" {n_gpus} GPUs.",
                "Give its jobs fewer GPUs.",
            )
        gain = application.gain(n_gpus * local * (passes + 1), self.epoch)
        return gain / time.with_accumulation(passes)

    def steps_left(self) -> float:
        """Return the steps to its end, from the end of the epoch; at least one."""
        last = self.application.epochs - 1
        if last <= self.epoch:
            return 1.0
        return self._steps(last) - self._steps(self.epoch)

    def steps_done(self) -> float:
        """Return the steps of the epochs completed."""
        return self._steps(self.epoch - 1) if self.epoch else 0.0

    def _steps(self, epoch: int) -> float:
        return self.application.value("iteration", self.batch, epoch)


@lru_cache(maxsize=256)
def estimated_curve(
    application: Application, batch: int, largest: int, gpus_per_node: int
) -> Curve:
    """Return samples per second by GPUs on as few nodes as possible, as far as is known.

    The artifact tells Optimus this: on one GPU every batch takes two passes.
    """
    rates: list[float] = []
    for n_gpus in range(1, largest + 1):
        local, passes = application.split(batch, n_gpus, least_passes=int(n_gpus == 1))
        time = application.step_time(packed(n_gpus, gpus_per_node), local)
        if time is None:
            break
        rates.append(batch / time.with_accumulation(passes))
    return Curve(sizes=tuple(range(1, len(rates) + 1)), samples_per_s=tuple(rates))


def read_jobs(path: Path, applications: dict[str, Application]) -> list[Job]:
    """Read a workload: its jobs in order of submission.

    Raises:
        UsageError: BFT-3070, the file is missing or unreadable.
    """
    try:
        return [
            Job(
                name=row["name"],
                application=applications[row["application"]],
                submitted_s=int(row["time"]),
                requested=int(row["num_replicas"]),
                batch=int(row["batch_size"]),
            )
            for row in read_rows(path)
        ]
    except (OSError, KeyError, ValueError) as error:
        raise UsageError(
            "BFT-3070",
            f"The workload {path} cannot be read: {error}.",
            "Give a workload of AdaptDL's artifact.",
        ) from error
