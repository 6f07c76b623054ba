"""The cluster of section 6.2, slot by slot: tasks are handed out anew, then every job trains."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from bftrainer.decide.policies.dl2_network import Array, Mask
from bftrainer.lab.papers.dl2.setting import EPOCH_MIN, MODELS, WITHOUT_GPU, Setting, Speeds

TASKS = ((1, 0), (0, 1), (1, 1))  # workers and servers of an action
CPUS_PER_TASK = 2
MOST_SLOTS = 3000
DAY_SLOTS = 72


@dataclass(slots=True, kw_only=True, eq=False)
class Dl2Job:
    """A job; the scheduler knows ``epochs``, or what is stated of them."""

    number: int
    type: int
    arrives: int  # slot
    epochs: float
    stated: float = 1.0  # epochs that the network is told of, over those it has
    done: float = 0.0
    workers: int = 0
    servers: int = 0
    share: float = 0.0  # dominant share
    ends: float = -1.0  # slots


def draw_trace(setting: Setting, seed: int) -> list[Dl2Job]:
    """Draw jobs: a daily wave from a third of ``arrivals`` to all, log-normal durations."""
    chance = np.random.default_rng(seed)
    jobs: list[Dl2Job] = []
    slot, phase = 0, chance.uniform(0, 2 * math.pi)
    mean = math.log(setting.mean_min) - 0.5  # of the logarithm; sigma is 1
    while len(jobs) < setting.jobs:
        wave = 0.66 + 0.33 * math.sin(phase + 2 * math.pi * slot / DAY_SLOTS)
        for _ in range(int(chance.binomial(setting.arrivals, wave))):
            minutes = float(np.clip(chance.lognormal(mean, 1.0), 15, 1440))
            jobs.append(
                Dl2Job(
                    number=len(jobs),
                    type=int(chance.integers(setting.types)),
                    arrives=slot,
                    epochs=max(5.0, round(minutes / EPOCH_MIN)),
                )
            )
        slot += 1
    return jobs[: setting.jobs]


class Cluster:
    """One trace while it is played."""

    def __init__(
        self, setting: Setting, speeds: Speeds, trace: list[Dl2Job], seed: int = 0
    ) -> None:
        """Begin the first slot."""
        self.setting, self.speeds = setting, speeds
        self.jobs = [replace(job) for job in trace]
        self.now = 0
        self.active: list[Dl2Job] = []
        self._coming = list(self.jobs)
        self._chance = np.random.default_rng((seed, 17))
        if setting.error:
            for job in self.jobs:
                job.stated = 1.0 / (1.0 + setting.error * self._chance.choice((-1.0, 1.0)))
        self.capacity = (setting.nodes * setting.cpus, setting.nodes * setting.gpus)
        self._begin()

    @property
    def has_ended(self) -> bool:
        """Return whether all jobs are complete."""
        return not self.active and not self._coming

    def _begin(self) -> None:
        while self._coming and self._coming[0].arrives <= self.now:
            self.active.append(self._coming.pop(0))
        setting = self.setting
        present = setting.nodes
        if setting.absent:
            present -= int(self._chance.binomial(setting.nodes, setting.absent))
        self._free = [[setting.cpus, setting.gpus] for _ in range(present)]
        self._loads = [(0.0, node) for node in range(present)]  # a heap
        for job in self.active:
            job.workers = job.servers = 0
            job.share = 0.0
        self.seen = self.active[: setting.window]

    def need(self, job: Dl2Job, workers: int, servers: int) -> tuple[int, int]:
        """Return processors and GPUs of so many tasks."""
        if not self.setting.has_servers:
            return 0, workers
        has_gpu = MODELS[job.type] not in WITHOUT_GPU
        return CPUS_PER_TASK * (workers + servers), workers * has_gpu

    def give(self, job: Dl2Job, workers: int, servers: int) -> bool:
        """Place tasks together on the node of least load, the only one tried; whether they fit."""
        if not self._loads:
            return False
        cpus, gpus = self.need(job, workers, servers)
        load, node = self._loads[0]
        free_cpus, free_gpus = self._free[node]
        if free_cpus < cpus or free_gpus < gpus:
            return False
        self._free[node] = [free_cpus - cpus, free_gpus - gpus]
        load += cpus / self.setting.cpus + gpus / self.setting.gpus
        heapq.heapreplace(self._loads, (load, node))
        job.workers += workers
        job.servers += servers
        job_cpus, job_gpus = self.need(job, job.workers, job.servers)
        all_cpus, all_gpus = self.capacity
        job.share = max(job_cpus / all_cpus, job_gpus / all_gpus)
        return True

    def give_first_tasks(self) -> None:
        """Give each job a worker and a server."""
        for job in self.active:
            self.give(job, 1, int(self.setting.has_servers))

    def rate(self, job: Dl2Job, more: tuple[int, int] = (0, 0)) -> float:
        """Return epochs per slot with what a job has, and so much more."""
        more_workers, more_servers = more
        servers = job.servers + more_servers if self.setting.has_servers else 0
        return float(self.speeds[job.type, servers, job.workers + more_workers])

    def end_slot(self) -> float:
        """Let everybody train; return the sum of epochs over their total (eq. 1)."""
        reward = 0.0
        for job in list(self.active):
            epochs = self.rate(job)
            epochs_left = job.epochs - job.done
            if epochs >= epochs_left > 0.0:
                job.ends = self.now + epochs_left / epochs
                self.active.remove(job)
            epochs = min(epochs, epochs_left)
            job.done += epochs
            reward += epochs / job.epochs
        self.now += 1
        self._begin()
        return reward

    def row(self, job: Dl2Job) -> list[float]:
        """Return a job's features (section 4.1), scaled to about 1."""
        setting = self.setting
        kind = [0.0] * setting.types
        kind[job.type] = 1.0
        age = min((self.now - job.arrives) / 20, 3.0)
        epochs_left = max(0.0, job.epochs * job.stated - job.done) / 100
        row = [*kind, age, epochs_left, job.share * 10, job.workers / setting.most]
        if setting.has_servers:
            row.append(job.servers / setting.most)
        return row

    def rows(self) -> Array:
        """Return the rows of the jobs in the window."""
        return np.array(list(map(self.row, self.seen))).reshape(-1, self.setting.features)

    def mask(self) -> Mask:
        """Return which actions keep within a job's most; void always does."""
        fits: list[bool] = []
        for job in self.seen:
            fits += self.allowed(job)
        return np.array([*fits, True])

    def allowed(self, job: Dl2Job) -> list[bool]:
        """Return which of a job's actions keep within its most."""
        may_grow = job.workers < self.setting.most
        if not self.setting.has_servers:
            return [may_grow]
        may_have_server = job.servers < self.setting.most
        return [may_grow, may_have_server, may_grow and may_have_server]

    def mean_completion(self) -> float:
        """Return the mean completion time of all jobs, in slots."""
        return float(np.mean([job.ends - job.arrives for job in self.jobs]))


Rule = Callable[[Cluster], None]  # hands out a slot's tasks


def play(cluster: Cluster, rule: Rule) -> float:
    """Play to the end; return the mean completion time in slots.

    Raises:
        RuntimeError: jobs never end.
    """
    while not cluster.has_ended:
        if cluster.now >= MOST_SLOTS:
            raise RuntimeError(f"{len(cluster.active)} jobs have not ended by slot {cluster.now}")
        rule(cluster)
        cluster.end_slot()
    return cluster.mean_completion()
