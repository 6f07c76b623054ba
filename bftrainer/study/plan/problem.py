"""The problem of a plan: the study's stages, its trials' speed and the cloud's prices. Pure."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from functools import cache

from bftrainer.study.rungs import Full, Hyperband, Rung, Sha, ladder
from bftrainer.study.trials import StudyRule
from milp.problem import Curve

LEAST_S, MOST_S = 1e-6, 1e9  # of a unit


class Draw(enum.StrEnum):
    """The quantity that varies: the paper leaves it open, and its Fig. 9 depends on it."""

    UNIT = "unit"  # each unit of a trial by itself
    TASK = "task"  # a trial in a stage, all its units alike


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingProfile:
    """A scaling profile, the same for all trials.

    Between the measured sizes it is a straight line in logarithms; beyond the last one the last
    slope goes on.
    """

    gpus: tuple[int, ...]  # ascending, from 1 on
    unit_s: tuple[float, ...]  # seconds per unit
    spread: float = 0.0  # standard deviation as a share of the mean
    draw: Draw = Draw.UNIT
    start_s: float = 0.0  # of a trial in a stage: its checkpoint is read, its workers connect
    n_min: int = 1  # GPUs of a trial
    n_max: int | None = None
    sizes: tuple[int, ...] = ()  # that a trial may have, ascending; (): all of n_min to n_max

    def __post_init__(self) -> None:
        """Refuse what cannot be interpolated."""
        ascending = sorted(set(self.gpus))
        if not ascending or list(self.gpus) != ascending or ascending[0] < 1:
            raise ValueError("sizes must ascend from 1 on")
        is_each = len(self.unit_s) == len(self.gpus)
        if not is_each or not all(LEAST_S <= s <= MOST_S for s in self.unit_s):
            raise ValueError(f"each size needs a time per unit, from {LEAST_S:g} to {MOST_S:g} s")
        if not 1 <= self.n_min <= (self.n_max or self.n_min):
            raise ValueError("1 <= n_min <= n_max is required of the sizes of a trial")

    def mean_s(self, gpus: int) -> float:
        """Return the mean time of a unit; more GPUs never take longer, as some may stay idle."""
        return _mean_s(self.gpus, self.unit_s, gpus)

    def share(self, gpus: int, trials: int) -> tuple[int, int]:
        """Return how many GPUs each trial of a stage gets, and how many trials train at once.

        All share equally, rounded down, and no trial gets more than make it faster. If there are
        too few for all, as many as can train, and each of the others after one of them.
        """
        equal_share = gpus // trials
        if equal_share < self.n_min:
            return self.n_min, gpus // self.n_min
        useful = max(self.n_min, self._useful(min(equal_share, self.n_max or equal_share)))
        if self.sizes and useful not in self.sizes:  # the next one up if there are enough for it
            above = [size for size in self.sizes if useful < size <= equal_share]
            below = [size for size in self.sizes if size < useful]
            useful = min(above, default=below[-1])
        return useful, trials

    def _useful(self, gpus: int) -> int:
        """Return the least GPUs that are as fast."""
        low, high, target_s = 1, gpus, self.mean_s(gpus)
        while low < high:
            middle = (low + high) // 2
            if self.mean_s(middle) <= target_s * (1 + 1e-12):
                high = middle
            else:
                low = middle + 1
        return low


def scaling_of(curve: Curve, samples_per_unit: float, **more: float) -> ScalingProfile:
    """Return the profile of a throughput curve.

    Raises:
        ValueError: a size has no throughput.
    """
    if min(curve.samples_per_s, default=0.0) <= 0.0:
        raise ValueError("each size needs a positive throughput")
    unit_s = tuple(samples_per_unit / rate for rate in curve.samples_per_s)
    return ScalingProfile(gpus=curve.sizes, unit_s=unit_s, **more)  # type: ignore[arg-type]


@cache
def _mean_s(sizes: tuple[int, ...], unit_s: tuple[float, ...], gpus: int) -> float:
    """Return the least of the line at ``gpus`` and of all that was measured below."""
    below = [s for size, s in zip(sizes, unit_s, strict=True) if size <= gpus]
    return min([*below, _line(sizes, unit_s, gpus)])


def _line(sizes: tuple[int, ...], unit_s: tuple[float, ...], gpus: int) -> float:
    if gpus < sizes[0]:
        return unit_s[0] * sizes[0] / gpus
    if len(sizes) == 1:
        return unit_s[0]
    piece = 1
    while piece < len(sizes) - 1 and sizes[piece] < gpus:
        piece += 1
    if unit_s[piece] >= unit_s[piece - 1]:
        return unit_s[piece - 1]  # the least is taken anyway, and a rising line may overflow
    slope = math.log(unit_s[piece] / unit_s[piece - 1]) / math.log(sizes[piece] / sizes[piece - 1])
    return float(unit_s[piece - 1] * (gpus / sizes[piece - 1]) ** slope)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanStage:
    """Trials between two comparisons."""

    trials: int
    units: int  # epochs or samples, of one trial in this stage


Experiment = tuple[PlanStage, ...]


def sha_stages(trials: int, least: int, most: int, eta: int) -> Experiment:
    """Return SHA(n, r, R, eta) as the paper has it (section 3.1, Fig. 6).

    Stage k adds least * eta**k units to each of floor(trials / eta**k) trials; the last stage adds
    what is missing to ``most``. (``ladder`` is the usual rule, in which these are the sums.)

    Raises:
        ValueError: an argument is out of its range.
    """
    if trials < 1 or least < 1 or most < least or eta < 2:
        raise ValueError("trials >= 1, 1 <= least <= most and eta >= 2 are required")
    stages: list[PlanStage] = []
    trials_left, step, units_left = trials, least, most
    while trials_left >= 1 and units_left > 0:
        is_last = trials_left // eta < 1
        units = min(step, units_left)
        if is_last:
            units = units_left
        stages.append(PlanStage(trials=trials_left, units=units))
        trials_left, step, units_left = trials_left // eta, step * eta, units_left - units
    return tuple(stages)


class Billing(enum.StrEnum):
    """The resource that is paid for."""

    INSTANCE = "instance"  # the time for which one has it
    FUNCTION = "function"  # the GPUs that train, and its initialisation


@dataclass(frozen=True, slots=True, kw_only=True)
class Cloud:
    """One kind of instance."""

    gpus_per_instance: int = 1
    price_h: float = 1.0  # of an instance, an hour
    billing: Billing = Billing.INSTANCE
    minimum_s: float = 0.0  # an instance costs at least as much as for this long
    scale_s: float = 0.0  # from the request until it is there; not billed
    init_s: float = 0.0  # until it is usable; billed
    data_price: float = 0.0  # each new instance downloads the data for this

    @property
    def price_s(self) -> float:
        """Price of an instance, a second."""
        return self.price_h / 3600.0

    @property
    def is_free_to_grow(self) -> bool:
        """Return whether new instances cost no time and no money, so that none is worth keeping."""
        return self.scale_s == 0.0 and self.init_s == 0.0 and self.data_price == 0.0

    def instances(self, gpus: int) -> int:
        """Return how many instances have so many GPUs."""
        return -(-gpus // self.gpus_per_instance)


@dataclass(frozen=True, slots=True, kw_only=True)
class RungStage:
    """A stage of a rule: a rung of one of its brackets."""

    bracket: int
    budget: int  # units of a trial since its beginning
    trials: int
    units: int  # of a trial in this stage


def rung_stages(rule: StudyRule) -> tuple[RungStage, ...]:
    """Return the stages of a rule in which all trials of a rung wait for each other.

    Brackets of Hyperband come one after another.

    Raises:
        ValueError: the rule compares trials at different times.
    """
    if isinstance(rule, Sha):
        brackets: tuple[tuple[Rung, ...], ...] = (
            ladder(rule.trials, rule.least, rule.most, rule.eta),
        )
    elif isinstance(rule, Hyperband):
        brackets = rule.brackets()
    elif isinstance(rule, Full):
        brackets = ((Rung(trials=rule.trials, budget=rule.most),),)
    else:
        name = rule.describe()["name"]
        raise ValueError(f"{name} has no stages that all trials end together")  # noqa: TRY004
    stages: list[RungStage] = []
    for bracket, rungs in enumerate(brackets):
        budget_below = 0
        for rung in rungs:
            units = rung.budget - budget_below
            budget_below = rung.budget
            if rung.trials > 0:
                stages.append(
                    RungStage(bracket=bracket, budget=rung.budget, trials=rung.trials, units=units)
                )
    return tuple(stages)


def experiment_of(stages: tuple[RungStage, ...]) -> Experiment:
    """Return what the planner knows of them."""
    return tuple(PlanStage(trials=stage.trials, units=stage.units) for stage in stages)
