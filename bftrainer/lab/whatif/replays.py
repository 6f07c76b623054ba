"""Replays stretches of a trace under stated assumptions, and estimates figures from them.

A year of a large machine cannot be replayed twenty times in a minute. How much is
replayed follows from the trace and a seed, never from the speed of this machine, so
that the same question has the same answer everywhere.

Returns the result of a setting for each stretch, in the same order, so that ``study`` can compare
settings stretch by stretch. How many processes play makes no difference to it.

The interval is a percentile bootstrap over the stretches (B. Efron, R. Tibshirani, An
Introduction to the Bootstrap, 1993): stretches are drawn again with replacement, all
figures of one drawing from the same stretches. It says how much the choice and the
chances of these stretches matter, not whether the assumptions hold.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bftrainer.batch.traces.fragments import HOUR_S, Fragments
from bftrainer.batch.traces.statistics import held_down
from bftrainer.lab.parallel import play_each
from bftrainer.lab.simulator.physical import MEASURED, PhysicalCosts
from bftrainer.lab.simulator.session import Choices, play
from bftrainer.lab.workloads import NETWORKS, SAMPLES, Table2Network, TrainerWorkload, hpo
from bftrainer.model.decision import Settings
from milp.problem import Curve
from milp.tables import rate_at

MOST_EQ_NODES = 64.0  # of a replay; a part of the nodes represents a larger pool
SHORTEST_S = 2 * HOUR_S  # of a stretch, because no trainer runs at its start
LONGEST_S = 24 * HOUR_S
ENOUGH = 8  # stretches for a good interval, if the trace is long enough
FEWEST = 4  # stretches for any
T_FWD_S = (10.0, 60.0, 120.0, 300.0, 1200.0)
HOLD_DOWN_S = (0.0, 10.0, 30.0, 60.0, 120.0)
NODES_PER_TRAINER = (16, 8, 4, 2)  # P_jmax is tried at N_eq divided by these
DRAWINGS = 2000  # of the bootstrap
TAILS = (0.025, 0.975)
Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A span of time; both None: the whole trace."""

    start_s: float | None = None
    length_s: float | None = None

    def of(self, trace: Fragments) -> Fragments:
        """Return this part of a trace."""
        if self.start_s is None or self.length_s is None:
            return trace
        return trace.restrict(start_s=self.start_s, hours=self.length_s / HOUR_S)


def some_nodes(trace: Fragments, seed: int) -> tuple[Fragments, float]:
    """Return neighbouring nodes with a pool of a replayable size, and their share of it.

    Neighbours, because nodes of one job come free together.
    """
    whole = trace.node_seconds()
    if trace.equivalent_nodes() <= MOST_EQ_NODES:
        return trace, 1.0
    count = math.ceil(len(trace.names) * MOST_EQ_NODES / trace.equivalent_nodes())
    chance = random.Random(seed)  # noqa: S311 - a sample, reproducible by its seed
    first = chance.randrange(len(trace.names) - count + 1)
    part = trace.restrict(slice(first, first + count))
    return part, part.node_seconds() / whole


