"""AdaptDL's dedicated cluster: 16 nodes of 4 GPUs, measured networks, workloads of 80 or 160 jobs.

Source: the simulator of Qiao et al., "Pollux" (OSDI'21), github.com/petuum/adaptdl, branch
osdi21-artifact. Its data are read from ``BFTRAINER_DATA/adaptdl-osdi21``: traces/ (throughput by
placement, statistical efficiency by batch), workloads/ and workloads-0.5/ (jobs), published/ (the
completion times it found). A node of the decision is a GPU here. Policies are asked as the daemon
asks them, every minute; its Tiresias and Optimus are ours, to the last digit.

Which GPUs of which nodes a job really gets is decided here, as in the artifact: a job whose number
changes gets new ones, always of the emptiest node, in the policy's order of admission or, if it has
none, smallest first. A placement is the number of GPUs on each node of a job. What was not measured
is interpolated as in the artifact: linearly over the local batch of the same placement, else
linearly over nodes, GPUs and local batch (Delaunay), else it is unknown. Epochs end on whole
seconds. A change of placement costs a pause. A job's batch is fixed, split among its GPUs as the
artifact does.
"""

from __future__ import annotations

import csv
import importlib
import math
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from bftrainer.decide.policies.base import (
    AllocationPolicy,
    Context,
    Decided,
    Standing,
    in_order,
    options_of,
)
from bftrainer.decide.policy_answer import ask
from bftrainer.model.errors import UsageError
from bftrainer.model.lookups import by_name
from milp.problem import Curve, Objective, Problem, ProblemNode, ProblemTrainer
from milp.tables import FloatArray

EPOCHS = {"bert": 2, "cifar10": 100, "ncf": 10, "imagenet": 90, "deepspeech2": 80, "yolov3": 50}
LARGEST_LOCAL = {"yolov3": 8}  # samples per GPU that fit, where fewer than were measured
ON_ONE_GPU = frozenset({"ncf"})  # networks that train on no more
MOST_NODES = 16
ROUNDING = 1e-8  # what a ratio may exceed a whole number by
TICK_S = 60  # between two decisions
PAUSE_S = 30  # of a job whose placement changes
NODES, GPUS_PER_NODE = 16, 4
GPUS = tuple([ProblemNode(name=f"gpu{i:02}") for i in range(NODES * GPUS_PER_NODE)])

Placement = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """The duration of a step."""

    step_s: float
    sync_s: float  # part of it: the gradients' reduction

    def with_accumulation(self, passes: int) -> float:
        """Seconds of a step with so many passes before the last, which alone reduces."""
        return self.step_s + (self.step_s - self.sync_s) * passes


class Application:
    """The measurements of one network."""

    def __init__(self, folder: Path, epochs: int) -> None:
        """Read a folder of traces.

        Raises:
            UsageError: BFT-3070, a file is missing or unreadable.
        """
        self.name, self.epochs = folder.name, epochs
        try:
            self._read(folder)
        except (OSError, KeyError, ValueError, IndexError) as error:
            raise UsageError(
                "BFT-3070",
                f"The traces of {folder.name} in {folder} cannot be read: {error}.",
                "Set BFTRAINER_DATA to a folder with adaptdl-osdi21/traces of AdaptDL's artifact.",
            ) from error
        self.step_time = lru_cache(maxsize=None)(self._step_time)

    def _read(self, folder: Path) -> None:
        self._validations = {}
        for path in sorted(folder.glob("validation-*.csv")):
            _, _, batch = path.stem.rpartition("-")
            self._validations[int(batch)] = _columns(path)
        self.batches = sorted(self._validations)
        self.smallest_batch, self.largest_batch = self.batches[0], self.batches[-1]
        by_place: defaultdict[Placement, list[tuple[float, float, float]]] = defaultdict(list)
        alike: defaultdict[tuple[int, int, int], list[tuple[float, float]]] = defaultdict(list)
        for row in read_rows(folder / "placements.csv"):
            placement = tuple(map(int, row["placement"]))
            local = int(row["local_bsz"])
            times = float(row["step_time"]), float(row["sync_time"])
            by_place[placement].append((local, *times))
            alike[len(placement), sum(placement), local].append(times)
        self._by_place = {place: np.array(sorted(rows)).T for place, rows in by_place.items()}
        local_batches = [local for _, _, local in alike]
        self.smallest_local = min(local_batches)
        self.largest_local = LARGEST_LOCAL.get(self.name, max(local_batches))
        points = [(*key, *np.mean(rows, axis=0)) for key, rows in sorted(alike.items())]
        names = ("num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time")
        for row in read_rows(folder / "scalability.csv"):
            point = tuple([float(row[name]) for name in names])
            points.append(point)
        self._points = np.array(points, dtype=np.float64)
        self._between: Any = None  # made when it is needed, which takes a while

    def _step_time(self, placement: Placement, local: int) -> StepTime | None:
        """Return the times with ``local`` samples per GPU; None: unknown."""
        turned = (placement[i:] + placement[:i] for i in range(len(placement)))
        rows = self._by_place.get(min(turned))
        if rows is not None:
            x, step, sync = rows
            if not x[0] <= local <= x[-1]:
                return None
            return StepTime(
                step_s=float(np.interp(local, x, step)), sync_s=float(np.interp(local, x, sync))
            )
        if self._between is None:
            interpolator = _scipy().LinearNDInterpolator
            self._between = interpolator(self._points[:, :3], self._points[:, 3:])
        at = [min(len(placement), MOST_NODES), sum(placement), local]
        step_s, sync_s = self._between(at)[0].tolist()
        if math.isnan(step_s):
            return None
        return StepTime(step_s=step_s, sync_s=sync_s)

    def value(self, column: str, batch: int, epoch: int) -> float:
        """Return a column of the validations, linear between the batches measured.

        Raises:
            ValueError: the batch is beyond those measured.
        """
        low = max(measured_batch for measured_batch in self.batches if measured_batch <= batch)
        high = min(measured_batch for measured_batch in self.batches if measured_batch >= batch)
        at_low = float(self._validations[low][column][epoch])
        at_high = float(self._validations[high][column][epoch])
        if low == high:
            return at_low
        return ((batch - low) * at_high + (high - batch) * at_low) / (high - low)

    def progress(self, epoch: int) -> float:
        """Return the progress at which an epoch is complete, in samples of the smallest batch."""
        if epoch == 0:
            return 0.0
        return min(float(columns["progress"][epoch - 1]) for columns in self._validations.values())

    def gain(self, batch: int, epoch: int) -> float:
        """Return the progress of a step with a global batch."""
        sqr = self.value("grad_sqr", batch, epoch)
        var = self.value("grad_var", batch, epoch)
        return (var + sqr) / (var / (batch / self.smallest_batch) + sqr)

    def split(self, batch: int, n_gpus: int, *, least_passes: int = 0) -> tuple[int, int]:
        """Return samples per GPU and pass, and passes before the last, of a global batch."""
        share = math.ceil(batch / n_gpus - ROUNDING)
        passes = max(least_passes, math.ceil(share / self.largest_local - ROUNDING) - 1)
        local = math.ceil(share / (passes + 1) - ROUNDING)
        return min(local, int(self.largest_batch / (n_gpus * (passes + 1)))), passes


