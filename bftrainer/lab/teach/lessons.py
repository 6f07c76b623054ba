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

from bftrainer.batch.traces.fragments import make_fragments
from bftrainer.decide.decision import decide
from bftrainer.decide.policies.base import AllocationPolicy, Context, Decided, Traits
from bftrainer.decide.policies.distribution import Handing
from bftrainer.decide.policies.dl2 import Dl2Options, Filling
from bftrainer.decide.policies.dl2_network import Array, Mask
from bftrainer.lab.teach.episodes import Episode
from bftrainer.lab.teach.learner import LearningStep
from bftrainer.lab.workloads.submission import Submission
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
    pools: list[tuple[float, frozenset[str]]] = []
    trainers: dict[str, Submission] = {}
    submitted_s: dict[str, float] = {}
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
        pools.append((record.input.now_s, frozenset(node.name for node in problem.nodes)))
        for trainer in problem.trainers:
            known = context.trainers[trainer.trainer_id]
            total = known.done_samples + (known.left_samples or 0.0)
            submitted_s[trainer.trainer_id] = known.submitted_s
            trainers[trainer.trainer_id] = Submission(
                submit_s=0.0,
                name=trainer.trainer_id,
                n_min=trainer.n_min,
                n_max=trainer.n_max,
                samples=max(1.0, total),
                curve=trainer.curve,
                rescale_up_s=trainer.rescale_up_s,
                rescale_down_s=trainer.rescale_down_s,
                weight=trainer.weight or 1.0,
            )
    if len(pools) < LEAST_DECISIONS:
        raise UsageError(
            "BFT-4180",
            f"The journal holds {len(pools)} decisions with nodes and trainers; to learn from it "
            f"takes {LEAST_DECISIONS}.",
            "Wait until the daemon has decided more often, or leave out --from to learn from "
            "drawn pools.",
        )
    found.episodes = _episodes(pools, trainers, submitted_s)
    return found


def _episodes(
    pools: list[tuple[float, frozenset[str]]],
    trainers: dict[str, Submission],
    submitted_s: dict[str, float],
) -> tuple[Episode, ...]:
    """Cut the time into parts; in each those trainers take part that were submitted in it."""
    names = sorted(frozenset().union(*(pool for _, pool in pools)))
    index = {name: i for i, name in enumerate(names)}
    node, start_s, end_s = list[int](), list[float](), list[float]()
    since: dict[str, float] = {}
    last_s = pools[-1][0] + 1.0
    for at_s, pool in [*pools, (last_s, frozenset[str]())]:
        for name in sorted(since.keys() - pool):
            node.append(index[name])
            start_s.append(since.pop(name))
            end_s.append(at_s)
        since |= dict.fromkeys(sorted(pool - since.keys()), at_s)
    begin_s = pools[0][0]
    whole = make_fragments(
        names=names, node=node, start_s=start_s, end_s=end_s, span_s=(begin_s, last_s)
    )
    hours = (last_s - begin_s) / PARTS / 3600.0
    found = []
    for part in range(PARTS):
        part_s = begin_s + part * hours * 3600.0
        trace = whole.restrict(slice(0, len(names)), start_s=part_s, hours=hours)
        there = sorted(
            (max(0.0, submitted_s[one] - part_s), one)
            for one in trainers
            if submitted_s[one] < part_s + hours * 3600.0
        )
        submissions = tuple(replace(trainers[one], submit_s=at_s) for at_s, one in there)
        if submissions and len(trace):
            found.append(Episode(trace=trace, submissions=submissions))
    return tuple(found)
