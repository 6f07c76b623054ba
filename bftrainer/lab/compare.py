"""Policies side by side: the same workloads with each of them, with confidence intervals.

An ``Arena`` plays one policy with one seed: idle nodes of a trace, AdaptDL's cluster, a whole site.
``play_all`` plays all pairs in several processes. An interval is Student's, over seeds. Policies
are compared in pairs, seed by seed: what is common to a seed (how much was idle, which trainers
came first) is not noise then.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np

from bftrainer.batch.traces import Fragments
from bftrainer.batch.traces.generator import GeneratorParameters, generate
from bftrainer.decide.policies.base import load_policy
from bftrainer.lab import html
from bftrainer.lab.adaptdl import Application, Setup, read_applications, read_jobs
from bftrainer.lab.adaptdl import play as play_cluster
from bftrainer.lab.parallel import play_each
from bftrainer.lab.report_page import Picture, ReportPage, Section
from bftrainer.lab.simulator.metrics import (
    WHICH_FIGURE,
    jain,
    makespan_s,
    reference_node_h,
    static_samples,
)
from bftrainer.lab.simulator.session import Choices, of_size, play
from bftrainer.lab.simulator.trainers import SimTrainer
from bftrainer.lab.site.workload import Cell
from bftrainer.lab.site.workload_play import play as play_site
from bftrainer.lab.workloads import Submission, TrainerWorkload
from bftrainer.model.columns import TextTable
from bftrainer.model.lookups import by_name
from bftrainer.study.plots import matplotlib, new_canvas

MINUTE_S = 60
HOUR_S = 3600.0
SCHEMA = "bftrainer/compare/1"
# Spot instances: a small pool whose nodes come and go within minutes.
POOL = GeneratorParameters(
    n_nodes=64, machine_nodes=64, hours=12.0, holes_per_hour=200.0, length_scale_s=300.0
)
WORKLOADS = 8  # of the dedicated cluster, as published; a seed chooses one
LOAD = 0.8  # of a site's ordinary jobs, of all nodes
WORK = 0.05  # of each trainer's samples on a site, so that they end within hours
HEADERS = (
    "POLICY", ">U", ">WORK node-h", ">WORK AGAINST", ">SAMPLES, 1e6",
    ">JCT MEAN h", ">P95 h", ">JCT AGAINST", ">MAKESPAN h", ">NODE-h",
    ">FAIRNESS", ">RESCALES", ">DECISION ms", ">ENDED", ">JOB WAIT",
)  # fmt: skip
FIGURES = (  # field of Score, unit, axis
    ("reference_node_h", 1.0, "work, reference node-h"),
    ("utilization", 1.0, "U"),
    ("jct_mean_s", HOUR_S, "mean JCT, h"),
    ("rescales", 1.0, "rescales"),
)
# 97.5% quantiles of Student's distribution, by degrees of freedom from 1 on.
_STUDENT = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
_NORMAL = 1.96  # the same beyond the table
Completion = tuple[float | None, float | None, float | None]
Key = tuple[str, str, int]  # arena, policy, seed


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The figures of one play; None: there was nothing to average."""

    # Submission to end. Who has not ended by the end of the play counts until then, so that a
    # policy gains nothing by ending short trainers alone.
    jct_mean_s: float | None
    jct_p95_s: float | None
    makespan_s: float | None  # begin to the last end; None: not all ended
    utilization: float | None  # U; None: the arena has no reference
    # Work done in node-hours at a fixed reference (bftrainer.lab.simulator.metrics), and samples:
    # whichever trainers ran. None: the arena counts neither.
    reference_node_h: float | None = None
    samples: float | None = None
    node_h: float  # node-hours that trainers had (of GPUs, where a node is one)
    fairness: float | None  # Jain's index
    rescales: int
    decision_ms: float  # mean
    completed: int
    submitted: int
    job_wait_s: float | None = None  # mean of ordinary jobs; None: the arena has none
    job_wait_added: float | None = None  # of it, because of the trainers


