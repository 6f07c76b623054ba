"""The trials of a simulated study: trainers whose budget grows, and what they report.

``Trials.hear`` takes reports from the trainers, ``Trials.judge`` asks the rule and carries its
verdicts out, as ``bftrainer.study``'s loop does with a daemon's.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from _bench.studies.curves import LearningCurves
from bftrainer.lab.simulator.trainers import SimTrainer
from bftrainer.lab.workloads import Submission
from bftrainer.study.trials import Start, StudyRule, StudyTrial, TrialStage, TrialValue


@dataclass(frozen=True, slots=True, kw_only=True)
class SimStudy:
    """A study to simulate."""

    rule: StudyRule
    curves: LearningCurves  # at least as many as the rule starts trials
    trial: Submission  # what they all are, but for their samples
    unit_samples: float  # of an epoch
    parallel: int  # so many may be active at once
    reports: tuple[int, ...]  # units at which a trial reports its error, ascending


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """Something that happened to a trial."""

    at_s: float
    number: int
    stage: TrialStage  # since then
    units: int  # granted if it is active, else trained
    value: float | None = None  # reported at that instant


@dataclass(slots=True, kw_only=True)
class SimTrial:
    """One trial."""

    trainer: SimTrainer
    seen: StudyTrial  # as the rule sees it


@dataclass(slots=True, kw_only=True)
class Trials:
    """All trials of a study, the rule's verdicts, and what happened."""

    study: SimStudy
    make: Callable[[Submission, int], SimTrainer]
    every: list[SimTrial] = field(default_factory=list)
    course: list[Happening] = field(default_factory=list)
    rule_s: list[float] = field(default_factory=list)  # wall time of each call
    over_s: float | None = None  # when nothing was left to do
    _reports: int = 0
    _by_trainer: dict[str, SimTrial] = field(default_factory=dict)

    @property
    def active(self) -> list[SimTrainer]:
        """Trainers that may run, in order of their trials."""
        return [one.trainer for one in self.every if one.seen.stage is TrialStage.ACTIVE]

    def hear(self, reached: Iterable[SimTrainer], now_s: float) -> None:
        """Take the reports of trainers that have reached their goal."""
        for trainer in reached:
            one = self._by_trainer[trainer.trainer_id]
            units = self._units_at(trainer.goal)
            error = self.study.curves.error(one.seen.number, units)
            self._reports += 1
            value = TrialValue(units=units, value=error, order=float(self._reports))
            stage = TrialStage.ACTIVE
            if units >= one.seen.budget:
                is_all = units >= self.study.rule.most
                stage = TrialStage.COMPLETE if is_all else TrialStage.WAITING
            one.seen = replace(one.seen, stage=stage, values=(*one.seen.values, value))
            self._note(one, now_s, units, error)
            self._set_goal(one)

    def judge(self, now_s: float) -> None:
        """Ask the rule until it wants nothing more."""
        while True:
            seen = tuple([one.seen for one in self.every])
            room = self.study.parallel - sum([one.stage is TrialStage.ACTIVE for one in seen])
            began = time.perf_counter()
            said = self.study.rule.verdicts(seen, room)
            self.rule_s.append(time.perf_counter() - began)
            if not (said.grow or said.stop or said.start):
                break
            for number in said.stop:
                self._turn(
                    self.every[number], TrialStage.STOPPED, self.every[number].seen.budget, now_s
                )
            for number, budget in said.grow.items():
                self._turn(self.every[number], TrialStage.ACTIVE, budget, now_s)
            for start in said.start:
                self._start(start, now_s)
        if not any(one.stage is TrialStage.ACTIVE for one in seen):
            self.over_s = now_s

    def _start(self, start: Start, now_s: float) -> None:
        if start.parent is not None:
            raise ValueError("what a perturbed configuration would learn is not known")
        if start.nodes is not None:
            raise ValueError("trials whose sizes a plan says are not simulated")
        number = len(self.every)
        submission = replace(self.study.trial, name=f"{self.study.trial.name}-{number:05d}")
        seen = StudyTrial(
            number=number, stage=TrialStage.ACTIVE, budget=start.budget, bracket=start.bracket
        )
        one = SimTrial(trainer=self.make(submission, 1 + number), seen=seen)
        self.every.append(one)
        self._by_trainer[one.trainer.trainer_id] = one
        self._turn(one, TrialStage.ACTIVE, start.budget, now_s)

    def _turn(self, one: SimTrial, stage: TrialStage, budget: int, now_s: float) -> None:
        one.seen = replace(one.seen, stage=stage, budget=budget)
        if stage is TrialStage.ACTIVE:
            trainer, samples = one.trainer, budget * self.study.unit_samples
            trainer.submission = replace(trainer.submission, samples=samples)
            spec = replace(trainer.record.spec, samples=math.ceil(samples))
            trainer.record = replace(trainer.record, spec=spec)
            trainer.finished_s = None
            self._set_goal(one)
        trained = one.seen.values[-1].units if one.seen.values else 0
        self._note(one, now_s, budget if stage is TrialStage.ACTIVE else trained, None)

    def _set_goal(self, one: SimTrial) -> None:
        """Let the trainer go on to its next report."""
        trained = one.seen.values[-1].units if one.seen.values else 0
        ahead = [units for units in self.study.reports if trained < units < one.seen.budget]
        if one.seen.stage is TrialStage.ACTIVE:
            one.trainer.reports_at = min(ahead, default=one.seen.budget) * self.study.unit_samples

    def _units_at(self, samples: float) -> int:
        return round(samples / self.study.unit_samples)

    def _note(self, one: SimTrial, now_s: float, units: int, value: float | None) -> None:
        seen = one.seen
        self.course.append(
            Happening(at_s=now_s, number=seen.number, stage=seen.stage, units=units, value=value)
        )