def stretches(
    trace: Fragments, *, events_each: float, events: float, seed: int
) -> tuple[Stretch, ...]:
    """Return stretches of equal length, spread over the trace, with about so many events.

    Args:
        trace: to be replayed.
        events_each: in one stretch, within the limits of its length.
        events: in all of them together.
        seed: of the choice; one stretch is drawn from each of equally long parts, so that
            no hour of the day and no end of the trace is preferred.
    """
    per_s = len(trace.pool_changes()) / trace.duration_s
    wanted_s = max(SHORTEST_S, min(events_each / per_s, LONGEST_S, trace.duration_s / ENOUGH))
    n_all = int(trace.duration_s // wanted_s)
    if n_all < 2:
        return (Stretch(),)
    length_s = math.floor(trace.duration_s / n_all)
    n = min(n_all, max(FEWEST, round(events / (per_s * length_s))))
    chance = random.Random(seed)  # noqa: S311 - a sample, reproducible by its seed
    edges = [k * n_all // n for k in range(n + 1)]
    drawings = []
    for first, end in pairwise(edges):
        start_s = trace.span_s[0] + chance.randrange(first, end) * length_s
        drawings.append(Stretch(start_s=start_s, length_s=float(length_s)))
    return tuple(drawings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """Trainers, costs and the values to try; a tuple of one value is not varied."""

    policies: tuple[str, ...] = ("milp",)  # the first one is used for the settings
    costs: PhysicalCosts = field(default_factory=lambda: MEASURED)
    network: Table2Network = field(default_factory=lambda: NETWORKS["shufflenet"])
    samples: float = SAMPLES  # per trainer; another one always waits
    n_min: int = 1
    n_max: int = 64
    t_fwd_s: tuple[float, ...] = T_FWD_S
    p_jmax: tuple[int, ...] = ()  # empty: follows from N_eq
    hold_down_s: tuple[float, ...] = HOLD_DOWN_S
    n_nodes: int | None = None  # of the machine; None: those the trace names
    poll_interval_s: float = 1.0  # turns the hold-down time into idle_confirmations
    seed: int = 1
    # Of the policy; the replays know none of them, so what they keep is taken off afterwards.
    reserve_nodes_per_type: int = Settings().reserve_nodes_per_type
    min_gap_s: float = Settings().min_gap_s
    gap_margin_s: float = Settings().gap_margin_s

    def sentences(self, n_node_types: int = 1) -> tuple[str, ...]:
        """Return the assumptions in words; ``n_node_types``: of the trace."""
        alike = "All nodes are alike, and every trainer may use every node."
        if n_node_types > 1:
            alike = (
                f"Every trainer may use nodes of any of the {n_node_types} types, of one type at a "
                "time, and is as fast on each."
            )
        return (
            (
                f"There is always a trainer waiting: {self.network.name} (Table 2 of the BFTrainer "
                f"paper), {self.samples:,.0f} samples each, {self.n_min} to {self.n_max} nodes."
            ),
            f"Costs: {self.costs}.",
            alike,
            "Ordinary jobs run as they did; nodes come back to them when the trace says so.",
            "In the replays no node is kept in reserve, and a pilot's time limit never strikes.",
            "The future of a gap is not known: no node is left alone for a gap that is too short.",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Preference:
    """A setting, and its values in the order in which they are preferred."""

    name: str
    unit: str
    order: Callable[[float], Any]  # sorts values
    worth: float  # a gain for which another value is taken
    first: str  # the value that is preferred, in words
    loss: str  # what it may lose to another one, in words
    reason: str  # why it is preferred
    usual: float | None  # what the policy has unless it is set; None: nothing that suits all sites
    # U is held against P_jmax equal trainers: values of P_jmax are compared by work done.
    is_by_work: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySetting(Choices):
    """The settings of a replay."""

    hold_down_s: float
    costs: PhysicalCosts


class StretchOutcome(NamedTuple):
    """The outcome of one stretch."""

    seconds: float
    offered_node_s: float  # idle, before any hold-down time
    harvested_node_s: float  # of members that trained
    samples: float
    reference_node_h: float = 0.0  # work done (bftrainer.lab.simulator.metrics)
    completed: int = 0  # trainers


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Task:
    """A stretch to replay."""

    part: Fragments  # after the hold-down time
    offered_node_s: float
    setting: ReplaySetting
    assumptions: Assumptions


class Replays:
    """Replays of stretches; each setting is played once."""

    def __init__(
        self,
        trace: Fragments,
        stretches: Sequence[Stretch],
        assumptions: Assumptions,
        on_played: Callable[[], None],
        *,
        processes: int = 1,
    ) -> None:
        self._trace, self._stretches, self._given = trace, tuple(stretches), assumptions
        self._on_played, self._processes = on_played, processes
        self._offered_node_s = [s.of(trace).node_seconds() for s in self._stretches]
        self._held: dict[float, Fragments] = {}
        self._known: dict[ReplaySetting, tuple[StretchOutcome, ...]] = {}

    def __len__(self) -> int:
        """Return the number of stretches."""
        return len(self._stretches)

    @property
    def hours(self) -> float:
        """The total time of the stretches, s."""
        return sum(s.of(self._trace).duration_s for s in self._stretches) / 3600.0

    def of(self, setting: ReplaySetting) -> tuple[StretchOutcome, ...]:
        """Return the outcome of each stretch."""
        self.play([setting])
        return self._known[setting]

    def play(self, settings: Iterable[ReplaySetting]) -> None:
        """Play these settings side by side, so that ``of`` knows them."""
        tasks_of = {s: self._tasks(s) for s in settings if s not in self._known}
        outcomes = play_each(
            _play,
            list(chain.from_iterable(tasks_of.values())),
            processes=self._processes,
            on_progress=lambda _: self._on_played(),
        )
        for setting, tasks in tasks_of.items():
            self._known[setting] = tuple(outcomes[task] for task in tasks)

    def _tasks(self, setting: ReplaySetting) -> list[_Task]:
        hold_s = setting.hold_down_s
        # Computed on the whole trace, because a stretch may begin within an idle time.
        if hold_s not in self._held:
            self._held[hold_s] = held_down(self._trace, hold_s)
        trace = self._held[hold_s]
        return [
            _Task(
                part=stretch.of(trace),
                offered_node_s=node_s,
                setting=setting,
                assumptions=self._given,
            )
            for stretch, node_s in zip(self._stretches, self._offered_node_s, strict=True)
        ]


def _play(task: _Task) -> StretchOutcome:
    workload = endless(task.part, task.setting, task.assumptions)
    outcome, figures = play(task.part, workload, task.setting)
    return StretchOutcome(
        seconds=task.part.duration_s,
        offered_node_s=task.offered_node_s,
        harvested_node_s=outcome.tally.node_s_used,
        samples=figures.a_e,
        reference_node_h=figures.reference_node_h,
        completed=figures.completed,
    )


def endless(trace: Fragments, setting: ReplaySetting, assumptions: Assumptions) -> TrainerWorkload:
    """Return more trainers than the trace can complete."""
    curve = assumptions.network.curve
    best = max(v / n for n, v in zip(curve.sizes, curve.samples_per_s, strict=True))
    n_completed = math.ceil(trace.node_seconds() * best / assumptions.samples)
    workload = hpo(
        assumptions.network,
        n_trainers=n_completed + setting.p_jmax + 1,
        samples=assumptions.samples,
        rescale_up_s=setting.costs.pause_up.mean_s,
        rescale_down_s=setting.costs.pause_down.mean_s,
        n_max=assumptions.n_max,
    )
    if assumptions.n_min == 1:
        return workload
    submissions = tuple(
        dataclasses.replace(submission, n_min=assumptions.n_min) for submission in workload
    )
    return dataclasses.replace(workload, submissions=submissions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A figure and its 95% interval; None if there are too few stretches."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def is_beyond_chance(self) -> bool:
        """Return whether its interval lacks 0: of a difference, that chance alone makes it not."""
        return self.low is not None and self.high is not None and not self.low <= 0.0 <= self.high


class Sums(NamedTuple):
    """Sums of a ``StretchOutcome`` over stretches, one entry per resample."""

    seconds: Values
    offered_node_s: Values
    harvested_node_s: Values
    samples: Values
    reference_node_h: Values
    completed: Values


def estimate(
    figure: Callable[..., Values], *plays: Sequence[StretchOutcome], seed: int
) -> Estimate:
    """Return a figure of one setting, or of several on the same stretches.

    Args:
        figure: from the ``Sums`` of each setting to values.
        plays: what the stretches gave under each setting, in the same order.
        seed: of the drawings.
    """
    n = len(plays[0])
    value = point(figure, *plays)
    if n < FEWEST:
        return Estimate(value=value)
    chance = np.random.Generator(np.random.PCG64(seed))
    weights = chance.multinomial(n, np.full(n, 1.0 / n), size=DRAWINGS).astype(np.float64)
    low, high = np.quantile(figure(*(_sums(p, weights) for p in plays)), TAILS)
    return Estimate(value=value, low=float(low), high=float(high))


def point(figure: Callable[..., Values], *plays: Sequence[StretchOutcome]) -> float:
    """Return the figure of all stretches together."""
    return float(figure(*(_sums(p, np.ones((1, len(p)))) for p in plays))[0])


def _sums(played: Sequence[StretchOutcome], weights: Values) -> Sums:
    """Return the weighted sums, added up in the same order on every processor."""
    columns = map(np.array, zip(*played, strict=True))
    return Sums(*[(weights * column).sum(axis=1) for column in columns])


def utilization(sums: Sums, *, curve: Curve, p_jmax: int) -> Values:
    """Return U = A_e / A_s (eqs. 17-19), A_s with the full N_eq of these stretches."""
    share = sums.offered_node_s / sums.seconds / p_jmax
    rate = np.array([rate_at(curve, nodes) for nodes in share.tolist()])
    static: Values = rate * p_jmax * sums.seconds
    return sums.samples / np.where(static > 0, static, np.inf)


def harvested_share(sums: Sums) -> Values:
    """Return the part of the idle node-time in which a trainer trained."""
    offered = np.where(sums.offered_node_s > 0, sums.offered_node_s, np.inf)
    return sums.harvested_node_s / offered


def work_per_idle_node(sums: Sums) -> Values:
    """Return the reference node-hours of work for each node-hour that was idle."""
    offered = np.where(sums.offered_node_s > 0, sums.offered_node_s, np.inf)
    return sums.reference_node_h * HOUR_S / offered


def work_gained(own: Sums, other: Sums) -> Values:
    """Return by which share more work was done than by another policy on the same stretches."""
    held_to = np.where(other.reference_node_h > 0, other.reference_node_h, np.inf)
    return (own.reference_node_h - other.reference_node_h) / held_to


def samples_per_idle_node(sums: Sums) -> Values:
    """Return the samples for each node-hour that was idle."""
    offered = np.where(sums.offered_node_s > 0, sums.offered_node_s, np.inf)
    return sums.samples * HOUR_S / offered


def lost_share_per_second(base: Sums, dearer: Sums, *, step_s: float) -> Values:
    """Return the share of the samples that each additional second costs.

    Not of the node-time: with dear pauses the decision moves fewer nodes, so that more of
    them train, at sizes that are worth less.
    """
    before = np.where(base.samples > 0, base.samples, np.inf)
    return (base.samples - dearer.samples) / before / step_s


def times(share: Estimate, amount: float) -> Estimate:
    """Return the share of an amount that is known for the whole trace."""
    if share.low is None or share.high is None:
        return Estimate(value=share.value * amount)
    return Estimate(value=share.value * amount, low=share.low * amount, high=share.high * amount)
