"""The rules that stop, continue and start trials, by name; rungs of successive halving. Pure."""

from __future__ import annotations

import difflib
import hashlib
import math
from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from operator import attrgetter
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np

from bftrainer.model.quantities import quantity
from bftrainer.study.trials import CountedRule, Start, StudyTrial, TrialStage, TrialValue, Verdicts

_UNITS = attrgetter("units")
_QUARTER = 4  # pbt replaces the worst quarter from the best one


class _Arrival(NamedTuple):
    """The first report of a trial at or beyond a rung; arrivals are in order of time."""

    order: float
    number: int  # of the trial
    rung: int
    value: float


# ---- trials at a rung ------------------------------------------------------------------


def has_reached(trial: StudyTrial, budget: int) -> bool:
    """Tell whether a trial has trained up to a budget.

    One that failed on the way has not, unless it reported a value at the budget itself.
    """
    if trial.budget != budget:
        return trial.budget > budget
    if trial.stage in (TrialStage.ACTIVE, TrialStage.FAILED):
        return bool(trial.values) and trial.values[-1].units >= budget
    return True


def value_at(trial: StudyTrial, budget: int) -> float | None:
    """Return the value with which a trial is compared at a rung; None: it has not reached it.

    Failures and what is not a number (a loss that diverged) count as infinite, which no rule
    promotes. A program that counts whole steps reports its value a little beyond the budget.
    """
    if not has_reached(trial, budget):
        is_lost = trial.stage is TrialStage.FAILED and trial.budget == budget
        return math.inf if is_lost else None
    last_units: float = math.inf  # of the value with which it stands at the rung
    if trial.budget != budget:
        last_units = trial.stood.get(budget, budget)
    count = bisect_right(trial.values, last_units, key=_UNITS)
    if count == 0:
        return None
    value = trial.values[count - 1].value
    return math.inf if math.isnan(value) else value


def best_first(trials: Iterable[StudyTrial], budget: int) -> list[tuple[float, int]]:
    """Return value and number of the trials that have a value at a rung, ties by number."""
    standing: list[tuple[float, int]] = []
    for trial in trials:
        value = value_at(trial, budget)
        if value is not None:
            standing.append((value, trial.number))
    return sorted(standing)


