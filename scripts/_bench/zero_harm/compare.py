"""Runs of the same jobs → what bftrainer did to each job, beside what chance does.

Runs without bftrainer (the controls: A, A', and more whose jobs come a moment sooner or
later) and runs with it (B) come in. Pure; called by ``verdict``.

A queue is chaotic: a job that misses a scheduler's tick by a millisecond moves others by
seconds, with or without bftrainer. So nothing is judged by itself. Every figure is
computed for each run with bftrainer against the controls, and for each control against
the other controls; were bftrainer without effect, both would be drawn from one
distribution. The difference is what may be laid to bftrainer. Runs of one draw of jobs
have much in common, so there may be several draws: each run is held
against the controls of its own, and all differences are taken together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from _bench.stats import quantile
from _bench.zero_harm.chance import Chance, by_chance
from _bench.zero_harm.runs import Run

APART_S = 1.0  # of each other start jobs of one order; less is one tick of the scheduler
LOST_CYCLE = 0.8  # of a bf_interval
GOING_S = 1.0  # a node given back is free a moment later
SHARES = (0.5, 0.95, 0.99, 1.0)
Starts = Sequence[float]  # of the jobs of a run that started in all, s, in one order


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
    """What runs of one kind did to ordinary jobs, beside the controls."""

    added: Spread  # the first of them minus A; of the controls A' minus A
    pooled: Spread  # each of them minus every other control
    p95_s: tuple[float, ...]  # the same for each run by itself
    overtaken: tuple[float, ...]  # jobs behind another, by run, see ``overtaken``
    moved_behind: tuple[float, ...]  # those of them that start later, too
    lost_a_cycle: tuple[float, ...]  # much later than in any control
    refused: tuple[int, ...]  # immediate jobs that found no node
    refused_beside: tuple[int, ...]  # those of them that came while bftrainer held nodes
    makespan_s: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """All runs of the same jobs."""

    controls: Sequence[Run]  # A and A' first
    runs: Sequence[Run]  # with bftrainer


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDelay:
    """When one job started, s after the start of the run."""

    draw: int
    number: int
    n_nodes: int
    planned_s: float
    without_s: tuple[float, ...]  # in each control, A first
    with_s: tuple[float, ...]

    @property
    def beyond_s(self) -> float:
        """How much later than ever without bftrainer, in every run with it."""
        return min(self.with_s) - max(self.without_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Runs with bftrainer beside their controls."""

    jobs: tuple[JobDelay, ...]
    harm: Harm
    control: Harm
    chance: Chance
    n_draws: int = 1

    @property
    def n_jobs(self) -> int:
        """How many jobs started in all runs of their draw."""
        return len(self.jobs)

    @property
    def p95_beyond_s(self) -> float:
        """How much of the 95th percentile the controls do not show."""
        return self.harm.pooled.p95_s - self.control.pooled.p95_s

    @property
    def p99_beyond_s(self) -> float:
        """How much of the 99th percentile the controls do not show."""
        return self.harm.pooled.p99_s - self.control.pooled.p99_s

    @property
    def moved_behind_beyond(self) -> float:
        """Jobs moved behind others in a mean run, less those of the worst control of a draw."""
        return fmean(self.harm.moved_behind) - self._worst(self.control.moved_behind)

    @property
    def refused_beyond(self) -> float:
        """Immediate jobs refused in a mean run, less those of the worst control of a draw."""
        return fmean(self.harm.refused) - self._worst(self.control.refused)

    def _worst(self, by_control: Sequence[float]) -> float:
        n = len(by_control) // self.n_draws
        return fmean(max(by_control[at : at + n]) for at in range(0, len(by_control), n))

    @property
    def lost_cycle_share(self) -> float:
        """Share of jobs that lost a cycle, less that of a mean control."""
        lost = fmean(self.harm.lost_a_cycle) - fmean(self.control.lost_a_cycle)
        return lost / max(1, self.n_jobs)


