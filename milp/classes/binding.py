"""Many classes: each trainer that may choose a class is bound to one, and the problem falls apart.

Takes a validated Problem with more classes than the search proves; gives the best answer of
a few bindings. Who may choose goes first where most nodes are for each trainer, then, one by
one, where its gain over the price of a node is largest, as long as that makes the whole worth
more. The parts are solved exactly. Called by ``solve``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from milp.parts import join, split
from milp.pool import PoolView
from milp.problem import Allocation, Problem, ProblemTrainer
from milp.tables import value_table

MOST_TRIES = 24  # moves of one trainer, of which each solves two parts
LEAST_GAIN = 1e-9  # of the objective

SolvePart = Callable[[Problem], Allocation]


def solve_bound(problem: Problem, pool: PoolView, solve_part: SolvePart) -> Allocation | None:
    """Return the best answer found; None: nobody may choose, or the parts are no smaller."""
    counts: dict[str, int] = {}
    for node in problem.nodes:
        counts[node.eligibility] = counts.get(node.eligibility, 0) + 1
    free = {
        trainer.trainer_id: trainer
        for trainer, present in zip(pool.trainers, pool.present, strict=True)
        if not (trainer.mixes_classes or present) and len(_accepted(trainer, counts)) > 1
    }
    if not free:
        return None
    search = _Search(problem=problem, counts=counts, free=free, solve_part=solve_part)
    search.begin()
    if len(search.answers) < 2:
        return None
    search.improve()
    return join(problem, list(search.answers.values()))


def _accepted(trainer: ProblemTrainer, counts: Mapping[str, int]) -> list[str]:
    return [name for name in counts if not trainer.eligible or name in trainer.eligible]


@dataclass(slots=True, kw_only=True)
class _Search:
    """A binding and the answers to its parts."""

    problem: Problem
    counts: Mapping[str, int]  # nodes by class
    free: Mapping[str, ProblemTrainer]
    solve_part: SolvePart
    binding: dict[str, str] = field(default_factory=dict)  # free trainer -> class
    parts: dict[str, str] = field(default_factory=dict)  # class -> its part
    answers: dict[str, Allocation] = field(default_factory=dict)  # by part
    known: dict[tuple[str, frozenset[tuple[str, str]]], Allocation] = field(default_factory=dict)

    def begin(self) -> None:
        """Bind everybody to the class with most nodes for each trainer, and solve."""
        trainers = self.problem.trainers[: self.problem.p_jmax]
        bound = replace(
            self.problem,
            trainers=tuple([t for t in trainers if t.trainer_id not in self.free]),
        )
        crowd: dict[str, int] = {}
        groups = split(replace(bound, p_jmax=len(bound.trainers)))
        for part in groups:
            names = dict.fromkeys(node.eligibility for node in part.nodes)
            self.parts |= dict.fromkeys(names, min(names))
            crowd[min(names)] = len(part.trainers)
        for name in self.counts:  # nobody bound accepts it
            crowd.setdefault(self.parts.setdefault(name, name), 0)
        for trainer_id, trainer in self.free.items():
            accepted = _accepted(trainer, self.counts)
            fitting = [n for n in accepted if self.counts[n] >= trainer.n_min] or accepted
            chosen = max(fitting, key=lambda n: self.counts[n] / (1 + crowd[self.parts[n]]))
            self.binding[trainer_id] = chosen
            crowd[self.parts[chosen]] += 1
        self.answers = {part: self._solve(part, self.binding) for part in crowd}

    def improve(self) -> None:
        """Move one trainer at a time to where it gains most at the prices of the parts."""
        refused: set[tuple[str, str]] = set()
        for _ in range(MOST_TRIES):
            moves = [move for move in self._moves() if move[1:] not in refused]
            if not moves:
                return
            _, trainer_id, name = max(moves)
            origin, target = self.parts[self.binding[trainer_id]], self.parts[name]
            binding = {**self.binding, trainer_id: name}
            new = {part: self._solve(part, binding) for part in (origin, target)}
            now = math.fsum(self.answers[part].objective for part in new)
            then = math.fsum(answer.objective for answer in new.values())
            if then > now + LEAST_GAIN * abs(now):
                self.binding, refused = binding, set()
                self.answers |= new
            else:
                refused.add((trainer_id, name))

    def _moves(self) -> Iterable[tuple[float, str, str]]:
        """What trainers would gain elsewhere, at the prices of a node there and here."""
        for trainer_id, trainer in self.free.items():
            here = self.answers[self.parts[self.binding[trainer_id]]]
            size = here.sizes().get(trainer_id, 0)
            names = _accepted(trainer, self.counts)
            worth = value_table(
                trainer,
                0,
                min(trainer.n_max, max(self.counts[name] for name in names)),
                t_fwd_s=self.problem.t_fwd_s,
                objective=self.problem.objective,
            )
            now = float(worth[size]) - here.node_price * size
            for name in names:
                part = self.parts[name]
                sizes = range(trainer.n_min, min(trainer.n_max, self.counts[name]) + 1)
                if part == self.parts[self.binding[trainer_id]] or not sizes:
                    continue
                price = self.answers[part].node_price
                gain = max(float(worth[n]) - price * n for n in sizes) - now
                if gain > LEAST_GAIN * abs(now):
                    yield gain, trainer_id, name

    def _solve(self, part: str, binding: Mapping[str, str]) -> Allocation:
        """Solve a part of the problem with the free trainers that are bound to it."""
        here = frozenset(t for t, name in binding.items() if self.parts[name] == part)
        key = (part, frozenset((t, binding[t]) for t in here))
        if key not in self.known:
            self.known[key] = self.solve_part(self._part(part, here, binding))
        return self.known[key]

    def _part(self, part: str, here: frozenset[str], binding: Mapping[str, str]) -> Problem:
        nodes = tuple([n for n in self.problem.nodes if self.parts[n.eligibility] == part])
        names = {node.name for node in nodes}
        classes = {node.eligibility for node in nodes}
        trainers = []
        for trainer in self.problem.trainers[: self.problem.p_jmax]:
            if trainer.trainer_id in here:
                trainers.append(replace(trainer, eligible=(binding[trainer.trainer_id],)))
            elif trainer.trainer_id not in self.free and (
                not names.isdisjoint(trainer.current) or not classes.isdisjoint(trainer.eligible)
            ):
                trainers.append(trainer)
        return replace(self.problem, nodes=nodes, trainers=tuple(trainers), p_jmax=len(trainers))
