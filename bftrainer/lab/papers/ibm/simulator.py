"""The paper's simulator (section III-E): decisions cost nothing and come with every event.

An event is an arrival or a completion. A job that cannot start is dropped or waits; a completion
tries the first that waits. Sizes come from the dynamic program of the policy ``ibm-dp``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from bftrainer.decide.policies.convolution import Floats, best_sizes
from bftrainer.lab.kernel import Kernel
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
        self._minutes = np.array([job.minutes for job in jobs], dtype=np.float64)
        self._left = self._minutes.copy()
        self._rate, self._size, self._gpu_min = np.zeros((3, len(jobs)))
        self._end_min = np.full(len(jobs), np.nan)
        self._waiting: list[int] = []
        self._running: list[int] = []
        self._first = 0  # of those who run, the next to end
        self._least = 0  # GPUs that all who run must have
        self._n_dropped = 0
        self._has_round = False  # one is coming
        # At one time a round is first, then a completion, then an arrival.
        self._kernel = Kernel(advance=self._advance)
        self._kernel.source(self._next_end_min, self._end)
        for index, job in enumerate(jobs):
            self._kernel.at(job.at_min, partial(self._arrive, index), rank=1)

    def run(self) -> IbmOutcome:
        """Play it."""
        self._kernel.run()
        has_run = ~np.isnan(self._end_min)
        at_min = np.array([job.at_min for job in self._jobs])
        return IbmOutcome(
            n_jobs=len(self._jobs),
            n_dropped=self._n_dropped,
            completion_min=(self._end_min - at_min)[has_run],
            ends_min=np.sort(self._end_min[has_run]),
            optimal_gpu_min=float(self._minutes[has_run].sum()),
            actual_gpu_min=float(self._gpu_min[has_run].sum()),
        )

    def _next_end_min(self) -> float:
        """Return when the first running job ends at today's rates."""
        if not self._running:
            return math.inf
        ends_min = self._kernel.now + self._left[self._running] / self._rate[self._running]
        self._first = int(ends_min.argmin())
        return float(ends_min[self._first])

    def _advance(self, to_min: float) -> None:
        span_min, ids = to_min - self._kernel.now, self._running
        self._left[ids] -= span_min * self._rate[ids]
        self._gpu_min[ids] += span_min * self._size[ids]

    def _end(self) -> None:
        job = self._running.pop(self._first)
        self._least -= self._jobs[job].sizes.least
        self._end_min[job] = self._kernel.now
        if self._rules.delta_min is None:
            self._try_waiting()
            self._resize()
        self._want_round()

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
        self._want_round()

    def _want_round(self) -> None:
        """Have a decision at the next multiple of delta."""
        delta_min = self._rules.delta_min
        if delta_min and not self._has_round:
            self._has_round = True
            now = self._kernel.now
            self._kernel.at(delta_min * math.ceil(now / delta_min), self._round, rank=-1)

    def _round(self) -> None:
        self._has_round = False
        self._try_waiting()
        if not self._rules.waits:
            self._n_dropped += len(self._waiting)
            self._waiting.clear()
        self._resize()

    def _try_waiting(self) -> None:
        passes_over = self._rules.passes_over or not self._rules.waits
        queue: list[int] = []  # of those who go on waiting
        for job in self._waiting:
            if (queue and not passes_over) or not self._start(job):
                queue.append(job)
        self._waiting = queue

    def _start(self, job: int) -> bool:
        """Let a job run if everybody can have the least size."""
        least_gpus = self._jobs[job].sizes.least
        if self._least + least_gpus > self._rules.gpus:
            return False
        self._least += least_gpus
        self._running.append(job)
        return True

    def _resize(self) -> None:
        all_sizes = [self._jobs[job].sizes for job in self._running]
        best = best_sizes(
            self._rules.gpus,
            [sizes.least for sizes in all_sizes],
            [sizes.factors for sizes in all_sizes],
        )
        for job, sizes, size in zip(self._running, all_sizes, best or (), strict=True):
            self._size[job] = size
            self._rate[job] = sizes.factors[size - sizes.least]