def rung_of(trial: StudyTrial, budgets: list[int]) -> int:
    """Return the rung that a trial trains for or has reached."""
    return max(bisect_right(budgets, trial.budget) - 1, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """Trials that train up to the same budget."""

    trials: int  # at most, once all that began below have been compared
    budget: int  # units (epochs or samples) of one trial since its beginning


def ladder(trials: int, least: int, most: int, eta: int) -> tuple[Rung, ...]:
    """Return the rungs of successive halving, lowest first (Jamieson and Talwalkar 2016).

    Rung k has floor(trials / eta**k) trials and the budget least * eta**k; the last one, where
    one trial is left or the next budget would pass ``most``, has the budget ``most``.

    Args:
        trials: at the lowest rung, at least 1.
        least: budget of the lowest rung, at least 1.
        most: full budget of a trial, at least ``least``.
        eta: of ``eta`` trials one is promoted, at least 2.

    Raises:
        ValueError: an argument is out of its range.
    """
    if trials < 1 or least < 1 or most < least or eta < 2:
        raise ValueError("trials >= 1, 1 <= least <= most and eta >= 2 are required")
    rungs: list[Rung] = []
    trials_left, budget = trials, least
    while trials_left // eta >= 1 and budget * eta <= most:
        rungs.append(Rung(trials=trials_left, budget=budget))
        trials_left, budget = trials_left // eta, budget * eta
    return (*rungs, Rung(trials=trials_left, budget=most))


# ---- rules -----------------------------------------------------------------------------


class _Rule:
    """The part that all rules share; each is a dataclass of its settings."""

    name: ClassVar[str]
    bounds: ClassVar[Mapping[str, int | str]]  # the least value, or the setting that is the least
    trials: int
    most: int

    def __post_init__(self) -> None:
        """Refuse settings that are too small (ValueError); the message names one."""
        for name, limit in self.bounds.items():
            value = getattr(self, name)
            bound = getattr(self, limit) if isinstance(limit, str) else limit
            if value < bound:
                raise ValueError(f"{name} is {value}; at least {bound} is required")

    @property
    def wanted(self) -> int:
        """Trials that it starts without another one's state."""
        return self.trials

    def describe(self) -> Mapping[str, Any]:
        """Return the rule's name and settings."""
        return {"name": self.name, **asdict(self)}  # type: ignore[call-overload]  # it is one


@dataclass(frozen=True, kw_only=True)
class Full(_Rule):
    """Every trial trains to the full budget."""

    name: ClassVar[str] = "none"
    bounds: ClassVar = {"trials": 1, "most": 1}

    trials: int
    most: int

    def verdicts(self, trials: Sequence[StudyTrial], room: int) -> Verdicts:
        """Grow trials that have less than the full budget, then start new ones."""
        return _train_fully(self, trials, room, {})


def _train_fully(
    rule: _Rule, trials: Sequence[StudyTrial], room: int, stop: Mapping[int, str]
) -> Verdicts:
    """Give each trial that is not stopped the full budget, then start what is missing."""
    living = _living(trials, stop)
    waiting = [trial.number for trial in _waiting(living)]
    grow = dict.fromkeys(waiting[: max(room, 0)], rule.most)
    missing = rule.trials - len(trials)
    return Verdicts(
        grow=grow,
        stop=stop,
        start=(Start(budget=rule.most),) * max(min(missing, room - len(grow)), 0),
        is_over=missing <= 0 and not living,
    )


def _living(trials: Sequence[StudyTrial], stop: Mapping[int, str]) -> list[StudyTrial]:
    """Return the trials that are not over, without those that are to stop."""
    return [trial for trial in trials if not trial.stage.is_over and trial.number not in stop]


def _waiting(trials: Sequence[StudyTrial]) -> list[StudyTrial]:
    return [trial for trial in trials if trial.stage is TrialStage.WAITING]


def _budgets(rungs: Sequence[Rung]) -> list[int]:
    return [rung.budget for rung in rungs]


@dataclass(frozen=True, kw_only=True)
class _Halving(_Rule):
    """The settings of ``asha``, ``sha`` and ``stopping``."""

    bounds: ClassVar = {"trials": 1, "least": 1, "most": "least", "eta": 2}

    trials: int
    least: int = 1
    most: int
    eta: int = 3


@dataclass(frozen=True, kw_only=True)
class Asha(_Halving):
    """Asynchronous successive halving by promotion (Li et al. 2020, Algorithm 2).

    A trial waits at each rung. Whenever there is room, the best that may go on does, highest rung
    first: it has to be among the top floor(n / eta) of the n trials with a value at the rung. If
    there is none, a new trial starts.
    """

    name: ClassVar[str] = "asha"

    def verdicts(self, trials: Sequence[StudyTrial], room: int) -> Verdicts:
        """Promote, then start; at the end stop trials that cannot be promoted any more."""
        budgets = _budgets(ladder(self.trials, self.least, self.most, self.eta))
        promotions = list(self.promotable(trials, budgets))
        grow = dict(promotions[: max(room, 0)])
        missing = self.trials - len(trials)
        may_climb = any(
            trial.stage is TrialStage.ACTIVE and trial.budget < self.most for trial in trials
        )
        is_over = missing <= 0 and not promotions and not may_climb
        stop: dict[int, str] = {}
        if is_over:
            for trial in _waiting(trials):
                stop[trial.number] = f"It is not among the best at the rung of {trial.budget}."
        return Verdicts(
            grow=grow,
            stop=stop,
            start=(Start(budget=budgets[0]),) * max(min(missing, room - len(grow)), 0),
            is_over=is_over,
        )

    def promotable(
        self, trials: Sequence[StudyTrial], budgets: list[int]
    ) -> Iterator[tuple[int, int]]:
        """Yield the trials that may go on, each with its budget, highest rung first, best first."""
        rung_by_trial = {trial.number: rung_of(trial, budgets) for trial in trials}
        waiting = {trial.number for trial in _waiting(trials)}
        for rung in range(len(budgets) - 2, -1, -1):
            reached = [trial for trial in trials if rung_by_trial[trial.number] >= rung]
            standing = best_first(reached, budgets[rung])
            for value, number in standing[: len(standing) // self.eta]:
                if number in waiting and rung_by_trial[number] == rung and value < math.inf:
                    yield number, budgets[rung + 1]


@dataclass(frozen=True, kw_only=True)
class Sha(_Halving):
    """One bracket of synchronous successive halving (Jamieson and Talwalkar 2016).

    All trials of a rung are compared once each of them has a value or is over. The top
    floor(n / eta) of the n that began go on, at least one, and the others are stopped. Failed ones
    and those without a value count among the n, but never go on.
    """

    name: ClassVar[str] = "sha"

    def verdicts(self, trials: Sequence[StudyTrial], room: int) -> Verdicts:
        """Compare the lowest rung that is not settled."""
        return _halve(trials, ladder(self.trials, self.least, self.most, self.eta), self.eta, room)


def _halve(
    trials: Sequence[StudyTrial], rungs: Sequence[Rung], eta: int, room: int, bracket: int = 0
) -> Verdicts:
    """Judge the trials of one bracket."""
    missing = rungs[0].trials - len(trials)
    if missing > 0:
        start = Start(budget=rungs[0].budget, bracket=bracket)
        return Verdicts(start=(start,) * max(min(missing, room), 0))
    budgets = _budgets(rungs)
    by_rung = defaultdict[int, list[StudyTrial]](list)
    for trial in trials:
        by_rung[rung_of(trial, budgets)].append(trial)
    beyond = len(trials)  # trials at higher rungs than the one that is looked at
    for rung, budget in enumerate(budgets[:-1]):
        rung_trials = by_rung[rung]
        beyond -= len(rung_trials)
        if any(trial.stage is TrialStage.ACTIVE for trial in rung_trials):
            return Verdicts()
        waiting = _waiting(rung_trials)
        if not waiting:
            continue
        began = beyond + len(rung_trials)
        places = max(began // eta, 1)
        best = best_first(waiting, budget)[: max(places - beyond, 0)]
        promoted = [number for value, number in best if value < math.inf]
        why = f"It is not among the best {places} of {began} at {budget}."
        stop = {trial.number: why for trial in waiting}
        for number in promoted:
            del stop[number]
        return Verdicts(
            grow=dict.fromkeys(promoted[: max(room, 0)], budgets[rung + 1]),
            stop=stop,
            is_over=not promoted and not beyond,
        )
    return Verdicts(is_over=True)


@dataclass(frozen=True, kw_only=True)
class Hyperband(_Rule):
    """Brackets of successive halving, from many short trials to few full ones (Li et al. 2017).

    Bracket i of 0 .. s_max, with s = s_max - i, starts ceil((s_max + 1) / (s + 1) * eta**s) trials
    with the budget most / eta**s (Algorithm 1). With more trials than these the brackets are
    repeated; the last one has what is left. A bracket starts as soon as those before it leave room.
    """

    name: ClassVar[str] = "hyperband"
    bounds: ClassVar = {"trials": 0, "least": 1, "most": "least", "eta": 2}

    trials: int = 0  # in all brackets; 0: one pass
    least: int = 1
    most: int
    eta: int = 3

    @property
    def wanted(self) -> int:
        """Trials that it starts."""
        return sum(rungs[0].trials for rungs in self.brackets())

    def brackets(self) -> tuple[tuple[Rung, ...], ...]:
        """Return the rungs of each bracket, in the order in which they start."""
        s_max = 0
        while self.least * self.eta ** (s_max + 1) <= self.most:
            s_max += 1
        first_trials = [self._first_trials(s, s_max) for s in range(s_max, -1, -1)]
        trials_left = self.trials or sum(first_trials)
        brackets: list[tuple[Rung, ...]] = []
        while trials_left > 0:
            index = len(brackets) % len(first_trials)
            count = min(first_trials[index], trials_left)
            brackets.append(tuple(self._bracket(s_max - index, count)))
            trials_left -= first_trials[index]
        return tuple(brackets)

    def _first_trials(self, s: int, s_max: int) -> int:
        """Return ceil((s_max + 1) / (s + 1) * eta**s)."""
        trials: int = -(-(s_max + 1) * self.eta**s // (s + 1))
        return trials

    def _bracket(self, s: int, trials: int) -> Iterator[Rung]:
        """Yield the s + 1 rungs of a bracket that starts so many trials."""
        for rung in range(s + 1):
            budget = self.most // self.eta ** (s - rung)
            yield Rung(trials=trials // self.eta**rung, budget=budget)

    def verdicts(self, trials: Sequence[StudyTrial], room: int) -> Verdicts:
        """Judge each bracket by itself; earlier ones take the room first."""
        grow: dict[int, int] = {}
        stop: dict[int, str] = {}
        start: list[Start] = []
        is_over = True
        by_bracket = defaultdict[int, list[StudyTrial]](list)
        for trial in trials:
            by_bracket[trial.bracket].append(trial)
        for bracket, rungs in enumerate(self.brackets()):
            room_left = room - len(grow) - len(start)
            verdicts = _halve(by_bracket[bracket], rungs, self.eta, room_left, bracket)
            grow |= verdicts.grow
            stop |= verdicts.stop
            start += verdicts.start
            is_over = is_over and verdicts.is_over
        return Verdicts(grow=grow, stop=stop, start=tuple(start), is_over=is_over)


@dataclass(frozen=True, kw_only=True)
class Stopping(_Halving):
    """Asynchronous successive halving without waiting.

    Every trial has the full budget. With its first report at or beyond a rung it is compared with
    all reports there so far, its own included: it is stopped unless its value is among the best
    max(1, floor(n / eta)). So does Optuna's SuccessiveHalvingPruner (release 5.0). Reports are
    judged in the order in which they were made, however many come in between two calls.
    """

    name: ClassVar[str] = "stopping"

    def verdicts(self, trials: Sequence[StudyTrial], room: int) -> Verdicts:
        """Stop the active trials that have fallen behind, and start new ones."""
        behind = self._behind(trials)
        stop: dict[int, str] = {}
        for trial in trials:
            if not trial.stage.is_over and trial.number in behind:
                stop[trial.number] = behind[trial.number]
        return _train_fully(self, trials, room, stop)

    def _behind(self, trials: Sequence[StudyTrial]) -> dict[int, str]:
        """Return the trials that fell behind, and where, from all reports anew."""
        budgets = [self.least]
        while budgets[-1] * self.eta < self.most:
            budgets.append(budgets[-1] * self.eta)
        values_at = defaultdict[int, list[float]](list)  # rung -> ascending values so far
        behind: dict[int, str] = {}
        for arrival in _arrivals(trials, budgets):
            budget, value = budgets[arrival.rung], arrival.value
            if arrival.number in behind:
                continue
            if math.isnan(value):
                behind[arrival.number] = f"It reported no number at {budget}."
                continue
            values = values_at[arrival.rung]
            insort(values, value)
            count = len(values)
            if value > values[max(count // self.eta, 1) - 1]:
                place = bisect_left(values, value) + 1
                behind[arrival.number] = f"Its value was number {place} of {count} at {budget}."
        return behind


def _arrivals(trials: Sequence[StudyTrial], budgets: Sequence[int]) -> list[_Arrival]:
    """Return the first report of each trial at or beyond each rung, in the order of reports."""
    arrivals: list[_Arrival] = []
    for trial in trials:
        for rung, budget in enumerate(budgets):
            place = bisect_left(trial.values, budget, key=_UNITS)
            if place == len(trial.values):
                break  # it has not come so far
            value = trial.values[place]
            arrivals.append(_Arrival(value.order, trial.number, rung, value.value))
    return sorted(arrivals)


@dataclass(frozen=True, kw_only=True)
class Median(_Rule):
    """Median stopping (after Golovin et al. 2017).

    Every trial has the full budget. It is stopped when its best value so far is worse than the
    median of what the trials that were complete by then had reported at the same units. So does
    Optuna's MedianPruner (release 5.0). A trial is judged by its newest report.
    """

    name: ClassVar[str] = "median"
    bounds: ClassVar = {"trials": 1, "most": 1, "startup_trials": 0, "warmup": 0, "interval": 1}

    trials: int
    most: int
    startup_trials: int = 5  # nobody is stopped before so many are complete
    warmup: int = 0  # nor before so many units
    interval: int = 1  # units between two judgements of a trial

    def verdicts(self, trials: Sequence[StudyTrial], room: int) -> Verdicts:
        """Stop the active trials that are worse than the median, and start new ones."""
        due = [trial for trial in _living(trials, {}) if self._is_due(trial.values)]
        return _train_fully(self, trials, room, self._worse(trials, due))

    def _is_due(self, values: Sequence[TrialValue]) -> bool:
        """Tell whether the newest report is the first of an interval."""
        if not values or values[-1].units < self.warmup:
            return False
        past = (values[-1].units - self.warmup) // self.interval * self.interval + self.warmup
        return len(values) == 1 or values[-2].units < past

    def _worse(self, trials: Sequence[StudyTrial], due: Sequence[StudyTrial]) -> dict[int, str]:
        """Return the trials that are worse than the median."""
        complete = [trial for trial in trials if _ended_with_number(trial)]
        complete.sort(key=_end)
        ends = list(map(_end, complete))
        worse: dict[int, str] = {}
        reported = _values_at_units(complete, {trial.values[-1].units for trial in due})
        medians: dict[tuple[int, int], float] = {}
        for trial in due:
            units = trial.values[-1].units
            count = bisect_left(ends, _end(trial))  # trials that were complete by then
            if count < max(self.startup_trials, 1):
                continue
            key = units, count
            if key not in medians:
                medians[key] = _median(reported[units][:count])
            numbers = [value.value for value in trial.values if not math.isnan(value.value)]
            if not numbers:
                worse[trial.number] = "It has reported no number."
            elif min(numbers) > medians[key]:
                best = quantity(min(numbers), 6)
                median = f"the median at {units} is {quantity(medians[key], 6)}"
                worse[trial.number] = f"Its best value is {best}, {median}."
        return worse


def _end(trial: StudyTrial) -> tuple[float, int]:
    """Return when a trial reported last; equal times go by its number."""
    return trial.values[-1].order, trial.number


def _ended_with_number(trial: StudyTrial) -> bool:
    """Return whether a trial is complete, and its last value is a number."""
    if trial.stage is not TrialStage.COMPLETE or not trial.values:
        return False
    return not math.isnan(trial.values[-1].value)


def _values_at_units(complete: Sequence[StudyTrial], units: set[int]) -> dict[int, list[float]]:
    """Return what complete trials reported at some units, in the order of their ends."""
    reported = {unit: [math.nan] * len(complete) for unit in units}
    if reported:
        for index, trial in enumerate(complete):
            for value in trial.values:
                if value.units in reported:
                    reported[value.units][index] = value.value
    return reported


def _median(values: list[float]) -> float:
    """Return the median of what is a number; NaN, which nothing is worse than, if nothing is.

    Between infinite values, too, it is NaN, as for Optuna's pruner.
    """
    array = np.array(values)
    array = array[~np.isnan(array)]
    if len(array) == 0:
        return math.nan
    with np.errstate(invalid="ignore"):
        return float(np.percentile(array, 50))


@dataclass(frozen=True, kw_only=True)
class Pbt(_Rule):
    """Population based training (Jaderberg et al. 2017): the worst take over from the best.

    A trial waits after each interval. If it is among the worst quarter of those with a value
    there, it is stopped, and a new trial with the state and the changed parameters of one of the
    best quarter takes its place; otherwise it trains on. A trial stopped by the user is replaced,
    too; one that failed is not. Choices are drawn from the study's seed and what the trials show.
    """

    name: ClassVar[str] = "pbt"
    bounds: ClassVar = {"population": 1, "interval": 1, "most": "interval", "minimum": _QUARTER}

    population: int
    interval: int
    most: int
    minimum: int = _QUARTER  # values at the end of an interval, before anybody is replaced
    seed: int = 0

    @property
    def wanted(self) -> int:
        """Trials that it starts without another one's state."""
        return self.population

    def verdicts(self, trials: Sequence[StudyTrial], room: int) -> Verdicts:
        """Stop the worst, start what is missing, then let those that trained least go on."""
        stop = self._worst(trials)
        room = max(room, 0)
        missing = self.population - sum(trial.parent is None for trial in trials)
        heirs = self._heirs(trials, stop)
        newcomers = [Start(budget=self.interval)] * max(min(missing, room), 0)
        start = (newcomers + heirs)[:room]
        living = _living(trials, stop)
        waiting = _waiting(living)
        waiting.sort(key=attrgetter("budget", "number"))
        growing = waiting[: room - len(start)]
        return Verdicts(
            grow={trial.number: self._next(trial.budget) for trial in growing},
            stop=stop,
            start=tuple(start),
            is_over=missing <= 0 and not heirs and not living,
        )

    def _next(self, budget: int) -> int:
        return min(budget + self.interval, self.most)

    def _worst(self, trials: Sequence[StudyTrial]) -> dict[int, str]:
        """Return the trials to replace, if there is a trial to replace them."""
        stop: dict[int, str] = {}
        waiting = _waiting(trials)
        for budget in {trial.budget for trial in waiting}:
            standing = self._standing(trials, budget)
            quarter = len(standing) // _QUARTER
            if not self._parents(trials, standing):
                continue
            worst = {number for _, number in standing[-quarter:]}
            why = f"It is among the worst {quarter} of {len(standing)} at {budget}."
            for trial in waiting:
                if trial.budget == budget and trial.number in worst:
                    stop[trial.number] = why
        return stop

    def _standing(self, trials: Sequence[StudyTrial], budget: int) -> list[tuple[float, int]]:
        """Return the trials that are compared at a budget, best first; failed ones are not."""
        compared = [trial for trial in trials if trial.stage is not TrialStage.FAILED]
        return best_first(compared, budget)

    def _heirs(self, trials: Sequence[StudyTrial], stop: Mapping[int, str]) -> list[Start]:
        """Return the trials that are to replace those that were or are stopped."""
        replaced, stopped = 0, len(stop)
        for trial in trials:
            replaced += trial.parent is not None
            stopped += trial.stage is TrialStage.STOPPED
        if stopped <= replaced:
            return []
        remaining = [trial for trial in trials if trial.number not in stop]
        for budget in sorted({trial.budget for trial in trials}, reverse=True):
            parents = self._parents(remaining, self._standing(trials, budget))
            if parents:  # the newest comparison that counts
                return [self._heir(parents, number) for number in range(replaced, stopped)]
        return []

    def _parents(
        self, trials: Sequence[StudyTrial], standing: Sequence[tuple[float, int]]
    ) -> list[StudyTrial]:
        """Return the trials of the best quarter whose state has something left to train."""
        if len(standing) < self.minimum:
            return []
        quarter = standing[: len(standing) // _QUARTER]
        best = {number for value, number in quarter if value < math.inf}
        parents: list[StudyTrial] = []
        for trial in trials:
            is_trained = trial.stage is not TrialStage.ACTIVE and trial.budget >= self.most
            if trial.number in best and not trial.stage.is_over and not is_trained:
                parents.append(trial)
        return parents

    def _heir(self, parents: Sequence[StudyTrial], number: int) -> Start:
        """Return the replacement with a number, which trains to its parent's next end."""
        digest = hashlib.sha256(f"{self.seed} {number}".encode()).digest()
        parent = parents[int.from_bytes(digest[:8], "big") % len(parents)]
        budget = parent.budget
        if parent.stage is TrialStage.WAITING:
            budget = self._next(budget)
        return Start(budget=budget, parent=parent.number)


# ---- rules by name ---------------------------------------------------------------------

_CLASSES = (Asha, Hyperband, Median, Full, Pbt, Sha, Stopping)
RULES: Final = {rule.name: rule for rule in _CLASSES}


def keys_of(name: str) -> dict[str, int | None]:
    """Return the settings of a rule and their defaults; None: it is required."""
    defaults: dict[str, int | None] = {}
    for setting in fields(RULES[name]):
        defaults[setting.name] = None if setting.default is MISSING else setting.default
    return defaults


def rule_of(settings: Mapping[str, Any]) -> CountedRule:
    """Return the rule that a study document asks for; ``describe`` is the way back.

    Raises:
        ValueError: names the setting that is missing, unknown or out of its range.
    """
    name = settings.get("name")
    if name is None:
        raise ValueError(f"name is missing; one of {', '.join(RULES)}")
    if not isinstance(name, str) or name not in RULES:
        raise ValueError(f"name is {name!r}; {_suggestion(str(name), list(RULES))}")
    defaults = keys_of(name)
    chosen_settings = dict(settings)
    del chosen_settings["name"]
    for key, value in chosen_settings.items():
        if key not in defaults:
            raise ValueError(
                f"{key} is not a setting of {name}; {_suggestion(key, list(defaults))}"
            )
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"{key} is {value!r}; a whole number is required")  # noqa: TRY004
    for key, default in defaults.items():
        if default is None and key not in chosen_settings:
            raise ValueError(f"{key} is missing; {name} needs it")
    return RULES[name](**chosen_settings)


def _suggestion(word: str, names: list[str]) -> str:
    matches = difflib.get_close_matches(word[:80], names, n=1)
    if matches:
        return f"did you mean {matches[0]}?"
    return f"one of {', '.join(names)}"
