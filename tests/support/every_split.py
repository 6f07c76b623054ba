"""Small problems with node classes and mixes, and their answer by trying every split."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace

from milp.check import objective_value
from milp.problem import Curve, Problem, ProblemNode, ProblemTrainer

_Split = tuple[int, ...]  # nodes by class
_Sizes = tuple[int, ...]


def draw(seed: int, n_classes: int, *, share_of_mixes: float = 0.0) -> Problem:
    """Draw a problem: gaps below n_min, ties, departed nodes, nodes of a class not accepted."""
    chance = random.Random(seed)  # noqa: S311 - a test
    classes = "abcdef"[:n_classes]
    nodes = tuple(
        ProblemNode(name=f"n{i}", eligibility=chance.choice(classes))
        for i in range(chance.randint(2, 8))
    )
    names = [*(node.name for node in nodes), "departed"]
    chance.shuffle(names)
    trainers: list[ProblemTrainer] = []
    for j in range(chance.randint(1, 4)):
        n_current = chance.choice([0, 0, chance.randint(0, 3)])
        current, names = tuple(names[:n_current]), names[n_current:]
        n_min = chance.choice([1, 1, 2, 3])
        trainers.append(
            ProblemTrainer(
                trainer_id=f"t{j}",
                n_min=n_min,
                n_max=n_min + chance.choice([0, 1, 3, 5]),
                curve=_draw_curve(chance),
                rescale_up_s=chance.choice([0.0, 1.0, 2.5]),
                rescale_down_s=chance.choice([0.0, 1.0, 2.5]),
                current=current,
                eligible=tuple(name for name in classes if chance.random() < 0.6),
                mixes_classes=chance.random() < share_of_mixes,
            )
        )
    return Problem(
        nodes=nodes,
        trainers=tuple(trainers),
        t_fwd_s=chance.choice([1.0, 5.0, 120.0]),
        p_jmax=len(trainers),
    )


def _draw_curve(chance: random.Random) -> Curve:
    sizes = sorted(chance.sample(range(1, 8), chance.randint(1, 3)))
    slope = chance.choice([0.0, 0.0, 1.0, 0.5])
    rates = [
        slope * size
        or chance.choice([chance.randint(1, 6), 0.1 * chance.randint(1, 60), 6 * chance.random()])
        for size in sizes
    ]
    return Curve(sizes=tuple(sizes), samples_per_s=tuple(map(float, rates)))


def try_every_split(problem: Problem) -> tuple[float, _Sizes]:
    """The optimum, and the sizes the tie rule picks, over all nodes by class and trainer."""
    groups = _groups(problem)
    counts = [len(names) for names in groups]
    reached: dict[_Split, set[_Sizes]] = {(0,) * len(groups): {()}}
    before = []
    pool = {node.name for node in problem.nodes}
    for trainer in problem.trainers:
        present = {name for name in trainer.current if name in pool}
        before.append(len(present))
        splits = _splits(problem, trainer, present, groups)
        following: dict[_Split, set[_Sizes]] = {}
        for used, all_sizes in reached.items():
            for split in splits:
                total = tuple(map(sum, zip(used, split, strict=True)))
                if all(n <= count for n, count in zip(total, counts, strict=True)):
                    longer = {(*sizes, sum(split)) for sizes in all_sizes}
                    following.setdefault(total, set()).update(longer)
        reached = following
    # The objective is a sum over trainers.
    alone = [replace(problem, trainers=(trainer,), p_jmax=1) for trainer in problem.trainers]
    terms = [
        [objective_value(one, {one.trainers[0].trainer_id: n}) for n in range(len(pool) + 1)]
        for one in alone
    ]
    values = {
        sizes: math.fsum(terms[j][size] for j, size in enumerate(sizes))
        for sizes in set().union(*reached.values())
    }
    best = max(values.values())
    scale = 1.0 + max(abs(value) for value in values.values())
    tied = [sizes for sizes, value in values.items() if value >= best - 1e-10 * scale]

    def preference(sizes: _Sizes) -> tuple[int, _Sizes]:
        rescales = sum(old != new for old, new in zip(before, sizes, strict=True))
        return -rescales, sizes

    return best, max(tied, key=preference)


def _accepts(trainer: ProblemTrainer, eligibility: str) -> bool:
    return not trainer.eligible or eligibility in trainer.eligible


def _groups(problem: Problem) -> list[list[ProblemNode]]:
    """The nodes of each class."""
    groups: dict[str, list[ProblemNode]] = {}
    for node in problem.nodes:
        groups.setdefault(node.eligibility, []).append(node)
    return list(groups.values())


def _splits(
    problem: Problem, trainer: ProblemTrainer, present: set[str], groups: list[list[ProblemNode]]
) -> list[_Split]:
    """All nodes by class a trainer may have."""
    held = [sum(node.name in present for node in group) for group in groups]
    takes = [_accepts(trainer, group[0].eligibility) for group in groups]
    ranges = [
        range(len(g) + 1) if take else range(1) for g, take in zip(groups, takes, strict=True)
    ]
    splits: list[_Split] = []
    for split in itertools.product(*ranges):
        size = sum(split)
        if size and not trainer.n_min <= size <= trainer.n_max:
            continue
        if not trainer.mixes_classes and sum(n > 0 for n in split) > 1:
            continue
        pairs = list(zip(split, held, strict=True))
        if all(n <= n_held for n, n_held in pairs) or all(n >= n_held for n, n_held in pairs):
            splits.append(split)
    return splits
