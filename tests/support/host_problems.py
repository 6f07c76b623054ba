"""Small problems with hosts whose GPUs are lent one by one, and the best of every way."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

from milp.check import objective_value
from milp.problem import Cap, Curve, Problem, ProblemNode, ProblemTrainer

HOST_WIDTHS = (1, 2, 4, 4, 8, 8)
Taken = tuple[int, int, frozenset[str]]  # of one trainer: units kept, units new, their classes
State = tuple[Taken, ...]  # [j]


def draw(seed: int, *, warms_up: bool = False, most_hosts: int = 4) -> Problem:
    """Draw a problem: widths 0 to 8, parts of any width, caps, several classes, must_run.

    ``warms_up``: some trainers' nodes warm up, which the paper's model cannot say.
    """
    chance = random.Random(seed)  # noqa: S311 - a test
    classes = chance.choice(["a", "a", "ab"])
    widths = chance.choice([(1,), (2,), (0,), (1, 2, 4, 8, 0), (2, 3, 5), tuple(range(9)), (0, 4)])
    nodes = [
        node
        for h in range(chance.randint(1, most_hosts))
        for node in _host(f"h{h}", chance, classes, widths)
    ]
    chance.shuffle(nodes)
    left = [node.name for node in nodes if node.has_pilot or not node.host] + ["departed"]
    by_name = {node.name: node for node in nodes}
    trainers: list[ProblemTrainer] = []
    for j in range(chance.randint(1, 4)):
        width = chance.choice(widths)
        of_width = [name for name in left if name not in by_name or _suits(by_name[name], width)]
        pick = left if chance.random() < 0.1 else of_width  # seldom parts of another width
        current = tuple(pick[: chance.choice([0, 1, 2, 4])])
        left = [name for name in left if name not in current]
        n_min = chance.choice([1, 1, 2, 3])
        trainers.append(
            ProblemTrainer(
                trainer_id=f"t{j}",
                n_min=n_min,
                n_max=n_min + chance.choice([0, 1, 3, 7]),
                curve=_curve(chance),
                rescale_up_s=chance.choice([0.0, 1.0, 2.5]),
                rescale_down_s=chance.choice([0.0, 1.0, 2.5]),
                current=current,
                settled=current[:1],
                eligible=chance.choice([(), ("a",), tuple(classes)]),
                mixes_classes=chance.random() < 0.3,
                warm_up_s=chance.choice([0.0, 3.0]) if warms_up else 0.0,
                must_run=chance.random() < 0.1,
                width=width,
            )
        )
    caps = tuple(
        Cap(
            name=f"cap {c}",
            trainers=tuple([f"t{j}" for j in range(len(trainers)) if chance.random() < 0.6]),
            most=chance.randint(0, 6),
        )
        for c in range(chance.choice([0, 0, 1, 2]))
    )
    return Problem(
        nodes=tuple(nodes),
        trainers=tuple(trainers),
        t_fwd_s=chance.choice([1.0, 5.0, 120.0]),
        p_jmax=len(trainers) - (chance.random() < 0.1),
        caps=caps,
    )


def _host(
    name: str, chance: random.Random, classes: str, widths: Sequence[int]
) -> list[ProblemNode]:
    """Draw a host: as a whole, or free GPUs and parts; some GPUs are other jobs'."""
    node = ProblemNode(
        name=name,
        eligibility=chance.choice(classes),
        expected_remaining_s=chance.choice([None, None, 10.0, 60.0]),
        switch=chance.choice(["", "s1", "s2"]),
    )
    if chance.random() < 0.2:
        return [replace(node, has_pilot=chance.random() < 0.5)]
    host_width = chance.choice(HOST_WIDTHS)
    nodes: list[ProblemNode] = []
    left = host_width - chance.choice([0, 0, 1, chance.randint(0, host_width)])
    while left > 0:
        wanted = [width or host_width for width in widths] + [chance.randint(1, 8)]
        width = chance.choice(wanted)
        is_part = width <= left and chance.random() < 0.4
        part = replace(
            node,
            name=f"{name}/{len(nodes)}",
            host=name,
            host_width=host_width,
            width=width if is_part else 1,
            has_pilot=is_part,
        )
        if chance.random() < 0.1:  # another type of GPU
            part = replace(part, eligibility=chance.choice(classes))
        nodes.append(part)
        left -= part.width
    return nodes


