"""Random problems of users and accounts whose caps cross, with one class of nodes or several. Pure.

Curves are irregular, many trainers hold nodes, and caps lie near what is held: half of it at least.
Of even seeds all nodes are of one class. The same seed gives the same problem.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from typing import Final

from milp.problem import Cap, Curve, Problem, ProblemNode, ProblemTrainer

SIZES: Final = ((20, 100), (24, 200), (30, 300), (50, 500), (70, 700), (100, 1000))  # by seed
CURVE_SIZES: Final = (1, 2, 4, 8, 16, 32, 64)
T_FWD_S: Final = 120.0
TRAINERS_PER_USER, TRAINERS_PER_ACCOUNT = 4, 6


def draw_capped(seed: int) -> Problem:
    """Draw a problem."""
    chance = random.Random(seed)  # noqa: S311 - a benchmark
    n_trainers, n_nodes = SIZES[seed % len(SIZES)]
    classes = ["a"] if seed % 2 == 0 else ["a", "b", "c"][: chance.choice([2, 3])]
    nodes = tuple(
        ProblemNode(name=f"n{i}", eligibility=chance.choice(classes)) for i in range(n_nodes)
    )
    free = list(nodes)
    chance.shuffle(free)
    trainers = tuple(_drawn(f"t{j}", classes, free, chance) for j in range(n_trainers))
    n_users = max(3, n_trainers // TRAINERS_PER_USER)
    n_accounts = max(2, n_trainers // TRAINERS_PER_ACCOUNT)
    turn = 1 if seed % 3 else 0  # whether a user's trainers are of several accounts in any case
    users = [j % n_users for j in range(n_trainers)]
    accounts = [(turn * (j // n_users) + j) % n_accounts for j in range(n_trainers)]
    caps = [*_caps("user", users, trainers, n_nodes, chance)]
    caps += _caps("account", accounts, trainers, n_nodes, chance)
    return Problem(
        nodes=nodes, trainers=trainers, t_fwd_s=T_FWD_S, p_jmax=n_trainers, caps=tuple(caps)
    )


def _drawn(
    name: str, classes: Sequence[str], free: list[ProblemNode], chance: random.Random
) -> ProblemTrainer:
    """Draw a trainer; what it holds is no longer free."""
    curve, n_held = _curve(chance), chance.choice([0, 0, chance.randint(1, 16)])
    takes_all = chance.random() < 0.5 or len(classes) == 1
    eligible = [] if takes_all else sorted(chance.sample(classes, chance.randint(1, len(classes))))
    home = chance.choice(eligible or classes)
    own = [node for node in free if node.eligibility == home][:n_held]
    for node in own:
        free.remove(node)
    held = tuple(node.name for node in own)
    return ProblemTrainer(
        trainer_id=name,
        n_min=chance.choice([1, 1, 2, 4]),
        n_max=CURVE_SIZES[-1],
        curve=curve,
        rescale_up_s=chance.choice([0.5, 18.0, 60.0]),
        rescale_down_s=chance.choice([0.2, 5.0]),
        current=held,
        settled=held,
        eligible=tuple(eligible),
        warm_up_s=chance.choice([0.0, 5.0]),
    )


def _curve(chance: random.Random) -> Curve:
    base, kind = chance.uniform(100.0, 10_000.0), chance.choice(["wild", "noise", "steps"])
    rates = [_rate(kind, n, chance) for n in CURVE_SIZES]
    return Curve(sizes=CURVE_SIZES, samples_per_s=tuple(base * rate for rate in rates))


def _rate(kind: str, n: int, chance: random.Random) -> float:
    if kind == "wild":
        return chance.uniform(0.2, 1.2) * math.pow(n, chance.uniform(0.0, 0.8))
    if kind == "noise":
        return math.pow(n, 0.8) * chance.uniform(0.6, 1.4)
    return (n // 4 + 0.5) * chance.uniform(0.9, 1.1)


def _caps(
    what: str,
    groups: Sequence[int],
    trainers: Sequence[ProblemTrainer],
    n_nodes: int,
    chance: random.Random,
) -> Iterator[Cap]:
    n_groups = max(groups) + 1
    for number in range(n_groups):
        own = [t for t, group in zip(trainers, groups, strict=True) if group == number]
        n_held = sum([len(t.current) for t in own])
        most = max(2, chance.randint(n_held // 2, n_held + n_nodes // n_groups))
        yield Cap(name=f"{what} {number}", trainers=tuple(t.trainer_id for t in own), most=most)
