"""Three runs of the same jobs → what bftrainer did to each job, beside what chance does.

A and A' are runs without bftrainer, B is the one with it. Pure; called by ``verdict``.

A queue is chaotic: a job that misses a scheduler's tick by a millisecond moves others by
seconds, with or without bftrainer. So nothing is judged by itself: the same figure is
computed with A' in the place of B, and the difference is what may be laid to bftrainer.
B is held against A and against A', A' against A and A against A': each pair of runs in
both directions that do not involve the run in question, so that it does not matter which
of the two happened to be the slow one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from _bench.stats import quantile
from _bench.zero_harm.runs import Run

APART_S = 1.0  # of each other start jobs of one order; less is one tick of the scheduler
LOST_CYCLE = 0.8  # of a bf_interval
SHARES = (0.5, 0.95, 0.99, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Quantiles of differences of start times, s."""

    n: int
    median_s: float
    p95_s: float
    p99_s: float
    max_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Harm:
    """What a run did to ordinary jobs."""

    added: Spread  # B minus A; of the control A' minus A
    pooled: Spread  # against both other runs, see above
    overtaken: tuple[int, ...]  # jobs behind another in this run only, by their numbers
    moved_behind: tuple[int, ...]  # those of them that themselves start later, too
    lost_a_cycle: tuple[int, ...]  # much later than in both other runs
    refused: int  # immediate jobs that found no node
    makespan_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDelay:
    """When one job started in each run, s after the start of the run."""

    number: int
    n_nodes: int
    planned_s: float
    a_s: float
    again_s: float
    b_s: float

    @property
    def beyond_both_s(self) -> float:
        """How much later than in either run without bftrainer."""
        return self.b_s - max(self.a_s, self.again_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """B beside its control."""

    jobs: tuple[JobDelay, ...]
    harm: Harm
    control: Harm

    @property
    def n_jobs(self) -> int:
        """How many jobs started in all three runs."""
        return len(self.jobs)

    @property
    def p95_beyond_s(self) -> float:
        """How much of the 95th percentile the control does not show."""
        return self.harm.pooled.p95_s - self.control.pooled.p95_s

    @property
    def p99_beyond_s(self) -> float:
        """How much of the 99th percentile the control does not show."""
        return self.harm.pooled.p99_s - self.control.pooled.p99_s

    @property
    def moved_behind_beyond(self) -> int:
        """Jobs moved behind others, less those chance moves."""
        return len(self.harm.moved_behind) - len(self.control.moved_behind)

    @property
    def lost_cycle_share(self) -> float:
        """Share of jobs that lost a cycle, less that of the control."""
        lost = len(self.harm.lost_a_cycle) - len(self.control.lost_a_cycle)
        return lost / max(1, self.n_jobs)


def compare(a: Run, again: Run, b: Run) -> Comparison:
    """Compare three runs of one workload."""
    starts = [_starts(run) for run in (a, again, b)]
    numbers = sorted(set(starts[0]) & set(starts[1]) & set(starts[2]))
    if not numbers:
        raise ValueError("no job started in all three runs")
    of_a, of_again, of_b = ([s[n] for n in numbers] for s in starts)
    interval_s = b.bf_interval_s
    # Whichever of A and A' stands out more: chance has no favourite.
    chance = [(of_again, of_a, of_b), (of_a, of_again, of_b)]
    return Comparison(
        jobs=tuple(
            JobDelay(
                number=job.number,
                n_nodes=job.n_nodes,
                planned_s=job.planned_s,
                a_s=starts[0][job.number],
                again_s=starts[1][job.number],
                b_s=starts[2][job.number],
            )
            for job in b.jobs
            if job.number in set(numbers)
        ),
        harm=Harm(
            added=spread(minus(of_b, of_a)),
            pooled=spread(minus(of_b, of_a) + minus(of_b, of_again)),
            overtaken=odd_order(numbers, of_b, of_a, of_again),
            moved_behind=moved_behind(numbers, of_b, of_a, of_again),
            lost_a_cycle=late(numbers, of_b, of_a, of_again, LOST_CYCLE * interval_s),
            refused=_refused(b),
            makespan_s=b.makespan_s,
        ),
        control=Harm(
            added=spread(minus(of_again, of_a)),
            pooled=spread(minus(of_again, of_a) + minus(of_a, of_again)),
            overtaken=max((odd_order(numbers, *runs) for runs in chance), key=len),
            moved_behind=max((moved_behind(numbers, *runs) for runs in chance), key=len),
            lost_a_cycle=max(
                (late(numbers, *runs, LOST_CYCLE * interval_s) for runs in chance), key=len
            ),
            refused=max(_refused(a), _refused(again)),
            makespan_s=again.makespan_s,
        ),
    )


def spread(values_s: Sequence[float]) -> Spread:
    """Summarise differences."""
    median_s, p95_s, p99_s, max_s = (quantile(values_s, q) for q in SHARES)
    return Spread(n=len(values_s), median_s=median_s, p95_s=p95_s, p99_s=p99_s, max_s=max_s)


def start_differences(run: Run, reference: Run) -> list[float]:
    """How much later each job of one run starts that started in both."""
    starts, reference_s = _starts(run), _starts(reference)
    return [starts[n] - reference_s[n] for n in sorted(starts.keys() & reference_s.keys())]


def minus(left_s: Sequence[float], right_s: Sequence[float]) -> list[float]:
    """Subtract job by job."""
    return [x - y for x, y in zip(left_s, right_s, strict=True)]


def odd_order(
    numbers: Sequence[int],
    odd_s: Sequence[float],
    one_s: Sequence[float],
    other_s: Sequence[float],
) -> tuple[int, ...]:
    """Return the jobs that start behind another in one run, before it in the two others.

    Starts less than ``APART_S`` apart have no order: one pass starts several jobs.
    """
    found = []
    for i, number in enumerate(numbers):
        for j in range(len(numbers)):
            if (
                odd_s[i] > odd_s[j] + APART_S
                and one_s[i] < one_s[j] - APART_S
                and other_s[i] < other_s[j] - APART_S
            ):
                found.append(number)
                break
    return tuple(found)


def moved_behind(
    numbers: Sequence[int],
    odd_s: Sequence[float],
    one_s: Sequence[float],
    other_s: Sequence[float],
) -> tuple[int, ...]:
    """Return the overtaken jobs that start later themselves.

    Who starts when it ever did, while somebody else starts sooner, has lost nothing.
    """
    overtaken = set(odd_order(numbers, odd_s, one_s, other_s))
    return tuple(n for n in late(numbers, odd_s, one_s, other_s, APART_S) if n in overtaken)


def late(
    numbers: Sequence[int],
    odd_s: Sequence[float],
    one_s: Sequence[float],
    other_s: Sequence[float],
    by_s: float,
) -> tuple[int, ...]:
    """Return the jobs that start in one run this much later than in both others."""
    return tuple(
        number
        for number, x, y, z in zip(numbers, odd_s, one_s, other_s, strict=True)
        if x - max(y, z) >= by_s
    )


def _starts(run: Run) -> dict[int, float]:
    return {j.number: j.started_s for j in run.jobs if j.started_s is not None}


def _refused(run: Run) -> int:
    return sum(1 for j in run.jobs if j.refused)
