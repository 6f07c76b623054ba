"""Plays a rule over given learning curves on a virtual clock, with a fixed number of workers. Pure.

Every report and every end of a budget is an event; after each the rule is asked until it wants
nothing more.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from bftrainer.study.trials import Start, StudyRule, StudyTrial, TrialStage, TrialValue, Verdicts


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """What a configuration reports when it is trained on one worker."""

    points: tuple[tuple[int, float], ...]  # units trained, value to be minimised; ascending
    unit_s: float = 1.0  # to train one unit
    fails_at: int | None = None  # units; None: it does not


@dataclass(frozen=True, slots=True, kw_only=True)
class Parent:
    """Whose state a trial starts from, and which."""

    number: int
    units: int  # at which it was last heard of


Draw = Callable[[int, Parent | None], Curve]


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """How a study went."""

    trials: tuple[StudyTrial, ...]
    took_s: float
    units: float  # trained by all trials together
    calls: int  # of the rule
    is_over: bool  # the rule said so; otherwise it is stuck

    @property
    def complete(self) -> tuple[StudyTrial, ...]:
        """Trials that reached the full budget."""
        return tuple(trial for trial in self.trials if trial.stage is TrialStage.COMPLETE)

    @property
    def best(self) -> tuple[float, int] | None:
        """Least last value of a complete trial, and its number."""
        ends = [(trial.values[-1].value, trial.number) for trial in self.complete if trial.values]
        return min(ends, default=None)


def play(rule: StudyRule, draw: Draw, workers: int) -> Played:
    """Play a rule to its end.

    Args:
        rule: to be played.
        draw: returns the curve of a trial by its number and its parent, from whose units it goes
            on.
        workers: how many trials are active at once; each trains one unit in its ``unit_s``.

    Raises:
        ValueError: the rule grants more than there is room for, or grows a trial that is not
            waiting.
    """
    play_ = _Play(rule=rule, draw=draw, workers=workers)
    play_.act()
    while play_.due:
        at_s, number, token = heapq.heappop(play_.due)
        if play_.tokens[number] == token:
            play_.now_s = at_s
            play_.happen(number)
            play_.act()
    return Played(
        trials=tuple(play_.trials),
        took_s=play_.now_s,
        units=play_.units,
        calls=play_.calls,
        is_over=play_.is_over,
    )


@dataclass(slots=True, kw_only=True)
class _Play:
    rule: StudyRule
    draw: Draw
    workers: int
    now_s: float = 0.0
    units: float = 0.0
    calls: int = 0
    is_over: bool = False
    trials: list[StudyTrial] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)
    trained: list[int] = field(default_factory=list)  # units at a trial's last event
    since_s: list[float] = field(default_factory=list)  # when that was
    tokens: list[int] = field(default_factory=list)  # a trial's newest entry in ``due``
    due: list[tuple[float, int, int]] = field(default_factory=list)  # when, who, token

    def act(self) -> None:
        """Ask the rule and do what it wants until it wants nothing more."""
        while True:
            room = self.workers - sum(trial.stage is TrialStage.ACTIVE for trial in self.trials)
            verdicts = self.rule.verdicts(tuple(self.trials), room)
            self.calls += 1
            self.is_over = verdicts.is_over
            if not (verdicts.grow or verdicts.stop or verdicts.start):
                return
            self._carry_out(verdicts, room)

    def _carry_out(self, verdicts: Verdicts, room: int) -> None:
        if len(verdicts.grow) + len(verdicts.start) > room:
            raise ValueError(f"more than {room} grown and started")
        for number in verdicts.stop:
            self._stop(number)
        for number, budget in verdicts.grow.items():
            trial = self.trials[number]
            if trial.stage is not TrialStage.WAITING or budget <= trial.budget:
                raise ValueError(f"trial {number} is {trial.stage} and cannot grow to {budget}")
            self.trials[number] = replace(trial, stage=TrialStage.ACTIVE, budget=budget)
            self._schedule(number)
        for start in verdicts.start:
            self._start(start)

    def _stop(self, number: int) -> None:
        trial = self.trials[number]
        if trial.stage.is_over:
            raise ValueError(f"trial {number} is {trial.stage} and cannot be stopped")
        if trial.stage is TrialStage.ACTIVE:  # what it has begun is lost
            self.units += (self.now_s - self.since_s[number]) / self.curves[number].unit_s
        self.trials[number] = replace(trial, stage=TrialStage.STOPPED)
        self.tokens[number] += 1

    def _start(self, start: Start) -> None:
        number, parent = len(self.trials), None
        if start.parent is not None:
            parent = Parent(number=start.parent, units=self.trained[start.parent])
        self.curves.append(self.draw(number, parent))
        self.trained.append(parent.units if parent else 0)
        self.since_s.append(self.now_s)
        self.tokens.append(0)
        self.trials.append(
            StudyTrial(
                number=number,
                stage=TrialStage.ACTIVE,
                budget=start.budget,
                bracket=start.bracket,
                parent=start.parent,
            )
        )
        self._schedule(number)

    def _schedule(self, number: int) -> None:
        trained, curve = self.trained[number], self.curves[number]
        self.since_s[number] = self.now_s
        self.tokens[number] += 1
        took_s = (self._next(number) - trained) * curve.unit_s
        heapq.heappush(self.due, (self.now_s + took_s, number, self.tokens[number]))

    def _next(self, number: int) -> int:
        """Return the units at which a trial is heard of again."""
        trained, curve, budget = (
            self.trained[number],
            self.curves[number],
            self.trials[number].budget,
        )
        ends = budget if curve.fails_at is None else min(budget, max(curve.fails_at, trained))
        return next((units for units, _ in curve.points if trained < units <= ends), ends)

    def happen(self, number: int) -> None:
        """Let a trial report, use up its budget or fail."""
        trial, curve, units = self.trials[number], self.curves[number], self._next(number)
        self.units += units - self.trained[number]
        values = trial.values
        value = next((value for at, value in curve.points if at == units), None)
        if value is not None and units > self.trained[number]:
            values = (*values, TrialValue(units=units, value=value, order=self.now_s))
        self.trained[number] = units
        stage = TrialStage.ACTIVE
        if curve.fails_at is not None and units >= curve.fails_at:
            stage = TrialStage.FAILED
        elif units >= self.rule.most:
            stage = TrialStage.COMPLETE
        elif units >= trial.budget:
            stage = TrialStage.WAITING
        self.trials[number] = replace(trial, stage=stage, values=values)
        if stage is TrialStage.ACTIVE:
            self._schedule(number)
