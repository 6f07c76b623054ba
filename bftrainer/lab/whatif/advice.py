"""Predicts a site's gain from a trace: figures, settings, harvest, cost of a second.

A coarse sample of the trace is replayed for every value tried, a finer one for the expected harvest
and for the price of a second. Three small sweeps in turn, each with the best values of the previous
ones, choose P_jmax, T_fwd and the hold-down time. A sweep is judged by U, compared on the same
stretches; among settings whose difference is small or may be chance other criteria decide.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

from bftrainer.batch.traces.fragments import HOUR_S, Fragments
from bftrainer.batch.traces.statistics import IdleTime, describe, statistics, uninterrupted
from bftrainer.decide import horizon, short_gaps
from bftrainer.decide.policies.base import load_policy
from bftrainer.lab.simulator.physical import PhysicalCosts, Quantity
from bftrainer.lab.whatif.kept import (
    IdleOverTime,
    KeptBack,
    KindOfNodes,
    idle_over_time,
    kept_back,
)
from bftrainer.lab.whatif.replays import (
    NODES_PER_TRAINER,
    Assumptions,
    Estimate,
    Preference,
    Replays,
    ReplaySetting,
    Stretch,
    Sums,
    Values,
    estimate,
    harvested_share,
    lost_share_per_second,
    samples_per_idle_node,
    some_nodes,
    stretches,
    times,
    utilization,
    work_gained,
    work_per_idle_node,
)
from bftrainer.model.decision import Settings
from bftrainer.model.errors import ExitCode, UsageError
from bftrainer.model.site import ShortGaps
from milp.portable import log

P_JMAX_WORTH = 0.01  # a larger P_jmax slows every trainer: it must do this share more work
AS_GOOD = 0.002  # of U: smaller differences do not matter
LOSES_NO_U = f"loses no more than {AS_GOOD:g} of U to any other value tried"
USUAL_T_FWD_S, USUAL_P_JMAX = Settings().t_fwd_s, Settings().p_jmax
LARGEST_P_JMAX = 1000  # the policy's bound
NO_DIFFERENCE = "No difference that chance alone does not make"
TOO_SHORT = "The trace is too short to tell a difference"
# Events to replay per value and for the expected harvest: half a minute of processor time.
COARSE_EVENTS, COARSE_EACH = 400.0, 80.0
FINE_EVENTS, FINE_EACH = 1500.0, 190.0
# Processor time of a replayed change of the pool, roughly: a week of 400 nodes took 87 s, and
# generated weeks of that size have 9,200 to 10,300 changes to replay.
CHANGE_S = 0.009
LARGE_POOL = "p99"  # of the pool's size over time
CLAIM_STEP_S, PAUSE_STEP_S = 5.0, 2.0  # of the finite differences
PAUSES = ("pause_up", "pause_down", "pause_loss")  # the costs that are pauses
P_JMAX = Preference(
    name="p_jmax",
    unit="trainers",
    order=lambda count: count,
    worth=P_JMAX_WORTH,
    first="The fewest",
    loss=f"lose no more than {P_JMAX_WORTH:.0%} of the work done to any other number tried",
    reason="; each trainer is then fastest",
    usual=USUAL_P_JMAX,
    is_by_work=True,
)
T_FWD = Preference(
    name="t_fwd_s",
    unit="s",
    order=lambda s: (abs(log(max(s, 0.1) / USUAL_T_FWD_S)), s),
    worth=AS_GOOD,
    first=f"The nearest to {USUAL_T_FWD_S:g} s",
    loss=LOSES_NO_U,
    reason="",
    usual=USUAL_T_FWD_S,
)
HOLD_DOWN = Preference(
    name="hold_down_s",
    unit="s",
    order=lambda s: -s,
    worth=AS_GOOD,
    first="The longest",
    loss=LOSES_NO_U,
    reason="; fewest pilots come for nothing",
    usual=0.0,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint:
    """One value of a sweep."""

    value: float
    utilization: float
    low: float | None = None  # 95% interval of U; None: too few stretches
    high: float | None = None
    # What decides: how much better than the chosen value, in U or as a share of the work done.
    gain: float = 0.0
    gain_low: float | None = None  # 95% interval of the gain; None: too few stretches
    gain_high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """One setting tried at several values."""

    name: str  # of the setting
    unit: str
    points: tuple[SweepPoint, ...]
    chosen: float
    why: str
    # Whether some value tried is better or worse than the chosen one, by more than chance makes.
    is_beyond_chance: bool = True
    usual: float | None = None  # what the policy has unless it is set; None: sites differ
    is_by_work: bool = False  # whether the work done decides, and not U


class TriedSetting(Protocol):
    """The results of a setting's values on the same stretches."""

    def used(self, value: float, /) -> Estimate:
        """Return U with a value."""

    def gain(self, value: float, over: float, /) -> Estimate:
        """Return how much better a value is than another, in U or as a share of the work done."""


