"""The probability that a study meets its deadline on idle nodes (docs/design/studies.md). Pure.

*Futures* of the number of idle nodes are a block bootstrap of the past. A future is made of pieces
of the history, of one hour on the average (the stationary bootstrap of Politis and Romano 1994).
The first piece begins where the pool was like it is now, each other one where it was like the piece
before has left it; likeness is a Gaussian of the difference of log(1 + nodes). A piece begun with
other numbers of nodes is scaled to go on from those left; the factor fades. So futures of any
length follow from what is known now, and forget it as fast as the pool does. The history itself is
a sample, too: each group of futures gives its stretches other weights (the Bayesian bootstrap of
Rubin 1981). How much the groups differ says how uncertain the answer is.

*Work*: trials do not take equally long, and a stage waits for the longest one. By then the nodes of
the others are free, so that it ends on as many as it can use: that is added to the stage's time.

*Outlook*: each future of the pool either is enough for the study or is not; the probability is the
share that is. Reserved nodes are the user's own from the beginning until the study is done. They
are added to every future alike, so that more of them never make it less likely.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from bftrainer.batch.traces.fragments import HOUR_S, Fragments
from bftrainer.batch.traces.statistics import held_down
from bftrainer.model.errors import ExitCode, UsageError
from bftrainer.model.quantities import quantity
from bftrainer.study.plan.problem import ScalingProfile, rung_stages
from bftrainer.study.rungs import Asha, Full, Median, Pbt, Sha, Stopping
from bftrainer.study.trials import StudyRule

Counts = NDArray[np.int64]
Floats = NDArray[np.float64]

STRETCH_S = 6 * 3600.0  # of the history, with one weight
STATE = 0.1  # states are told apart by this much, in log(1 + nodes)
MOST_BEGINNINGS = 1500  # of pieces; of a longer history they are thinned out
_NEVER = 1e-12
SPREAD = 0.05  # standard deviation of trials' times, as ``study plan --spread`` takes it
MOST_NODES = 200_000  # of a pool and a reserve; more are not told apart
LEAST_UNIT_S = 1e-6  # a unit is not told to be shorter: rates stay finite
LATE = 0.95  # p95
STEP_S = 60.0  # at least, of the history and of futures
STEPS = 480  # of a deadline at most
BEYOND = 3.0  # futures are this many deadlines long
QUANTILES = (0.5, 0.9, 0.95)  # of the time until the study is done
INTERVAL = 0.9  # probability that the interval holds
# What the groups differ tells too little: 0.84 of such intervals held (measured at 8465d2f).
WIDER = 1.6
LEAST_DEADLINES, LEAST_S = 4.0, 12 * 3600.0  # length of a history, at least
UNSEEN = "The history never had so many idle nodes as there are now."


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolHistory:
    """The usable nodes of a pool at instants that are ``step_s`` apart."""

    step_s: float
    nodes: Counts

    @property
    def duration_s(self) -> float:
        """The time for which the pool was watched."""
        return self.step_s * len(self.nodes)


def history_of(trace: Fragments, *, step_s: float, start_up_s: float) -> PoolHistory:
    """Return the history that a trace tells.

    Args:
        trace: of the nodes that the study may use.
        step_s: between two samples. Samples, not means over a step: those would be smoother than
            the pool.
        start_up_s: from a node's becoming idle until it trains; it is not usable before.
    """
    changes = held_down(trace, start_up_s).pool_changes()
    begin_s, end_s = trace.span_s
    at_s = np.arange(begin_s, end_s, step_s)
    newest = np.searchsorted(changes.at_s, at_s, side="right") - 1
    return PoolHistory(step_s=step_s, nodes=changes.pool_sizes()[newest])


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """The settings by which futures are drawn."""

    groups: int = 40
    each: int = 50  # futures in a group
    seed: int = 1
    piece_s: float = 3600.0  # mean length of a piece
    likeness: float = 1.0  # standard deviation, in log(1 + nodes)
    fades_s: float = 7200.0  # the logarithm of a piece's factor falls to 1 / e in this time


def futures(history: PoolHistory, now: int, steps: int, drawing: Drawing) -> Counts:
    """Return futures, one row each; rows of a group are neighbours.

    Args:
        history: of the pool.
        now: idle nodes at present.
        steps: of the history's, from now on.
        drawing: how many, and the seed.
    """
    chance = np.random.Generator(np.random.PCG64(drawing.seed))
    nodes, count = history.nodes, drawing.groups * drawing.each
    begin = _beginner(history, max(now, int(nodes.max())), drawing, chance)
    end_chance = min(1.0, history.step_s / drawing.piece_s)
    fading = 0.0  # the factor is 1 from the first step on
    if drawing.fades_s:
        fading = math.exp(-history.step_s / drawing.fades_s)
    node_counts = np.empty((steps, count), dtype=np.int64)
    # The state of each future: its nodes, the step at which its piece ends, the step of the history
    # where it is, and the logarithm of the piece's factor.
    present, ends = np.full(count, now), np.zeros(count, dtype=np.int64)
    places, log_factor = np.zeros(count, dtype=np.int64), np.zeros(count)
    for step in range(steps):
        places += 1
        over = np.flatnonzero((ends <= step) | (places >= len(nodes)))
        beginnings = begin(over, present[over])
        places[over] = beginnings + 1
        log_factor[over] = np.log1p(present[over]) - np.log1p(nodes[beginnings])
        ends[over] = step + chance.geometric(end_chance, len(over))
        log_factor *= fading
        scaled = np.rint(nodes[places] * np.exp(log_factor))
        present = np.minimum(scaled, begin.most).astype(np.int64)
        node_counts[step] = present
    return np.ascontiguousarray(node_counts.T)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Beginnings:
    """The steps where pieces may begin, with the probability of each for each state."""

    at: Counts
    so_far: Floats  # rows of ``_likely`` of all groups, one after the other
    first_row: Counts  # of each future's group
    most: int  # nodes that a future ever has
    chance: np.random.Generator

    def __call__(self, who: Counts, present: Counts) -> Counts:
        """Draw a beginning for each of these futures, which have so many nodes at present."""
        row = self.first_row[who] + _state(present)
        places = np.searchsorted(self.so_far, row + self.chance.random(len(row)), side="right")
        # The sum of row and chance may be rounded up to the next row: the last one is drawn then.
        beginnings: Counts = self.at[np.minimum(places - row * len(self.at), len(self.at) - 1)]
        return beginnings


def _beginner(
    history: PoolHistory, most: int, drawing: Drawing, chance: np.random.Generator
) -> _Beginnings:
    every = max(1, len(history.nodes) // MOST_BEGINNINGS)
    at = np.arange(0, len(history.nodes) - 1, every)
    states = 1 + int(_state(np.array(most)))
    weights = _weights(at, history.step_s, drawing.groups, chance)
    so_far: list[Floats] = []
    for group in range(drawing.groups):
        sums = _likely(history.nodes[at], states, drawing.likeness, weights[group])
        so_far.append(sums + group * states)
    return _Beginnings(
        at=at,
        so_far=np.concatenate(so_far).ravel(),
        first_row=np.repeat(np.arange(drawing.groups) * states, drawing.each),
        most=most,
        chance=chance,
    )


def _state(nodes: Counts) -> Counts:
    state: Counts = np.rint(np.log1p(nodes) / STATE).astype(np.int64)
    return state


def _weights(beginnings: Counts, step_s: float, groups: int, chance: np.random.Generator) -> Floats:
    """Return a weight for each beginning, one row for each group; alike within a stretch.

    Where stretches are cut is drawn, too. All groups together weigh each beginning alike.
    """
    length = max(1, round(STRETCH_S / step_s))
    stretches = (beginnings + chance.integers(length, size=(groups, 1))) // length
    stretch_weights = chance.standard_exponential((groups, int(stretches.max()) + 1))
    weights = np.take_along_axis(stretch_weights, stretches, axis=1)
    balanced: Floats = weights / weights.mean(axis=0)
    return balanced


def _likely(nodes: Counts, states: int, likeness: float, weights: Floats) -> Floats:
    """Return for each state, one row each, the sums of the chances of all beginnings so far.

    Row r goes from r to r + 1, so that one search finds beginnings for many states.
    """
    apart = (np.log1p(nodes)[None, :] - STATE * np.arange(states)[:, None]) / likeness
    apart **= 2
    apart -= apart.min(axis=1, keepdims=True)  # the nearest count, however far it is
    sums = np.cumsum(np.exp(-0.5 * apart) * (weights + _NEVER), axis=1)
    sums /= sums[:, -1:]
    sums += np.arange(states)[:, None]
    return sums


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Trials that train before those of the next part begin."""

    trials: int
    units: float  # of one trial, on the average


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The training that a study has to do, and the speed of a trial."""

    parts: tuple[Part, ...]
    scaling: ScalingProfile  # its GPUs are nodes here; its spread is that of trials
    parallel: int | None = None  # trials at once; None: as the pool has room

    @property
    def most_nodes(self) -> int:
        """Nodes beyond which nothing gets faster, at most ``MOST_NODES``."""
        return min(MOST_NODES, max(map(self._wide, self.parts)) * self._n_max)

    def rates(self) -> Floats:
        """Return the share of each part done in a second by 0 to ``most_nodes`` nodes."""
        n_max = max(self.scaling.n_min, min(self._n_max, self.most_nodes))
        sizes = np.array(self.scaling.sizes or range(self.scaling.n_min, n_max + 1))
        per_s = np.array([1.0 / self._mean_s(size) for size in sizes.tolist()])
        return np.stack([1.0 / self._part_s(part, sizes, per_s) for part in self.parts])

    def least_s(self) -> float:
        """Return how long the study takes on as many nodes as it can use."""
        unit_s = self._mean_s(self._n_max)
        length_s = 0.0
        for part in self.parts:
            waves = -(-part.trials // self._wide(part))
            length_s += part.units * waves * unit_s + self._longer_s(part)
        return length_s

    @property
    def _n_max(self) -> int:
        return self.scaling.n_max or max(self.scaling.gpus)

    def _mean_s(self, size: int) -> float:
        return max(LEAST_UNIT_S, self.scaling.mean_s(size))

    def _wide(self, part: Part) -> int:
        return min(part.trials, self.parallel or part.trials)

    def _longer_s(self, part: Part) -> float:
        """Return how much longer the longest trial of a part is, on as many nodes as it can use.

        The mean of the longest of as many normal ones as train at once, by Blom (1958).
        """
        wide = self._wide(part)
        if wide <= 1:
            return 0.0
        longest = NormalDist().inv_cdf((wide - 0.375) / (wide + 0.25))
        return self.scaling.spread * longest * part.units * self._mean_s(self._n_max)

    def _part_s(self, part: Part, sizes: Counts, per_s: Floats) -> Floats:
        """Return how long a part takes by nodes, if their number does not change.

        Trials that find no node follow the others in waves; in the last one, fewer trials share
        the nodes. Shares are fractions: some trials have one node more than others.

        Args:
            part: which one.
            sizes: that a trial may have, ascending.
            per_s: units that a trial of each size does in a second.
        """
        scaling, nodes = self.scaling, np.arange(self.most_nodes + 1)
        at_once = np.minimum(nodes // scaling.n_min, self._wide(part))
        at_once[: scaling.n_min] = 1  # of which none can train
        waves = -(-part.trials // at_once)
        last = part.trials - (waves - 1) * at_once
        wave_s = 1.0 / np.interp(nodes / at_once, sizes, per_s)
        last_s = 1.0 / np.interp(nodes / last, sizes, per_s)
        length_s: Floats = part.units * ((waves - 1) * wave_s + last_s) + self._longer_s(part)
        length_s[: scaling.n_min] = np.inf
        return np.minimum.accumulate(length_s)  # more nodes are never slower, some may stay idle


def parts_of(rule: StudyRule) -> tuple[tuple[Part, ...], str]:
    """Return the parts of a rule's study, and what is assumed of it ("" if nothing is).

    Rungs with the same budget are one part, of whatever bracket.
    """
    note = ""
    if isinstance(rule, Asha | Stopping):
        stages = rung_stages(
            Sha(trials=rule.trials, least=rule.least, most=rule.most, eta=rule.eta)
        )
        note = "Trials are taken to climb as in the rule sha."
    elif isinstance(rule, Median):
        stages = rung_stages(Full(trials=rule.trials, most=rule.most))
        note = "Nobody is taken to be stopped before the end: the study may be faster."
    elif isinstance(rule, Pbt):
        stages = rung_stages(Full(trials=rule.population, most=rule.most))
    else:
        stages = rung_stages(rule)
    trials_to, units_to = defaultdict[int, int](int), defaultdict[int, int](int)  # by budget
    for stage in stages:
        trials_to[stage.budget] += stage.trials
        units_to[stage.budget] += stage.trials * stage.units
    parts: list[Part] = []
    for budget, trials in sorted(trials_to.items()):
        mean_units = units_to[budget] / trials
        parts.append(Part(trials=trials, units=mean_units))
    return tuple(parts), note


def finish_s(nodes: Counts, rates: Floats, step_s: float) -> Floats:
    """Return when each row of ``nodes`` is through all stages; infinity: not within its steps.

    Args:
        nodes: usable nodes, one row for each future, one column for each step.
        rates: share of a stage that is done in a second, one row for each stage, one column for
            each number of nodes from 0 on; the last one counts for more nodes, too.
        step_s: how long a step is.
    """
    steps = nodes.shape[1]
    rows, at = np.arange(len(nodes)), np.zeros(len(nodes))
    useful_nodes = np.minimum(nodes, rates.shape[1] - 1)
    for rate in rates:
        work = np.zeros((len(nodes), steps + 1))  # that is done by each step
        np.cumsum(rate[useful_nodes] * step_s, axis=1, out=work[:, 1:])
        goal = _between(work, rows, np.minimum(at, steps)) + 1.0
        # The first step at which it is done; 1e-9 for what the sums are rounded by.
        step = (work < goal[:, None] - 1e-9).sum(axis=1)
        is_done = (step <= steps) & np.isfinite(at)
        step = np.clip(step, 1, steps)
        low, high = work[rows, step - 1], work[rows, step]
        part = (goal - low) / np.where(high > low, high - low, 1.0)
        # A stage that is done at once does not go back behind the one before.
        at = np.where(is_done, np.maximum(at, step - 1 + np.clip(part, 0.0, 1.0)), np.inf)
    return at * step_s


def _between(work: Floats, rows: Counts, at: Floats) -> Floats:
    step = np.minimum(at.astype(np.int64), work.shape[1] - 2)
    low, high = work[rows, step], work[rows, step + 1]
    interpolated: Floats = low + (at - step) * (high - low)
    return interpolated


@dataclass(frozen=True, slots=True, kw_only=True)
class ReserveUse:
    """Time, node-hours and cost with a reserve: mean and p95; None: beyond the futures."""

    time_s: Mapping[str, float | None]  # from now until the study is done
    node_h: Mapping[str, float | None]
    cost: Mapping[str, float | None] | None  # in the price's currency; None: no price


def least_reserve(
    nodes: Counts, rates: Floats, step_s: float, *, left_s: float, confidence: float
) -> tuple[int, float] | None:
    """Return the fewest nodes that are enough, and how likely those are; None: no number is.

    Args:
        nodes: futures, one row each, of at least ``left_s``.
        rates: of the study, see ``finish_s``; more nodes than its columns make nothing faster.
        step_s: of the futures.
        left_s: what is left until the deadline once nodes train.
        confidence: share of the futures in which the study is to be in time.
    """

    def probability_with(reserved: int) -> float:
        return float((finish_s(nodes + reserved, rates, step_s) <= left_s).mean())

    low, high = -1, rates.shape[1] - 1
    probability = probability_with(high)
    if probability < confidence:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        middle_probability = probability_with(middle)
        if middle_probability >= confidence:
            high, probability = middle, middle_probability
        else:
            low = middle
    return high, probability


def held(reserved: int, ends_s: Floats, *, most_s: float, price_h: float | None) -> ReserveUse:
    """Return what ``reserved`` nodes take until the study is done.

    Args:
        reserved: number of nodes.
        ends_s: when the study is done with them, in each future; may be infinite.
        most_s: how long the futures are. In the mean an infinite end counts as this.
        price_h: of a node for an hour.
    """
    late_s = float(np.quantile(ends_s, LATE, method="higher"))
    time_s = {
        "mean": float(np.minimum(ends_s, most_s).mean()),
        "p95": _finite(late_s),
    }
    node_h = _times(time_s, reserved / HOUR_S)
    cost: Mapping[str, float | None] | None = None
    if price_h is not None:
        cost = _times(node_h, price_h)
    return ReserveUse(time_s=time_s, node_h=node_h, cost=cost)


def _finite(end_s: float) -> float | None:
    """Return the time; None if it is beyond the futures."""
    return end_s if end_s < math.inf else None


def _times(amounts: Mapping[str, float | None], factor: float) -> dict[str, float | None]:
    products: dict[str, float | None] = {}
    for name, amount in amounts.items():
        products[name] = None if amount is None else amount * factor
    return products


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """The forecast for a study on the idle nodes of a pool."""

    deadline_s: float
    now_idle: int
    probability: float  # that it is done in time, on idle nodes alone
    low: float  # 90% interval of that: what a history of another such time might have told
    high: float
    confidence: float  # that is wanted
    reserved: int | None  # nodes that make it so likely; None: no number does
    probability_reserved: float | None  # with those
    held: ReserveUse | None  # what those take; None: there are none, not even 0
    finish_s: Mapping[str, float | None]  # p50, p90, p95; None: beyond the futures
    beyond_s: float  # how long the futures are
    least_s: float  # on as many nodes as it can use
    history_s: float
    mean_idle: float  # in the history
    notes: tuple[str, ...] = ()


def history_for(trace: Fragments, deadline_s: float, start_up_s: float) -> PoolHistory:
    """Return the history that a trace tells, at the steps that a deadline needs.

    Raises:
        UsageError: BFT-1651, the trace is too short for such a deadline.
    """
    needed_s = max(LEAST_S, LEAST_DEADLINES * deadline_s)
    if trace.duration_s < needed_s:
        raise UsageError(
            "BFT-1651",
            f"A history of {trace.duration_s / HOUR_S:.1f} h says too little of"
            f" {quantity(deadline_s / HOUR_S)} h.",
            f"Give one of at least {quantity(needed_s / HOUR_S)} h, or a shorter --deadline.",
            exit_code=ExitCode.VALIDATION_FAILED,
        )
    step_s = max(STEP_S, deadline_s / STEPS)
    return history_of(trace, step_s=step_s, start_up_s=start_up_s)


def outlook(
    work: Work,
    history: PoolHistory,
    *,
    deadline_s: float,
    start_up_s: float,
    now_idle: int,
    confidence: float,
    drawing: Drawing,
    price_h: float | None = None,
) -> Outlook:
    """Return the outlook of a study that begins now.

    Args:
        work: of the study.
        history: of the pool, of ``history_for``.
        deadline_s: how long the study may take.
        start_up_s: from now until the first nodes train.
        now_idle: nodes that are idle now.
        confidence: what the reserved nodes are to make of the probability.
        drawing: of the futures.
        price_h: of a reserved node for an hour.
    """
    step_s, rates = history.step_s, work.rates()
    left_s, beyond_s = max(0.0, deadline_s - start_up_s), BEYOND * deadline_s
    steps_left = math.ceil(left_s / step_s) + 1
    steps_beyond = math.ceil(beyond_s / step_s) + 1
    nodes = futures(history, now_idle, steps_beyond, drawing)
    ends_s = start_up_s + finish_s(nodes, rates, step_s)
    in_time = ends_s <= deadline_s
    probability = float(in_time.mean())
    low, high = interval(in_time.reshape(drawing.groups, drawing.each))
    reserved: int | None = None
    probability_reserved: float | None = None
    reserve_use: ReserveUse | None = None
    reserve = least_reserve(
        nodes[:, :steps_left], rates, step_s, left_s=left_s, confidence=confidence
    )
    if reserve is not None:
        reserved, probability_reserved = reserve
        reserved_ends_s = start_up_s + finish_s(nodes + reserved, rates, step_s)
        reserve_use = held(reserved, reserved_ends_s, most_s=beyond_s, price_h=price_h)
    return Outlook(
        deadline_s=deadline_s,
        now_idle=now_idle,
        probability=probability,
        low=low,
        high=high,
        confidence=confidence,
        reserved=reserved,
        probability_reserved=probability_reserved,
        held=reserve_use,
        finish_s=_quantiles(ends_s),
        beyond_s=beyond_s,
        least_s=work.least_s() + start_up_s,
        history_s=history.duration_s,
        mean_idle=float(history.nodes.mean()),
        notes=() if now_idle <= history.nodes.max() else (UNSEEN,),
    )


def _quantiles(ends_s: Floats) -> dict[str, float | None]:
    """Return ``QUANTILES`` by their names, such as p95; None: beyond the futures."""
    quantiles: dict[str, float | None] = {}
    for share in QUANTILES:
        end_s = float(np.quantile(ends_s, share, method="higher"))
        quantiles[f"p{round(100 * share)}"] = _finite(end_s)
    return quantiles


def interval(in_time: NDArray[np.bool_]) -> tuple[float, float]:
    """Return the interval of a share, of whether each future (columns) of each group is in time.

    From how much the groups differ beyond the chances of so few futures, on the scale of
    asin(sqrt(share)), on which that spread does not depend on the share.
    """
    shares, futures_per_group = in_time.mean(axis=1), in_time.shape[1]
    chance = float((shares * (1.0 - shares)).mean()) / (futures_per_group - 1)
    spread = math.sqrt(max(0.0, float(shares.var(ddof=1)) - chance) + chance / len(shares))
    middle = float(in_time.mean())
    slope = 2.0 * math.sqrt(max(middle * (1.0 - middle), 1.0 / in_time.size))
    reach = WIDER * NormalDist().inv_cdf(0.5 + INTERVAL / 2.0) * spread / slope
    at = math.asin(math.sqrt(middle))
    low, high = max(0.0, at - reach), min(math.pi / 2.0, at + reach)
    return math.sin(low) ** 2, math.sin(high) ** 2