@dataclass(frozen=True, slots=True, kw_only=True)
class Arena:
    """A workload on a machine, drawn anew for each seed. Pickled."""

    name: str  # by which users choose it
    about: str  # a description of what is played, one sentence

    def play(self, policy: str, seed: int) -> Score:
        """Play a policy; the same seed gives all policies the same.

        Raises:
            UsageError: BFT-3050, there is no such policy; BFT-3070 to 3072, data are missing.
        """
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleNodes(Arena):
    """A trace and a workload; a seed chooses nodes, start and order of submission."""

    trace: Fragments | None  # None: generated anew for each seed (POOL)
    workload: TrainerWorkload
    choices: Choices
    n_trainers: int | None = None  # the first of each order; None: all
    n_nodes: int = 256  # of the trace, at most
    hours: float = 24.0  # at most

    def play(self, policy: str, seed: int) -> Score:
        """Replay a part of the trace."""
        draws = random.Random(seed)  # noqa: S311 - a simulation
        trace = self._part(draws, seed)
        submissions = shuffled(self.workload, draws)[: self.n_trainers]
        outcome, metrics = play(trace, submissions, replace(self.choices, policy=policy, seed=seed))
        begin_s, end_s = trace.span_s
        mean_s, p95_s, last_s = completions(outcome.trainers, begin_s, end_s)
        return Score(
            jct_mean_s=mean_s,
            jct_p95_s=p95_s,
            makespan_s=last_s,
            utilization=metrics.utilization,
            reference_node_h=metrics.reference_node_h,
            samples=metrics.a_e,
            node_h=outcome.tally.node_s_used / HOUR_S,
            fairness=metrics.jain_index,
            rescales=metrics.rescales,
            decision_ms=metrics.decision_ms_mean,
            completed=metrics.completed,
            submitted=metrics.submitted,
        )

    def _part(self, draws: random.Random, seed: int) -> Fragments:
        if self.trace is None:
            return generate(replace(POOL, seed=seed, hours=min(self.hours, POOL.hours)))
        n_nodes = min(self.n_nodes, len(self.trace.names))
        first = draws.randrange(len(self.trace.names) - n_nodes + 1)
        begin_s, end_s = self.trace.span_s
        hours = min(self.hours, (end_s - begin_s) / HOUR_S)
        spare_s = int(end_s - begin_s - hours * HOUR_S)
        start_s = begin_s + draws.randrange(0, spare_s + 1, MINUTE_S)
        return self.trace.restrict(slice(first, first + n_nodes), start_s=start_s, hours=hours)


def completions(trainers: Sequence[SimTrainer], begin_s: float, end_s: float) -> Completion:
    """Return mean and 95th percentile of completion times, and the makespan, of those that came."""
    times_s = [
        (t.finished_s or end_s) - t.record.submitted_s
        for t in trainers
        if t.record.submitted_s < end_s
    ]
    return completion(times_s, makespan_s(trainers, begin_s, end_s))


def completion(times_s: Sequence[float], last_s: float | None) -> Completion:
    """Return the same of given times; ``last_s``: the makespan, None unless all jobs have ended."""
    if not times_s:
        return None, None, None
    return float(np.mean(times_s)), float(np.quantile(times_s, 0.95)), last_s