def p_jmax_values(assumptions: Assumptions, eq_nodes: float, large_pool: float) -> tuple[int, ...]:
    """Return the numbers of trainers to try: the policy's, and for 16, 8, 4 and 2 nodes each.

    Args:
        assumptions: what is assumed; values of its own are taken as they are.
        eq_nodes: N_eq of the machine.
        large_pool: a size of the pool that is seldom exceeded: all trainers together, at
            their largest, have to be able to use it.
    """
    if assumptions.p_jmax:
        return assumptions.p_jmax
    fewest = max(1, math.ceil(large_pool / assumptions.n_max))
    counts = {USUAL_P_JMAX}
    for size in NODES_PER_TRAINER:
        counts.add(min(LARGEST_P_JMAX, max(fewest, round(eq_nodes / size))))
    return tuple(sorted(counts))


def sweep(setting: Preference, values: Sequence[float], tried: TriedSetting) -> Sweep:
    """Choose the preferred value to which no other is better by more than it has to be.

    Only differences count that chance alone does not make: whose 95% interval lacks 0. Where there
    is none, nothing speaks for a change, and the usual value stays, or else the preferred one.
    """

    def is_surpassed(value: float) -> bool:
        for rival in values:
            if rival != value:
                gain = tried.gain(rival, value)
                if gain.value > setting.worth and gain.is_beyond_chance:
                    return True
        return False

    preferred = next(itertools.filterfalse(is_surpassed, sorted(values, key=setting.order)))
    is_beyond_chance = any(
        tried.gain(preferred, rival).is_beyond_chance for rival in values if rival != preferred
    )
    first = setting.first
    why = f"{first} that {setting.loss}{setting.reason}."
    if not is_beyond_chance:
        stays = f"{first.lower()} of those tried"
        if setting.usual is not None and setting.usual in values:
            preferred = setting.usual
            stays = "what the policy has anyway"
        nothing = TOO_SHORT if tried.used(values[0]).low is None else NO_DIFFERENCE
        why = f"{nothing} between the values tried: {stays}."
    return Sweep(
        name=setting.name,
        unit=setting.unit,
        points=tuple(_point(tried, value, preferred) for value in values),
        chosen=preferred,
        why=why,
        is_beyond_chance=is_beyond_chance,
        usual=setting.usual,
        is_by_work=setting.is_by_work,
    )


def _point(tried: TriedSetting, value: float, preferred: float) -> SweepPoint:
    utilization = tried.used(value)
    gain = Estimate(value=0.0)
    if value != preferred:
        gain = tried.gain(value, preferred)
    return SweepPoint(
        value=value,
        utilization=utilization.value,
        low=utilization.low,
        high=utilization.high,
        gain=gain.value,
        gain_low=gain.low,
        gain_high=gain.high,
    )


