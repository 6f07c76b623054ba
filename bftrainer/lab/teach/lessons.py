"""Lessons and episodes from a daemon's journal: a teacher's decisions as single steps.

A teacher says how many nodes each trainer has, not in which order they were handed out. So any
trainer that still lacks nodes is as right as another: the label of a step is spread over all of
them, and one of them, drawn at random, is taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from bftrainer.batch.traces.fragments import HOUR_S
from bftrainer.decide.decision import decide
from bftrainer.decide.policies.base import AllocationPolicy, Context, Decided, Traits
from bftrainer.decide.policies.distribution import Handing
from bftrainer.decide.policies.dl2 import Dl2Options, Filling
from bftrainer.decide.policies.dl2_network import Array, Mask
from bftrainer.lab.teach.episodes import Episode
from bftrainer.lab.teach.learner import LearningStep
from bftrainer.lab.workloads.submission import Submission
from bftrainer.lab.yesterday.journal import Availability
from bftrainer.model.decision import DecisionRecord
from bftrainer.model.errors import UsageError
from milp.problem import Problem


def steps_of(
    problem: Problem, context: Context, sizes: Mapping[str, int], chance: np.random.Generator
) -> list[LearningStep]:
    """Return the steps from an empty pool to these sizes, void at last."""
    filling = Filling(Handing(problem, admits=True), context)
    handing, steps = filling.handing, list[LearningStep]()

    def choose(rows: Array, mask: Mask) -> int:
        lacks = [
            sizes.get(handing.trainers[j].trainer_id, 0) > handing.size(j) for j in filling.seen
        ]
        wanted = np.array([*lacks, False]) & mask
        if not wanted.any():
            wanted[-1] = True
        steps.append(LearningStep(rows=rows, mask=mask, wanted=wanted / wanted.sum()))
        return int(chance.choice(np.flatnonzero(wanted)))

    filling.run(choose)
    return steps


class Watched:
    """A teacher whose decisions are noted as steps."""

    def __init__(self, teacher: AllocationPolicy, options: object, seed: int) -> None:
        """Watch a teacher.

        Args:
            teacher: that decides.
            options: its own; those of the caller are dl2's.
            seed: of the order of steps.
        """
        self._teacher, self._options = teacher, options
        self._chance = np.random.default_rng((seed, 61))
        self.steps: list[LearningStep] = []
        self.name = teacher.name
        # dl2 compares times of trainers, so their curves are comparable whoever teaches.
        self.traits: Traits = replace(teacher.traits, options=type(options), reads_rates=True)

    def allocate(self, problem: Problem, context: Context, /) -> Decided:
        """Let the teacher decide."""
        found = self._teacher.allocate(problem, context)
        sizes = found.allocation.sizes()
        known = replace(context, options=Dl2Options())
        self.steps += steps_of(problem, known, sizes, self._chance)
        return found


PARTS = 10  # that the journal's time is cut into
LEAST_DECISIONS = 50


class _Asked:
    """Notes the problem of a decision; no trainer gets a node."""

    name = "asked"
    traits = Traits(admits=True, reads_rates=True, follows_curves=False)

    def __init__(self) -> None:
        self.seen: tuple[Problem, Context] | None = None

    def allocate(self, problem: Problem, context: Context, /) -> Decided:
        """Note the first problem of a decision."""
        self.seen = self.seen or (problem, context)
        return Handing(problem, admits=True).answer(self.name, lambda _: ())


@dataclass(slots=True, kw_only=True)
class FromJournal:
    """The steps and episodes read from a journal."""

    steps: list[LearningStep] = field(default_factory=list)
    teachers: Counter[str] = field(default_factory=Counter)  # policy -> decisions
    episodes: tuple[Episode, ...] = ()


def read(records: Iterable[DecisionRecord], *, seed: int) -> FromJournal:
    """Read a journal's decisions.

    Raises:
        UsageError: BFT-4180, there are too few of them.
    """
    chance, found = np.random.default_rng((seed, 67)), FromJournal()
    pool, n_decisions = Availability(), 0
    trainers: dict[str, tuple[float, Submission]] = {}  # with the time of submission
    for record in records:
        settings = replace(record.input.settings, policy="asked", policy_options={})
        asked = _Asked()
        decide(replace(record.input, settings=settings), asked)
        if asked.seen is None:
            continue
        problem, context = asked.seen
        sizes = Counter(record.plan.assignment.values())
        context = replace(context, options=Dl2Options())
        found.steps += steps_of(problem, context, sizes, chance)
        found.teachers[record.input.settings.policy] += 1
        n_decisions += 1
        pool.note(record.input.now_s, {node.name for node in problem.nodes})
        for trainer in problem.trainers:
            known = context.trainers[trainer.trainer_id]
            submission = Submission(
                submit_s=0.0,
                name=trainer.trainer_id,
                n_min=trainer.n_min,
                n_max=trainer.n_max,
                samples=max(1.0, known.done_samples + (known.left_samples or 0.0)),
                curve=trainer.curve,
                rescale_up_s=trainer.rescale_up_s,
                rescale_down_s=trainer.rescale_down_s,
                weight=trainer.weight or 1.0,
            )
            trainers[trainer.trainer_id] = known.submitted_s, submission
    if n_decisions < LEAST_DECISIONS:
        raise UsageError(
            "BFT-4180",
            f"The journal holds {n_decisions} decisions with nodes and trainers; to learn from it "
            f"takes {LEAST_DECISIONS}.",
            "Wait until the daemon has decided more often, or leave out --from to learn from "
            "drawn pools.",
        )
    found.episodes = _episodes(pool, trainers)
    return found


def _episodes(
    pool: Availability, trainers: Mapping[str, tuple[float, Submission]]
) -> tuple[Episode, ...]:
    """Cut the time into parts; in each those trainers take part that were submitted in it."""
    begin_s, last_s = pool.begin_s, pool.end_s + 1.0
    whole = pool.trace(last_s)
    part_s, found = (last_s - begin_s) / PARTS, []
    for part in range(PARTS):
        from_s = begin_s + part * part_s
        everywhere = slice(0, len(whole.names))
        trace = whole.restrict(everywhere, start_s=from_s, hours=part_s / HOUR_S)
        there = sorted(
            (max(0.0, submitted_s - from_s), name)
            for name, (submitted_s, _) in trainers.items()
            if submitted_s < from_s + part_s
        )
        submissions = tuple(replace(trainers[name][1], submit_s=at_s) for at_s, name in there)
        if submissions and len(trace):
            found.append(Episode(trace=trace, submissions=submissions))
    return tuple(found)