def shuffled(workload: TrainerWorkload, draws: random.Random) -> list[Submission]:
    """Return the same trainers in another order, at the same times of submission."""
    trainers = list(workload)
    times_s = [trainer.submit_s for trainer in trainers]
    draws.shuffle(trainers)
    return [replace(t, submit_s=at_s) for t, at_s in zip(trainers, times_s, strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dedicated(Arena):
    """160 jobs on 16 nodes of 4 GPUs."""

    folder: Path  # of AdaptDL's data

    def play(self, policy: str, seed: int) -> Score:
        """Play a workload to its end."""
        number = (seed - 1) % WORKLOADS + 1
        jobs = read_jobs(
            self.folder / "workloads" / f"workload-{number}.csv", _applications(self.folder)
        )
        rule = load_policy(policy)
        outcome = play_cluster(jobs, rule, Setup(is_rigid=rule.traits.is_rigid, seed=seed))
        times_s = list(outcome.completion_s().values())
        all_s: float | None = None
        if len(times_s) == len(jobs):
            ends_s = [job.ended_s for job in outcome.jobs if job.ended_s is not None]
            all_s = float(max(ends_s, default=0) - min(job.submitted_s for job in jobs))
        mean_s, p95_s, last_s = completion(times_s, all_s)
        return Score(
            jct_mean_s=mean_s,
            jct_p95_s=p95_s,
            makespan_s=last_s,
            utilization=None,
            node_h=sum(job.gpu_s for job in outcome.jobs) / HOUR_S,
            fairness=None,
            rescales=sum(job.restarts for job in outcome.jobs),
            decision_ms=1e3 * outcome.decide_s / max(1, outcome.decisions),
            completed=len(times_s),
            submitted=len(jobs),
        )


@cache
def _applications(folder: Path) -> dict[str, Application]:
    return read_applications(folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class Site(Arena):
    """A machine with ordinary jobs; a seed chooses these and the order of the trainers."""

    workload: TrainerWorkload
    n_trainers: int
    p_jmax: int
    n_nodes: int
    hours: float

    def play(self, policy: str, seed: int) -> Score:
        """Play a site."""
        cell = Cell(
            bf_interval_s=30.0,
            bf_duration_s=0.5,
            n_nodes=self.n_nodes,
            hours=self.hours,
            warm_s=HOUR_S,
            load=LOAD,
        )
        run = play_site(cell.stage(seed), self._submitted(policy, seed), policy, self.p_jmax)
        span_s = run.end_s - run.begin_s
        trainers = run.trainers
        mean_s, p95_s, last_s = completions(trainers, run.begin_s, run.end_s)
        n_samples = sum(t.processed for t in trainers)
        static = static_samples(trainers, run.harvest.idle_s / span_s, self.p_jmax, span_s)
        without_s = beside_s = 0.0
        for before_s, after_s in run.arm.blocks:
            without_s += before_s
            beside_s += after_s
        return Score(
            jct_mean_s=mean_s,
            jct_p95_s=p95_s,
            makespan_s=last_s,
            utilization=n_samples / static if static else 0.0,
            reference_node_h=reference_node_h((t.submission.curve, t.processed) for t in trainers),
            samples=n_samples,
            node_h=run.node_s / HOUR_S,
            fairness=jain(trainers, run.end_s),
            rescales=sum(t.rescales for t in trainers),
            decision_ms=1e3 * run.harvest.decide_s / max(1, run.harvest.decisions),
            completed=sum(t.finished_s is not None for t in trainers),
            submitted=len(trainers),
            job_wait_s=run.arm.wait_s,
            job_wait_added=beside_s / without_s - 1.0 if without_s else None,
        )

    def _submitted(self, policy: str, seed: int) -> list[Submission]:
        """Return the trainers; for a rigid policy each has one size, as in a replay."""
        draws = random.Random(seed)  # noqa: S311 - a simulation
        submissions = [
            replace(submission, samples=submission.samples * WORK)
            for submission in shuffled(self.workload, draws)[: self.n_trainers]
        ]
        if not load_policy(policy).traits.is_rigid:
            return submissions
        nodes = max(1, round((1.0 - LOAD) * self.n_nodes / self.p_jmax))
        return [of_size(submission, nodes) for submission in submissions]


def play_all(
    arenas: Sequence[Arena],
    policies: Sequence[str],
    seeds: Sequence[int],
    *,
    processes: int,
    on_progress: Callable[[float], None] = lambda _: None,
) -> dict[Key, Score]:
    """Return all scores."""
    arena_of = by_name(arenas)
    tasks = [(name, policy, seed) for name, seed, policy in product(arena_of, seeds, policies)]
    return play_each(partial(_play, arena_of), tasks, processes=processes, on_progress=on_progress)


def _play(arenas: dict[str, Arena], key: Key) -> Score:
    name, policy, seed = key
    return arenas[name].play(policy, seed)


Plays = Mapping[Key, Score]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A mean over seeds and half the width of its 95% confidence interval."""

    mean: float
    half: float | None  # None: one seed
    count: int

    def shown(self, digits: int, *, scale: float = 1.0, sign: str = "") -> str:
        """Return it as text, times ``scale``."""
        text = f"{scale * self.mean:{sign}.{digits}f}"
        if self.half is not None:
            text += f" ±{scale * self.half:.{digits}f}"
        return text


def interval(values: Sequence[float | None]) -> Interval | None:
    """Return the interval of a mean; None if a value is missing."""
    numbers = [value for value in values if value is not None]
    if not numbers or len(numbers) < len(values):
        return None
    half = None
    if len(numbers) > 1:
        freedom = len(numbers) - 1
        quantile = _NORMAL
        if freedom <= len(_STUDENT):
            quantile = _STUDENT[freedom - 1]
        half = quantile * stdev(numbers) / math.sqrt(len(numbers))
    return Interval(mean=mean(numbers), half=half, count=len(numbers))


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A policy in an arena."""

    policy: str
    jct_against: Interval | None  # JCT relative to the first policy's minus 1, in pairs
    work_against: Interval | None  # the same of the work at the fixed reference
    figures: Mapping[str, Interval | None]  # of each field of Score


def rows_of(plays: Plays, arena: str, policies: Sequence[str], seeds: Sequence[int]) -> list[Row]:
    """Return a row for each policy, in their order; the first one is what others are held to."""

    def scores(policy: str) -> list[Score]:
        return [plays[arena, policy, seed] for seed in seeds]

    def against(of_policy: Sequence[Score], figure: str) -> Interval | None:
        ratios: list[float | None] = []
        for score, first in zip(of_policy, scores(policies[0]), strict=True):
            value, reference = getattr(score, figure), getattr(first, figure)
            ratio = None
            if value is not None and reference:
                ratio = value / reference - 1.0
            ratios.append(ratio)
        return interval(ratios)

    rows = []
    for policy in policies:
        policy_scores = scores(policy)
        row = Row(policy=policy, jct_against=None, work_against=None, figures=means(policy_scores))
        if policy != policies[0]:
            row = replace(
                row,
                jct_against=against(policy_scores, "jct_mean_s"),
                work_against=against(policy_scores, "reference_node_h"),
            )
        rows.append(row)
    return rows


def means(scores: Sequence[Score]) -> dict[str, Interval | None]:
    """Return the mean of each field of some scores."""
    intervals = {}
    for field in fields(Score):
        intervals[field.name] = interval([getattr(score, field.name) for score in scores])
    return intervals


def cells(row: Row) -> tuple[str, ...]:
    """Return a row of the table, under ``HEADERS``."""

    def shown(name: str, digits: int, unit: float = 1.0) -> str:
        figure = row.figures[name]
        return "-" if figure is None else figure.shown(digits, scale=1.0 / unit)

    def held_to_first(share: Interval | None) -> str:
        if share is None:
            return "-"
        return f"{share.shown(1, scale=100.0, sign='+')}%"

    completed, submitted = row.figures["completed"], row.figures["submitted"]
    of_all = job_wait = "-"
    if completed and submitted:
        of_all = f"{completed.mean:.0f} of {submitted.mean:.0f}"
    wait, difference = row.figures["job_wait_s"], row.figures["job_wait_added"]
    if wait and difference:
        job_wait = f"{wait.mean:.0f} s, {difference.shown(2, scale=100.0, sign='+')}%"
    return (
        row.policy,
        shown("utilization", 3),
        shown("reference_node_h", 1),
        held_to_first(row.work_against),
        shown("samples", 1, 1e6),
        shown("jct_mean_s", 2, HOUR_S),
        shown("jct_p95_s", 2, HOUR_S),
        held_to_first(row.jct_against),
        shown("makespan_s", 1, HOUR_S),
        shown("node_h", 0),
        shown("fairness", 3),
        shown("rescales", 0),
        shown("decision_ms", 2),
        of_all,
        job_wait,
    )


def document(
    plays: Plays, arenas: Sequence[Arena], policies: Sequence[str], seeds: Sequence[int]
) -> dict[str, Any]:
    """Return all figures, and the scores that they are of."""
    arena_documents = []
    for arena in arenas:
        rows = []
        for row in rows_of(plays, arena.name, policies, seeds):
            scores = [asdict(plays[arena.name, row.policy, seed]) for seed in seeds]
            rows.append({**asdict(row), "scores": scores})
        arena_documents.append({"name": arena.name, "about": arena.about, "rows": rows})
    return {
        "schema": SCHEMA,
        "policies": list(policies),
        "seeds": list(seeds),
        "arenas": arena_documents,
    }


def check_pictures() -> None:
    """Check before the plays that pictures can be drawn.

    Raises:
        TraceError: BFT-4004, matplotlib is not installed.
    """
    matplotlib("figure", html.OTHERWISE)


def write_page(
    path: Path,
    plays: Plays,
    arenas: Sequence[Arena],
    policies: Sequence[str],
    seeds: Sequence[int],
    command: str,
) -> None:
    """Write the page.

    Raises:
        TraceError: BFT-4002, no file can be there.
    """
    page = report_of(plays, arenas, policies, seeds, are_drawn=True, command=command)
    html.write_page(path, page)


def report_of(
    plays: Plays,
    arenas: Sequence[Arena],
    policies: Sequence[str],
    seeds: Sequence[int],
    *,
    are_drawn: bool = False,
    command: str = "",
) -> ReportPage:
    """Return the report, as a page and a terminal show it.

    Args:
        plays: all scores.
        arenas: in which was played.
        policies: the others are held to the first.
        seeds: of the plays.
        are_drawn: whether it has pictures, which need matplotlib.
        command: repeats what is shown.
    """
    answers, sections = [], []
    for arena in arenas:
        rows = rows_of(plays, arena.name, policies, seeds)
        answers.append(answer(arena, rows))
        section = Section(
            title=f"Arena {arena.name}",
            text=(arena.about,),
            tables=(TextTable(headers=HEADERS, rows=tuple(map(cells, rows))),),
        )
        if are_drawn:
            section = replace(section, pictures=_pictures(arena, rows))
        sections.append(section)
    certainty = "One seed: what of a difference is chance is not known."
    if len(seeds) > 1:
        certainty = f"Means over {len(seeds)} seeds with 95% confidence intervals."
    return ReportPage(
        title="Policies side by side",
        answers=tuple(answers),
        more=(f"{certainty} {WHICH_FIGURE}",),
        sections=tuple(sections),
        command=command,
    )


def answer(arena: Arena, rows: Sequence[Row]) -> str:
    """Return which policies do better or worse than the first one, in a sentence.

    By work done, or by the mean completion time where no work is counted. Policies are compared
    in pairs, seed by seed; only a 95% interval without 0 tells a difference.
    """
    first, *rivals = rows
    is_of_work = any(row.work_against is not None for row in rivals)
    above, below = "longer per trainer", "shorter per trainer"
    if is_of_work:
        above, below = "more work", "less work"
    differing: list[tuple[float, str]] = []
    alike: list[str] = []
    for row in rivals:
        share = row.jct_against
        if is_of_work:
            share = row.work_against
        if share is None or share.half is None or abs(share.mean) <= share.half:
            alike.append(row.policy)
            continue
        amount = f"{100 * abs(share.mean):.1f} ±{100 * share.half:.1f}%"
        word = above if share.mean > 0 else below
        differing.append((share.mean, f"{row.policy} {amount} {word}"))
    parts = []
    if differing:
        best_first = [text for _, text in sorted(differing, reverse=is_of_work)]
        parts.append(f"held to {first.policy}, {', '.join(best_first)}")
    if alike:
        nothing = f"no difference to {first.policy} that chance alone does not make"
        parts.append(f"{nothing}: {', '.join(alike)}")
    return f"Arena {arena.name}: {'; '.join(parts) or f'{first.policy} alone was played'}."


def _pictures(arena: Arena, rows: Sequence[Row]) -> tuple[Picture, ...]:
    figures = []
    for name, unit, label in FIGURES:
        intervals = [row.figures[name] for row in rows]
        if None not in intervals:
            figures.append((name, unit, label))
    if not figures:
        return ()
    canvas = new_canvas((4.0 * len(figures), 0.9 + 0.28 * len(rows)), html.OTHERWISE)
    all_axes = canvas.subplots(1, len(figures), sharey=True, squeeze=False)[0]
    for axes, (name, unit, label) in zip(all_axes, figures, strict=True):
        lengths, halves = [], []
        for row in rows:
            if (figure := row.figures[name]) is not None:
                lengths.append(figure.mean / unit)
                halves.append((figure.half or 0.0) / unit)
        places = range(len(rows))
        axes.barh(places, lengths, xerr=halves, color="#7aa6c2", ecolor="black")
        axes.set_yticks(places, [row.policy for row in rows])
        axes.set_xlim(left=0.0)  # none of these is negative, though an interval may reach there
        axes.set_xlabel(label)
    all_axes[0].invert_yaxis()
    about = f"{arena.name}: {', '.join(label for _, _, label in figures)}"
    return (
        Picture(
            drawing=html.picture(canvas, about, arena.name),
            title=f"Arena {arena.name}",
            caption="Means and 95% intervals over the seeds.",
            key=arena.name,
        ),
    )
