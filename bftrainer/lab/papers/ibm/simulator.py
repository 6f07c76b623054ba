"""The paper's simulator (section III-E): decisions cost nothing and come with every event.

An event is an arrival or a completion. A job that cannot start is dropped or waits; a completion
tries the first that waits. Sizes come from the dynamic program of the policy ``ibm-dp``.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bftrainer.decide.policies.convolution import Floats, best_sizes
from bftrainer.lab.papers.ibm.jobs import IbmJob


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules by which the cluster is run."""

    gpus: int
    waits: bool = False  # a job that cannot start waits; False: it is dropped
    delta_min: float | None = None  # decisions at multiples of it only; None: at every event
    overtakes: bool = True  # an arrival is tried though others wait, as section III-E says
    passes_over: bool = False  # a waiting job that does not fit is passed over


@dataclass(frozen=True, slots=True, kw_only=True)
class IbmOutcome:
    """The results of the jobs."""

    n_jobs: int
    n_dropped: int
    completion_min: Floats  # of the jobs that ran: completion after arrival
    ends_min: Floats
    optimal_gpu_min: float  # Opt_Sch_Time of section IV-C
    actual_gpu_min: float

    @property
    def sjs(self) -> float:
        """Scheduled job scaling efficiency, %."""
        return 100.0 * self.optimal_gpu_min / self.actual_gpu_min

    @property
    def drop_ratio(self) -> float:
        """Dropped jobs of all, %."""
        return 100.0 * self.n_dropped / self.n_jobs


class Simulation:
    """One run; ``run`` plays all jobs to their end."""

    def __init__(self, jobs: Sequence[IbmJob], rules: Rules) -> None:
        self._jobs, self._rules = jobs, rules
        self._left = np.array([job.minutes for job in jobs], dtype=np.float64)
        self._rate = np.zeros(len(jobs))
        self._size = np.zeros(len(jobs))
        self._gpu_min = np.zeros(len(jobs))
        self._end_min = np.full(len(jobs), np.nan)
        self._coming = deque(range(len(jobs)))
        self._waiting: list[int] = []
        self._running: list[int] = []
        self._least = 0  # GPUs that all who run must have
        self._n_dropped = 0
        self._now_min = 0.0

    def run(self) -> IbmOutcome:
        """Play it."""
        delta_min, has_changed, tick_min = self._rules.delta_min, False, 0.0
        while self._coming or self._running or self._waiting:
            ids = np.array(self._running, dtype=np.int64)
            ends_min = self._now_min + self._left[ids] / self._rate[ids]
            done_min = float(ends_min.min()) if len(ids) else math.inf
            new_min = self._jobs[self._coming[0]].at_min if self._coming else math.inf
            if delta_min and has_changed and tick_min <= min(done_min, new_min):
                self._advance(ids, tick_min)
                self._round()
                has_changed = False
                continue
            self._advance(ids, min(done_min, new_min))
            if done_min <= new_min:
                self._end(self._running[int(ends_min.argmin())])
            else:
                self._arrive(self._coming.popleft())
            if delta_min and not has_changed:
                has_changed, tick_min = True, delta_min * math.ceil(self._now_min / delta_min)
        return self._outcome()

    def _advance(self, ids: np.typing.NDArray[np.int64], to_min: float) -> None:
        span_min = to_min - self._now_min
        self._left[ids] -= span_min * self._rate[ids]
        self._gpu_min[ids] += span_min * self._size[ids]
        self._now_min = to_min

    def _end(self, job: int) -> None:
        self._running.remove(job)
        self._least -= self._jobs[job].sizes.least
        self._end_min[job] = self._now_min
        if self._rules.delta_min is None:
            self._try_waiting()
            self._resize()

    def _arrive(self, job: int) -> None:
        rules = self._rules
        if rules.delta_min is not None:
            self._waiting.append(job)
        elif (rules.overtakes or not self._waiting) and self._start(job):
            self._resize()
        elif rules.waits:
            self._waiting.append(job)
        else:
            self._n_dropped += 1

    def _round(self) -> None:
        """Decide at a multiple of delta."""
        self._try_waiting()
        if not self._rules.waits:
            self._n_dropped += len(self._waiting)
            self._waiting.clear()
        self._resize()

    def _try_waiting(self) -> None:
        passes_over = self._rules.passes_over or not self._rules.waits
        still: list[int] = []
        for job in self._waiting:
            if (still and not passes_over) or not self._start(job):
                still.append(job)
        self._waiting = still

    def _start(self, job: int) -> bool:
        """Let a job run if everybody can have the least size."""
        least = self._jobs[job].sizes.least
        if self._least + least > self._rules.gpus:
            return False
        self._least += least
        self._running.append(job)
        return True

    def _resize(self) -> None:
        sizes = [self._jobs[job].sizes for job in self._running]
        found = best_sizes(
            self._rules.gpus, [one.least for one in sizes], [one.factors for one in sizes]
        )
        for job, one, size in zip(self._running, sizes, found or (), strict=True):
            self._size[job] = size
            self._rate[job] = one.factors[size - one.least]

    def _outcome(self) -> IbmOutcome:
        has_run = ~np.isnan(self._end_min)
        at_min = np.array([job.at_min for job in self._jobs])
        minutes = np.array([job.minutes for job in self._jobs])
        return IbmOutcome(
            n_jobs=len(self._jobs),
            n_dropped=self._n_dropped,
            completion_min=(self._end_min - at_min)[has_run],
            ends_min=np.sort(self._end_min[has_run]),
            optimal_gpu_min=float(minutes[has_run].sum()),
            actual_gpu_min=float(self._gpu_min[has_run].sum()),
        )