def compare(draws: Sequence[Draw]) -> Comparison:
    """Compare runs with bftrainer with those without; as many controls in each draw."""
    n_controls = len(draws[0].controls)
    if any(len(d.controls) != n_controls or n_controls < 2 or not d.runs for d in draws):
        raise ValueError("two controls and a run with bftrainer are the least, in each draw alike")
    found = [_Columns.of(number, draw) for number, draw in enumerate(draws)]
    lost_s = LOST_CYCLE * draws[0].controls[0].bf_interval_s
    return Comparison(
        jobs=tuple(job for columns in found for job in columns.jobs),
        harm=_harm(
            [run for draw in draws for run in draw.runs],
            [(own, c.without) for c in found for own in c.having],
            lost_s,
            [d for c in found for d in minus(c.having[0], c.without[0])],
            n_controls,
        ),
        control=_harm(
            [run for draw in draws for run in draw.controls],
            [
                (own, [*c.without[:at], *c.without[at + 1 :]])
                for c in found
                for at, own in enumerate(c.without)
            ],
            lost_s,
            [d for c in found for d in minus(c.without[1], c.without[0])],
            n_controls,
        ),
        chance=by_chance([([*c.without, *c.having], len(c.having)) for c in found]),
        n_draws=len(draws),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Columns:
    """When the jobs of one draw that started in all of its runs did, run by run."""

    without: list[Starts]
    having: list[Starts]
    jobs: list[JobDelay]

    @classmethod
    def of(cls, number: int, draw: Draw) -> _Columns:
        by_run = [starts(run) for run in (*draw.controls, *draw.runs)]
        numbers = sorted(set.intersection(*(set(found) for found in by_run)))
        if not numbers:
            raise ValueError("no job started in all runs")
        columns: list[Starts] = [[found[n] for n in numbers] for found in by_run]
        without, having = columns[: len(draw.controls)], columns[len(draw.controls) :]
        planned = {job.number: job for job in draw.controls[0].jobs}
        jobs = [
            JobDelay(
                draw=number,
                number=n,
                n_nodes=planned[n].n_nodes,
                planned_s=planned[n].planned_s,
                without_s=tuple(column[at] for column in without),
                with_s=tuple(column[at] for column in having),
            )
            for at, n in enumerate(numbers)
        ]
        return cls(without=without, having=having, jobs=jobs)


def _harm(
    runs: Sequence[Run],
    pairs: Sequence[tuple[Starts, Sequence[Starts]]],
    lost_s: float,
    added_s: Sequence[float],
    n_controls: int,
) -> Harm:
    """Sum up runs; each comes with the controls it is held against."""
    differences = [[d for other in others for d in minus(own, other)] for own, others in pairs]
    return Harm(
        added=spread(added_s),
        pooled=spread([d for found in differences for d in found]),
        p95_s=tuple(quantile(found, 0.95) for found in differences),
        overtaken=_counts(overtaken, pairs, n_controls),
        moved_behind=_counts(moved_behind, pairs, n_controls),
        lost_a_cycle=_counts(lambda own, others: late(own, others, lost_s), pairs, n_controls),
        refused=tuple(sum(1 for j in run.jobs if j.refused) for run in runs),
        refused_beside=tuple(refused_beside(run) for run in runs),
        makespan_s=tuple(run.makespan_s for run in runs),
    )


def refused_beside(run: Run) -> int:
    """Count immediate jobs that found no node while bftrainer held one, or just had.

    In all other cases ordinary jobs had every node, and so it could not have been otherwise.
    """
    held = run.sidecar.held if run.sidecar else ()
    moments = [j.submitted_s for j in run.jobs if j.refused and j.submitted_s is not None]
    return sum(
        any(span.start_s <= at_s < span.end_s + GOING_S for span in held) for at_s in moments
    )


def _counts(
    count: Callable[[Starts, Sequence[Starts]], Iterable[int]],
    pairs: Sequence[tuple[Starts, Sequence[Starts]]],
    n_controls: int,
) -> tuple[float, ...]:
    """Count by run; always against as many controls, else more of them excuse more.

    A control has only the others to be held against. Where there are all, each is left
    out in turn, and the mean is taken.
    """
    found = []
    for own, others in pairs:
        chosen = [others]
        if len(others) == n_controls:
            chosen = [[*others[:at], *others[at + 1 :]] for at in range(len(others))]
        found.append(fmean(len(tuple(count(own, some))) for some in chosen))
    return tuple(found)


def spread(values_s: Sequence[float]) -> Spread:
    """Summarise differences."""
    median_s, p95_s, p99_s, max_s = (quantile(values_s, q) for q in SHARES)
    return Spread(n=len(values_s), median_s=median_s, p95_s=p95_s, p99_s=p99_s, max_s=max_s)


def starts(run: Run) -> dict[int, float]:
    """When each job of a run started."""
    return {j.number: j.started_s for j in run.jobs if j.started_s is not None}


def minus(left_s: Starts, right_s: Starts) -> list[float]:
    """Subtract job by job."""
    return [x - y for x, y in zip(left_s, right_s, strict=True)]


def overtaken(own_s: Starts, others_s: Sequence[Starts]) -> tuple[int, ...]:
    """Return the places of jobs that start behind another, and before it in all other runs.

    Starts less than ``APART_S`` apart have no order: one pass starts several jobs.
    """
    found = []
    for i, start_s in enumerate(own_s):
        for j, other_start_s in enumerate(own_s):
            if start_s > other_start_s + APART_S and all(
                other[i] < other[j] - APART_S for other in others_s
            ):
                found.append(i)
                break
    return tuple(found)


def moved_behind(own_s: Starts, others_s: Sequence[Starts]) -> tuple[int, ...]:
    """Return the overtaken jobs that start later themselves.

    Who starts when it ever did, while somebody else starts sooner, has lost nothing.
    """
    behind = set(overtaken(own_s, others_s))
    return tuple(at for at in late(own_s, others_s, APART_S) if at in behind)


def late(own_s: Starts, others_s: Sequence[Starts], by_s: float) -> tuple[int, ...]:
    """Return the places of jobs that start this much later than in all other runs."""
    return tuple(
        at
        for at, start_s in enumerate(own_s)
        if start_s - max(other[at] for other in others_s) >= by_s
    )