def idle_confirmations(hold_down_s: float, poll_interval_s: float) -> int:
    """Return the policy setting that claims a node after this time (docs/reference/policy.md)."""
    return min(100, 1 + math.ceil(hold_down_s / poll_interval_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The harvest of one policy with the recommended settings."""

    policy: str
    utilization: Estimate  # U, against the full N_eq
    harvested_share: Estimate  # of the idle node-time
    node_hours_per_day: Estimate
    # Of the whole machine, whichever trainers ran (docs/design/simulator.md). There is no makespan:
    # another trainer always waits.
    reference_node_h_per_day: Estimate
    samples_per_day: Estimate
    completed: int  # trainers, in what was replayed
    # By which share it does more work than the first policy, on the same stretches; None: the first
    work_against: Estimate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondMore:
    """The cost of one more second."""

    name: str
    share_of_work: Estimate  # of the samples
    node_hours_per_day: Estimate  # that share of the harvest
    step_s: float  # of the finite difference


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """The part of the trace that the replays cover."""

    nodes: int
    part_of_idle: float  # of the idle node-time of all nodes, while replayed
    coarse_stretches: int
    coarse_hours: float
    fine_stretches: int
    fine_hours: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BusinessCase:
    """The whole business case."""

    idle: IdleTime
    sweeps: tuple[Sweep, ...]  # P_jmax, T_fwd, hold-down time
    t_fwd_s: float  # recommended
    p_jmax: int  # recommended, for the whole machine
    hold_down_s: float  # recommended
    expected: tuple[Expected, ...]  # one per policy
    seconds: tuple[SecondMore, ...]
    short_gaps: ShortGaps  # too short to be lent, if their ends were planned
    replayed: Replayed
    assumptions: Assumptions
    notes: tuple[str, ...]  # of the trace's source
    warnings: tuple[str, ...]  # why its figures may be wrong
    kept: KeptBack  # by the policy
    kinds: tuple[KindOfNodes, ...]
    over_time: IdleOverTime
    left_out: tuple[str, ...] = ()  # which time of the source is not in the trace, and why


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """What is going to be replayed."""

    replays: int  # settings and policies, each over some stretches of the trace
    changes: int  # of the pool, in all replays

    @property
    def processor_s(self) -> float:
        """Return about how many seconds of processor time this takes."""
        return self.changes * CHANGE_S


def study(
    trace: Fragments,
    assumptions: Assumptions,
    progress: Callable[[float], None] = lambda _: None,
    *,
    on_start: Callable[[Effort], None] = lambda _: None,
    processes: int = 1,
) -> BusinessCase:
    """Return the business case.

    Args:
        trace: of a machine's idle time.
        assumptions: what is assumed and tried.
        progress: told which share is done, 0 to 1.
        on_start: told what is to be replayed.
        processes: replay so many stretches side by side.

    Raises:
        UsageError: BFT-4140 when no node is ever idle, BFT-4141 when the machine is said to
            have fewer nodes than the trace names, BFT-3050 for an unknown policy.
    """
    _check(trace, assumptions)
    idle = describe(trace, assumptions.n_nodes)
    part, share = some_nodes(uninterrupted(trace), assumptions.seed)
    coarse, fine = _samples(part, assumptions.seed)
    p_jmax = p_jmax_values(assumptions, idle.eq_nodes, statistics(trace).pool_nodes[LARGE_POOL])
    policies = len(assumptions.policies) + 2  # the last two are of a second more
    values = len(p_jmax) + len(assumptions.t_fwd_s) + len(assumptions.hold_down_s)
    n_coarse = len(coarse) * values
    on_start(_effort(part, (coarse, values), (fine, policies)))
    on_played = partial(_on_played, progress, n_coarse + len(fine) * policies)
    quick = Replays(part, coarse, assumptions, on_played(0), processes=processes)
    sweeps, best = _settings(quick, assumptions, p_jmax, share)
    # Some values were known already: what is left begins where all of them would have ended.
    careful = Replays(part, fine, assumptions, on_played(n_coarse), processes=processes)
    settings = [dataclasses.replace(best, policy=policy) for policy in assumptions.policies]
    dearer = _dearer(best)
    careful.play([*settings, *(second.setting for second in dearer)])
    harvests = tuple(_expected(careful, setting, best, assumptions, idle) for setting in settings)
    kept_by_policy, kinds = _kept(trace, assumptions)
    return BusinessCase(
        idle=idle,
        sweeps=sweeps,
        t_fwd_s=best.t_fwd_s,
        p_jmax=int(sweeps[0].chosen),
        hold_down_s=best.hold_down_s,
        expected=harvests,
        seconds=_seconds(careful, best, dearer, assumptions, harvests[0].node_hours_per_day),
        short_gaps=_short_gaps(trace, assumptions),
        replayed=_replayed(part, share, quick, careful),
        assumptions=assumptions,
        notes=trace.notes,
        warnings=(*trace.warnings, *_too_dear(assumptions.costs, best.t_fwd_s)),
        kept=kept_by_policy,
        kinds=kinds,
        over_time=idle_over_time(trace),
        left_out=trace.left_out,
    )


def _on_played(progress: Callable[[float], None], total: int, n_before: int) -> Callable[[], None]:
    """Return a function that tells the share that is done, one replay more at each call."""
    played = itertools.count(n_before + 1)
    return lambda: progress(min(1.0, next(played) / total))


def _samples(part: Fragments, seed: int) -> tuple[tuple[Stretch, ...], tuple[Stretch, ...]]:
    """Return the stretches for each value tried, and for what is expected."""
    coarse = stretches(part, events_each=COARSE_EACH, events=COARSE_EVENTS, seed=seed)
    return coarse, stretches(part, events_each=FINE_EACH, events=FINE_EVENTS, seed=seed)


def _effort(part: Fragments, *plans: tuple[Sequence[Stretch], int]) -> Effort:
    """Return what is replayed: stretches, and with how many settings each of them."""
    replays = changes = 0
    for group, count in plans:
        replays += count
        changes += count * sum(len(stretch.of(part).pool_changes()) for stretch in group)
    return Effort(replays=replays, changes=changes)


def _short_gaps(trace: Fragments, assumptions: Assumptions) -> ShortGaps:
    return short_gaps.of_lengths(
        uninterrupted(trace).length_s.tolist(),
        trace.duration_s / HOUR_S,
        min_gap_s=assumptions.min_gap_s,
        gap_margin_s=assumptions.gap_margin_s,
    )


def _kept(trace: Fragments, assumptions: Assumptions) -> tuple[KeptBack, tuple[KindOfNodes, ...]]:
    return kept_back(
        trace,
        reserve=assumptions.reserve_nodes_per_type,
        min_gap_s=assumptions.min_gap_s,
        gap_margin_s=assumptions.gap_margin_s,
    )


def _replayed(part: Fragments, share: float, quick: Replays, careful: Replays) -> Replayed:
    return Replayed(
        nodes=len(part.names),
        part_of_idle=share,
        coarse_stretches=len(quick),
        coarse_hours=quick.hours,
        fine_stretches=len(careful),
        fine_hours=careful.hours,
    )


def _too_dear(costs: PhysicalCosts, t_fwd_s: float) -> list[str]:
    """Return what is wrong with a recommended T_fwd that is shorter than a rescale."""
    rescale_s = max(costs.pause_up.mean_s, costs.pause_down.mean_s)
    return list(map(horizon.sentence, horizon.findings(rescale_s, t_fwd_s, whose="assumed")))


def _check(trace: Fragments, assumptions: Assumptions) -> None:
    for policy in assumptions.policies:
        load_policy(policy)
    if not trace.node_seconds() > 0:
        raise UsageError(
            "BFT-4140",
            "No node is ever idle in this trace: there is nothing to train on.",
            "Choose another part of it, or leave --unfillable out.",
            exit_code=ExitCode.VALIDATION_FAILED,
        )
    if assumptions.n_nodes is not None and assumptions.n_nodes < len(trace.names):
        raise UsageError(
            "BFT-4141",
            f"The trace names {len(trace.names)} nodes, more than the {assumptions.n_nodes} given.",
            "Give the number of nodes of the whole machine, or leave --nodes out.",
            exit_code=ExitCode.VALIDATION_FAILED,
        )


def _settings(
    replays: Replays, assumptions: Assumptions, p_jmax: tuple[int, ...], share: float
) -> tuple[tuple[Sweep, ...], ReplaySetting]:
    """Sweep the settings in turn, each with the best values of the earlier ones.

    P_jmax is the whole machine's; the part that is replayed has its share of the trainers.
    """
    best = ReplaySetting(
        policy=assumptions.policies[0],
        t_fwd_s=assumptions.t_fwd_s[len(assumptions.t_fwd_s) // 2],
        p_jmax=p_jmax[0],
        hold_down_s=assumptions.hold_down_s[0],
        costs=assumptions.costs,
        seed=assumptions.seed,
    )
    sweeps = []
    for setting, values in (
        (P_JMAX, p_jmax),
        (T_FWD, assumptions.t_fwd_s),
        (HOLD_DOWN, assumptions.hold_down_s),
    ):
        over = partial(_with, best, share, setting.name)
        replays.play(map(over, values))
        tried = _Compared(replays, assumptions, over, is_by_work=setting.is_by_work)
        sweeps.append(sweep(setting, values, tried))
        best = over(sweeps[-1].chosen)
    return tuple(sweeps), best


def _with(base: ReplaySetting, share: float, name: str, value: float) -> ReplaySetting:
    if name == "p_jmax":
        value = max(1, round(value * share))
    change: dict[str, Any] = {name: value}
    return dataclasses.replace(base, **change)


class _Compared:
    """Settings that differ in one value, on the same stretches."""

    def __init__(
        self,
        replays: Replays,
        assumptions: Assumptions,
        setting: Callable[[float], ReplaySetting],
        *,
        is_by_work: bool,
    ) -> None:
        self._replays, self._given, self._setting = replays, assumptions, setting
        self._is_by_work = is_by_work

    def used(self, value: float, /) -> Estimate:
        """Return U with a value."""
        setting = self._setting(value)
        return estimate(self._figure(setting), self._replays.of(setting), seed=self._given.seed)

    def gain(self, value: float, over: float, /) -> Estimate:
        """Return how much greater U is with a value than with another, or the work done."""
        setting, rival = self._setting(value), self._setting(over)
        plays = self._replays.of(setting), self._replays.of(rival)
        if self._is_by_work:
            return estimate(work_gained, *plays, seed=self._given.seed)
        with_value, with_rival = self._figure(setting), self._figure(rival)
        return estimate(lambda a, b: with_value(a) - with_rival(b), *plays, seed=self._given.seed)

    def _figure(self, setting: ReplaySetting) -> Callable[[Sums], Values]:
        return partial(utilization, curve=self._given.network.curve, p_jmax=setting.p_jmax)


def _expected(
    replays: Replays,
    setting: ReplaySetting,
    first: ReplaySetting,
    assumptions: Assumptions,
    idle: IdleTime,
) -> Expected:
    played = replays.of(setting)
    against = None
    if setting != first:
        against = estimate(work_gained, played, replays.of(first), seed=assumptions.seed)
    use = partial(utilization, curve=assumptions.network.curve, p_jmax=setting.p_jmax)

    def per_day(figure: Callable[[Sums], Values]) -> Estimate:
        return times(estimate(figure, played, seed=assumptions.seed), idle.node_hours_per_day)

    share = estimate(harvested_share, played, seed=assumptions.seed)
    return Expected(
        policy=setting.policy,
        utilization=estimate(use, played, seed=assumptions.seed),
        harvested_share=share,
        node_hours_per_day=times(share, idle.node_hours_per_day),
        reference_node_h_per_day=per_day(work_per_idle_node),
        samples_per_day=per_day(samples_per_idle_node),
        completed=sum(stretch.completed for stretch in played),
        work_against=against,
    )


class _DearerSetting(NamedTuple):
    """A setting by which the cost of a second is measured."""

    name: str  # of the cost
    setting: ReplaySetting
    step_s: float  # by which the cost is greater


def _dearer(best: ReplaySetting) -> tuple[_DearerSetting, ...]:
    claim, pauses = (_longer(best, ("claim",), CLAIM_STEP_S), _longer(best, PAUSES, PAUSE_STEP_S))
    return (
        _DearerSetting("claim latency", claim, CLAIM_STEP_S),
        _DearerSetting("pause", pauses, PAUSE_STEP_S),
    )


def _longer(best: ReplaySetting, names: Sequence[str], step_s: float) -> ReplaySetting:
    """Return a setting with some costs that take so many seconds more."""
    longer = {}
    for name in names:
        values_s = getattr(best.costs, name).values_s
        longer[name] = Quantity(tuple(value_s + step_s for value_s in values_s))
    return dataclasses.replace(best, costs=dataclasses.replace(best.costs, **longer))


def _seconds(
    replays: Replays,
    best: ReplaySetting,
    dearer: Sequence[_DearerSetting],
    assumptions: Assumptions,
    harvest: Estimate,
) -> tuple[SecondMore, ...]:
    """Return the cost of one more second of each kind, by finite differences on equal stretches.

    The decision knows what a pause costs, as the daemon does, and moves fewer nodes when it
    costs more.
    """
    seconds = []
    for name, setting, step_s in dearer:
        figure = partial(lost_share_per_second, step_s=step_s)
        share = estimate(figure, replays.of(best), replays.of(setting), seed=assumptions.seed)
        per_day = times(share, harvest.value)
        seconds.append(
            SecondMore(name=name, node_hours_per_day=per_day, share_of_work=share, step_s=step_s)
        )
    return tuple(seconds)
