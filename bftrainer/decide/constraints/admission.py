"""Admits trainers to a decision within caps and fair share. Pure.

The trainers that take part come first in the problem and are its P_jmax. Under caps alone these
are, in order of submission, all that have room for n_min under their caps. With fair share they
are, in its order, all that fit into the pool with n_min beside those before. The first of each user
gets that much (``must_run``); on the rest the objective decides. They are admitted
to each problem anew, since nodes may be missing in some.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Final

from bftrainer.decide.constraints.chain import Ask, Constraint
from bftrainer.decide.fair_share import Line
from bftrainer.decide.policies.base import Decided
from bftrainer.decide.policies.distribution import Handing
from bftrainer.model.decision import Settings
from bftrainer.model.fairness import Usage
from bftrainer.model.trainer import TrainerRecord
from milp.problem import Problem, ProblemTrainer

LOOKS: Final = 0.02  # of a half-life, between two looks at whose turn it is


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission(Constraint[Problem, Decided]):
    """Who takes part."""

    settings: Settings
    now_s: float
    records: Mapping[str, TrainerRecord]  # all trainers
    usage: Usage
    kept_ids: tuple[str, ...] = ()  # trainers with nodes that the problem lacks
    name: ClassVar[str] = "admission"

    @property
    def in_words(self) -> str:
        """Fair share, or the limits alone."""
        if self.settings.fair_share_half_life_s is None:
            return "limits of users and accounts, by which others come first"
        return "shares of users and accounts (fair_share_half_life_s)"

    def answer(self, problem: Problem, ask: Ask) -> Decided:
        """Ask for those that take part; where some are left out, the order has the others."""
        offered = self.admit(problem)
        decided = ask(offered)
        if offered is not problem and not decided.order:
            entering = offered.trainers[: offered.p_jmax]
            order = [trainer.trainer_id for trainer in entering]
            decided = replace(decided, order=tuple(order))
        turn_s = self.wake_at_s(offered)
        if turn_s is None:
            return decided
        return replace(decided, wake_at_s=min(decided.wake_at_s or turn_s, turn_s))

    def admit(self, problem: Problem) -> Problem:
        """Return the problem with the trainers that take part first."""
        half_life_s = self.settings.fair_share_half_life_s
        if half_life_s is None:
            if problem.caps:
                return _first_to_fit(problem)
            return problem
        line = Line(
            problem.trainers,
            self.records,
            self.usage,
            half_life_s=half_life_s,
            now_s=self.now_s,
            slots=min(self.settings.p_jmax, len(problem.trainers) + len(self.kept_ids)),
        )
        for trainer_id in self.kept_ids:
            line.charge(trainer_id, self.records[trainer_id].spec.n_min)
        return _fairly(problem, line)

    def wake_at_s(self, admitted: Problem) -> float | None:
        """Return when the next decision is due because somebody waits for a turn."""
        half_life_s = self.settings.fair_share_half_life_s
        if half_life_s is None or admitted.p_jmax >= len(admitted.trainers):
            return None
        return self.now_s + LOOKS * half_life_s


class _Room:
    """The room that caps leave."""

    def __init__(self, problem: Problem) -> None:
        self._left: list[int] = []
        self._caps: dict[str, list[int]] = {}
        for number, cap in enumerate(problem.caps):
            self._left.append(cap.most)
            for trainer_id in cap.trainers:
                self._caps.setdefault(trainer_id, []).append(number)

    def has(self, trainer: ProblemTrainer) -> bool:
        """Return whether the trainer's caps leave room for its n_min."""
        for number in self._caps.get(trainer.trainer_id, ()):
            if trainer.n_min > self._left[number]:
                return False
        return True

    def take(self, trainer: ProblemTrainer) -> None:
        """Take n_min."""
        for number in self._caps.get(trainer.trainer_id, ()):
            self._left[number] -= trainer.n_min


def _first_to_fit(problem: Problem) -> Problem:
    room, admitted = _Room(problem), list[str]()
    for trainer in problem.trainers:
        if len(admitted) == problem.p_jmax:
            break
        if room.has(trainer):
            room.take(trainer)
            admitted.append(trainer.trainer_id)
    return _with(problem, admitted)


def _fairly(problem: Problem, line: Line) -> Problem:
    room, handing = _Room(problem), Handing(problem, admits=True)
    admitted, first_of = list[str](), dict[tuple[str, str], str]()
    index = {trainer.trainer_id: j for j, trainer in enumerate(problem.trainers)}
    while len(admitted) < problem.p_jmax and (trainer := line.next()) is not None:
        j, n_min = index[trainer.trainer_id], trainer.n_min
        if room.has(trainer) and handing.settle(j, n_min) and handing.take(j, n_min):
            room.take(trainer)
            owner = line.charge(trainer.trainer_id, n_min)
            first_of.setdefault(owner, trainer.trainer_id)
            admitted.append(trainer.trainer_id)
    return _with(problem, admitted, must_run=frozenset(first_of.values()))


def _with(problem: Problem, admitted: list[str], must_run: frozenset[str] = frozenset()) -> Problem:
    """Return the problem with those admitted first, in order of submission."""
    admitted_ids = frozenset(admitted)
    first, left_out = list[ProblemTrainer](), list[ProblemTrainer]()
    for trainer in problem.trainers:
        if trainer.trainer_id in must_run:
            first.append(replace(trainer, must_run=True))
        elif trainer.trainer_id in admitted_ids:
            first.append(trainer)
        else:
            left_out.append(trainer)
    return replace(problem, trainers=(*first, *left_out), p_jmax=len(first))