def _suits(node: ProblemNode, width: int) -> bool:
    if not node.host:
        return width == 0
    return node.width == width or (width == 0 and node.width == node.host_width)


def _curve(chance: random.Random) -> Curve:
    sizes = sorted(chance.sample(range(1, 8), chance.randint(1, 3)))
    slope = chance.choice([0.0, 0.0, 1.0, 0.5])
    drawn = [chance.choice([chance.randint(1, 6), 6 * chance.random()]) for _ in sizes]
    rates = [slope * size or rate for size, rate in zip(sizes, drawn, strict=True)]
    return Curve(sizes=tuple(sizes), samples_per_s=tuple(map(float, rates)))


def best_by_trying(problem: Problem) -> float:
    """Return the most that any assignment is worth; NaN: those that must run cannot.

    Hosts and parts are gone through one after the other; of what was done so far only the units of
    each trainer count.
    """
    trainers = problem.trainers
    pool = {node.name for node in problem.nodes}
    before = [len(pool & set(trainer.current)) for trainer in trainers]
    states: set[State] = {tuple((0, 0, frozenset[str]()) for _ in trainers)}
    free: dict[tuple[str, str], list[ProblemNode]] = {}
    for node in problem.nodes:
        if node.host and not node.has_pilot:
            free.setdefault((node.host, node.eligibility), []).append(node)
            continue
        reached = set(states)  # nobody has it
        for j, trainer in enumerate(trainers[: problem.p_jmax]):
            if _suits(node, trainer.width) and _accepts(trainer, node):
                units = (1, 0) if node.name in trainer.current else (0, 1)
                reached |= {_with(state, j, *units, node.eligibility) for state in states}
        states = {state for state in reached if _is_possible(problem, state)}
    for members in free.values():
        states = {
            state
            for old in states
            for state in _filled(problem, old, members)
            if _is_possible(problem, state)
        }
    worths = [_worth(problem, before, state) for state in states]
    return max([worth for worth in worths if worth is not None], default=math.nan)


def _accepts(trainer: ProblemTrainer, node: ProblemNode) -> bool:
    return not trainer.eligible or node.eligibility in trainer.eligible


def _with(state: State, j: int, kept: int, new: int, eligibility: str) -> State:
    n_kept, n_new, classes = state[j]
    changed = (n_kept + kept, n_new + new, classes | {eligibility})
    return (*state[:j], changed, *state[j + 1 :])


def _filled(problem: Problem, state: State, members: Sequence[ProblemNode]) -> Iterator[State]:
    """Yield the states with the free GPUs of a host shared out in every way."""
    eligibility, host_width = members[0].eligibility, members[0].host_width
    takers = [
        (j, trainer.width or host_width)
        for j, trainer in enumerate(problem.trainers[: problem.p_jmax])
        if _accepts(trainer, members[0])
    ]
    ranges = [range(len(members) // width + 1) for _, width in takers]
    for counts in itertools.product(*ranges):
        pairs = list(zip(takers, counts, strict=True))
        if sum([width * count for (_, width), count in pairs]) <= len(members):
            filled = state
            for (j, _), count in pairs:
                if count:
                    filled = _with(filled, j, 0, count, eligibility)
            yield filled


def _is_possible(problem: Problem, state: State) -> bool:
    for trainer, (kept, new, classes) in zip(problem.trainers, state, strict=True):
        if kept + new > trainer.n_max or (len(classes) > 1 and not trainer.mixes_classes):
            return False
    sizes = _sizes(problem, state)
    return all(sum([sizes[name] for name in set(cap.trainers)]) <= cap.most for cap in problem.caps)


def _sizes(problem: Problem, state: State) -> dict[str, int]:
    return {
        trainer.trainer_id: kept + new
        for trainer, (kept, new, _) in zip(problem.trainers, state, strict=True)
    }


def _worth(problem: Problem, before: Sequence[int], state: State) -> float | None:
    """Return what a final state is worth; None: it is not allowed."""
    for j, (trainer, (kept, new, _)) in enumerate(zip(problem.trainers, state, strict=True)):
        size = kept + new
        if size and not trainer.n_min <= size:
            return None
        if new and kept < before[j]:
            return None  # it would migrate
        if trainer.must_run and not size and j < problem.p_jmax:
            return None
    return objective_value(problem, _sizes(problem, state))