def read_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _columns(path: Path) -> dict[str, FloatArray]:
    rows = read_rows(path)
    columns: dict[str, FloatArray] = {}
    for name in rows[0]:
        columns[name] = np.array([float(row[name]) for row in rows])
    return columns


def _scipy() -> Any:
    try:
        return importlib.import_module("scipy.interpolate")
    except ImportError as error:
        raise UsageError(
            "BFT-3071",
            "AdaptDL's cluster needs scipy to interpolate step times, and it is not installed.",
            "Install it with pip install 'bftrainer[adaptdl]'.",
        ) from error


def read_applications(folder: Path) -> dict[str, Application]:
    """Read all networks from ``folder``/traces.

    Raises:
        UsageError: BFT-3070, a file is missing or unreadable.
    """
    return {name: Application(folder / "traces" / name, n) for name, n in EPOCHS.items()}


def packed(n_gpus: int, per_node: int) -> Placement:
    """Return the placement on as few nodes as possible."""
    full_nodes, remainder = divmod(n_gpus, per_node)
    gpus = [per_node] * full_nodes
    if remainder:
        gpus.append(remainder)
    return tuple(gpus)


def most_gpus(application: Application, batch: int) -> int:
    """Return the most GPUs that a job of a batch can use."""
    return 1 if application.name in ON_ONE_GPU else max(1, batch // application.smallest_local)


@dataclass(slots=True, kw_only=True, eq=False)
class AdaptdlJob:
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
        """Return whether the job has ended or was dropped: it needs no GPUs any more."""
        return self.ended_s is not None or bool(self.dropped)

    @property
    def restarts(self) -> int:
        """The number of times that the job was given other GPUs after its first ones."""
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
            if self._pace is None:
                self._pace = self._pace_now()
            pace = self._pace
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
        least_passes = int(n_gpus == 1 and self.batch > application.smallest_batch)
        local, passes = application.split(self.batch, n_gpus, least_passes=least_passes)
        placement = tuple([len(list(on_node)) for _, on_node in groupby(self.nodes)])
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


def read_jobs(path: Path, applications: dict[str, Application]) -> list[AdaptdlJob]:
    """Read a workload: its jobs in order of submission.

    Raises:
        UsageError: BFT-3070, the file is missing or unreadable.
    """
    try:
        return [
            AdaptdlJob(
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The inputs of a policy beside jobs and GPUs."""

    options: Mapping[str, Any] = field(default_factory=dict)  # of the policy
    is_rigid: bool = False  # jobs run on what they requested or not at all
    objective: Objective = Objective.SCALING_EFFICIENCY
    t_fwd_s: float = 120.0
    seed: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptdlOutcome:
    """The result of a played workload; each job has its end time."""

    jobs: tuple[AdaptdlJob, ...]
    decisions: int
    decide_s: float  # processor time of them all

    def completion_s(self) -> dict[str, int]:
        """Return each job's time from submission to end; those that the policy ended have none."""
        return {j.name: j.ended_s - j.submitted_s for j in self.jobs if j.ended_s is not None}


class AdaptdlPlay:
    """One play; ``run`` goes on until all jobs have ended."""

    def __init__(self, jobs: Sequence[AdaptdlJob], policy: AllocationPolicy, setup: Setup) -> None:
        """Prepare; jobs are in order of submission.

        Raises:
            OptionError: BFT-3053, the policy does not have such options.
        """
        self._jobs, self._policy, self._setup = tuple(jobs), policy, setup
        self._options = options_of(policy, setup.options)
        self._state: Any = None
        self._held: dict[str, tuple[str, ...]] = {}  # nodes of the problem by job
        self._trainers = {job.name: self._trainer(job) for job in jobs}

    def run(self) -> AdaptdlOutcome:
        """Play it to the end.

        Raises:
            BftError: BFT-3054, an answer is not valid; BFT-3072, a size was never measured.
        """
        now_s, decisions, decide_s = 0, 0, 0.0
        while not all(job.is_over for job in self._jobs):
            for job in self._jobs:
                job.advance(now_s, TICK_S)
            now_s += TICK_S
            active = [job for job in self._jobs if job.submitted_s <= now_s and not job.is_over]
            if active:
                began = time.process_time()
                decided = self._ask(active, now_s)
                decide_s += time.process_time() - began
                decisions += 1
                self._carry_out(active, decided)
        return AdaptdlOutcome(jobs=self._jobs, decisions=decisions, decide_s=decide_s)

    def _trainer(self, job: AdaptdlJob) -> ProblemTrainer:
        largest = min(len(GPUS), most_gpus(job.application, job.batch))
        curve = estimated_curve(job.application, job.batch, largest, GPUS_PER_NODE)
        n_min = n_max = job.requested
        if not self._setup.is_rigid:
            n_min, n_max = 1, curve.sizes[-1]
        return ProblemTrainer(
            trainer_id=job.name,
            n_min=n_min,
            n_max=n_max,
            curve=curve,
            rescale_up_s=PAUSE_S,
            rescale_down_s=PAUSE_S,
        )

    def _ask(self, active: Sequence[AdaptdlJob], now_s: int) -> Decided:
        setup = self._setup
        trainers = [
            replace(self._trainers[job.name], current=self._held.get(job.name, ()))
            for job in active
        ]
        problem = Problem(
            nodes=GPUS,
            trainers=tuple(trainers),
            t_fwd_s=setup.t_fwd_s,
            p_jmax=len(active),
            objective=setup.objective,
        )
        context = Context(
            now_s=float(now_s),
            seed=setup.seed,
            options=self._options,
            state=self._state,
            trainers={job.name: _standing(job) for job in active},
        )
        return ask(self._policy, problem, context)

    def _carry_out(self, active: Sequence[AdaptdlJob], decided: Decided) -> None:
        gpus_of: dict[str, list[str]] = {}  # by job
        for gpu, name in decided.allocation.assignment.items():
            gpus_of.setdefault(name, []).append(gpu)
        self._state = decided.state
        self._held = {name: tuple(gpus) for name, gpus in gpus_of.items()}
        sizes = decided.allocation.sizes()
        job_of_name = by_name(active)
        resized = [job for job in active if len(job.nodes) != sizes.get(job.name, 0)]
        for job in resized:
            job.move(())
        for name, why in decided.dropped.items():
            job_of_name[name].dropped = why
        order = [job_of_name[name] for name in in_order(job_of_name, decided.order)]
        if not decided.order:
            order.sort(key=lambda job: sizes.get(job.name, 0))
        free = [GPUS_PER_NODE] * NODES
        for job in active:
            for node in job.nodes:
                free[node] -= 1
        for job in order:
            if job in resized and job.name in sizes:
                job.move(place(sizes[job.name], free))


def _standing(job: AdaptdlJob) -> Standing:
    return Standing(
        submitted_s=float(job.submitted_s),
        attained_node_s=float(job.gpu_s),
        done_samples=round(job.steps_done() * job.batch),
        left_samples=round(job.steps_left() * job.batch),
    )


def place(n_gpus: int, free: list[int]) -> tuple[int, ...]:
    """Take GPUs of the emptiest nodes, the lowest number of equals; ``free`` changes."""
    nodes: list[int] = []
    while len(nodes) < n_gpus:
        node = max(range(len(free)), key=lambda i: (free[i], -i))
        count = min(free[node], n_gpus - len(nodes))
        nodes += [node] * count
        free[node] -= count
    return tuple(nodes)


def play(jobs: Iterable[AdaptdlJob], policy: AllocationPolicy, setup: Setup) -> AdaptdlOutcome:
    """Play a workload with a policy.

    Raises:
        BftError: as ``AdaptdlPlay.run``; OptionError, as ``AdaptdlPlay``.
    """
    return AdaptdlPlay(tuple(jobs), policy, setup).run()
