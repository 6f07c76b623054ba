"""Random allocation problems for benchmarks and tests: a family, two sizes, a seed. Pure.

The same arguments always give the same problem. The large ones are for timing, by
family; the small ones have every feature of the problem, so that solvers can be compared.
"""

from __future__ import annotations

import random
from dataclasses import replace

from bftrainer.lab.workloads import NETWORKS
from milp.problem import Curve, Objective, Problem, ProblemNode, ProblemTrainer

# What each family is hard for. "mixed" is the paper's set of models; "wide" has no cap
# on the size; "N classes" tells N node types apart; "mixes" lets trainers mix three. Nodes
# of "ends" leave at different times.
ADVERSARIAL = ("equal", "gaps", "spikes", "parity")
FAMILIES = (
    "mixed",
    *ADVERSARIAL,
    "wide",
    "2 classes",
    "3 classes",
    "6 classes",
    "mixes",
    "ends",
)
T_FWD_S = 120.0
RESCALE_UP_S, RESCALE_DOWN_S = 18.0, 12.0
HORIZONS_S = (None, None, 30.0, 60.0, 90.0, 300.0, 900.0)
_SMALL_T_FWD_S = (1.0, 5.0, 120.0)


def draw_problem(n_trainers: int, n_nodes: int, family: str, seed: int) -> Problem:
    """Draw a problem of one of ``FAMILIES``."""
    if family not in FAMILIES:
        raise ValueError(f"no family {family!r}; there are {', '.join(FAMILIES)}")
    chance = random.Random(f"{family} {n_trainers} {n_nodes} {seed}")  # noqa: S311 - a benchmark
    if family == "parity":
        n_nodes -= 1 - n_nodes % 2  # odd, and every size is even: the pool cannot be filled
    classes = _classes_of(family)
    nodes = tuple(
        ProblemNode(name=f"n{i:05}", eligibility=chance.choice(classes), switch=f"s{i // 18}")
        for i in range(n_nodes)
    )
    if family == "ends":
        nodes = tuple(_with_end(node, chance) for node in nodes)
    idle: dict[str, list[str]] = {c: [n.name for n in nodes if n.eligibility == c] for c in classes}
    trainers: list[ProblemTrainer] = []
    for j in range(n_trainers):
        trainer = _draw_trainer(f"t{j}", family, n_nodes, chance)
        home = chance.choice(classes)
        most = min(64, trainer.n_max, 2 * n_nodes // n_trainers, len(idle[home]))
        n_current = chance.randint(0, most)
        n_current = n_current if n_current >= trainer.n_min else 0
        current, idle[home] = idle[home][:n_current], idle[home][n_current:]
        others = {c for c in classes if chance.random() < 0.5}
        trainers.append(
            replace(
                trainer,
                current=tuple(current),
                eligible=tuple(sorted({home} | others)) if len(classes) > 1 else (),
            )
        )
    return Problem(
        nodes=nodes,
        trainers=tuple(trainers),
        t_fwd_s=T_FWD_S,
        p_jmax=n_trainers,
    )


def without_current(problem: Problem) -> Problem:
    """The same problem on a pool of which nobody holds anything yet."""
    return replace(problem, trainers=tuple(replace(t, current=()) for t in problem.trainers))


def _classes_of(family: str) -> str:
    if family.endswith("classes"):
        return "abcdefghi"[: int(family[0])]
    return "abc" if family == "mixes" else "a"


def _with_end(node: ProblemNode, chance: random.Random) -> ProblemNode:
    """Give a node an end, and most of them a pilot."""
    has_pilot = chance.random() < 0.6
    return replace(node, expected_remaining_s=chance.choice(HORIZONS_S), has_pilot=has_pilot)


def _draw_trainer(name: str, family: str, n_nodes: int, chance: random.Random) -> ProblemTrainer:
    """Draw a trainer without nodes: bounds and curve are what the families differ in."""
    curve = chance.choice(list(NETWORKS.values())).curve
    n_min, n_max = chance.choice([1, 1, 2, 4, 8, 16, 32]), 64
    if family == "equal":
        curve, n_min = NETWORKS["shufflenet"].curve, 1
    elif family == "gaps":
        n_min = chance.randint(17, 60)  # nothing between 0 and n_min
        n_max = min(64, n_min + chance.randint(0, 7))
    elif family == "spikes":
        curve = _spiky_curve(chance)
    elif family == "parity":
        n_min = n_max = 2 * chance.randint(1, 32)
    elif family == "wide":
        n_max = max(n_nodes, n_min)
        curve = Curve(
            sizes=(*curve.sizes, 256, 1024, 4096),
            samples_per_s=(
                *curve.samples_per_s,
                *(curve.samples_per_s[-1] * factor for factor in (3.2, 9.0, 20.0)),
            ),
        )
    return ProblemTrainer(
        trainer_id=name,
        n_min=n_min,
        n_max=n_max,
        curve=curve,
        rescale_up_s=RESCALE_UP_S,
        rescale_down_s=RESCALE_DOWN_S,
        mixes_classes=family == "mixes" and chance.random() < 0.5,
    )


def _spiky_curve(chance: random.Random) -> Curve:
    """Good at a few sizes only, bad right beside them: neither concave nor rising."""
    base = chance.choice(list(NETWORKS.values())).curve
    (_, first), *others = zip(base.sizes, base.samples_per_s, strict=True)
    rates: dict[int, float] = {1: first}
    for size, rate in others:
        rates[size] = rate * chance.uniform(0.8, 1.0)
        rates[size + 1] = rates[size] * chance.uniform(0.5, 0.9)
    return Curve(sizes=tuple(sorted(rates)), samples_per_s=tuple(rates[n] for n in sorted(rates)))


# ---- small ones with every feature ---------------------------------------------------


def draw_small(seed: int, *, classes: str = "a", extras: bool = False) -> Problem:
    """Draw a problem of at most 8 nodes and 4 trainers that covers every constraint.

    Gaps below n_min, departed nodes, trainers that p_jmax stops, curves of any shape,
    every objective; with several ``classes`` also mixes; with ``extras`` warm-ups.
    """
    chance = random.Random(f"small {classes} {extras} {seed}")  # noqa: S311 - a benchmark
    nodes = tuple(
        ProblemNode(
            name=f"n{i}",
            eligibility=chance.choice(classes),
            expected_remaining_s=chance.choice([None, 10.0, 60.0]),
            has_pilot=chance.choice([False, True, True]),
            switch=chance.choice(["s1", "s2"]),
        )
        for i in range(chance.randint(1, 8))
    )
    free = [*(node.name for node in nodes), "departed"]
    chance.shuffle(free)
    trainers: list[ProblemTrainer] = []
    for j in range(chance.randint(1, 4)):
        trainer = _draw_small_trainer(f"t{j}", classes, chance)
        n_current = min(len(free), chance.choice([0, 0, 1, 2, 3, 4]))
        trainer = replace(trainer, current=tuple(free[:n_current]))
        if extras:
            trainer = replace(trainer, warm_up_s=chance.choice([0.0, 3.0]))
        trainers.append(trainer)
        free = free[n_current:]
    return Problem(
        nodes=nodes,
        trainers=tuple(trainers),
        t_fwd_s=120.0 if extras else chance.choice(_SMALL_T_FWD_S),
        p_jmax=chance.choice([len(trainers), len(trainers), 1, 2]),
        objective=chance.choice(list(Objective)),
    )


def _draw_small_trainer(name: str, classes: str, chance: random.Random) -> ProblemTrainer:
    n_min = chance.choice([1, 1, 2, 3])
    accepted = tuple(sorted(chance.sample(classes, chance.randint(1, len(classes)))))
    return ProblemTrainer(
        trainer_id=name,
        n_min=n_min,
        n_max=n_min + chance.randint(0, 5),
        curve=_small_curve(chance),
        rescale_up_s=chance.choice([0.0, 1.0, 2.5, 18.0]),
        rescale_down_s=chance.choice([0.0, 1.0, 2.5, 12.0]),
        eligible=accepted if len(classes) > 1 else (),
        weight=chance.choice([0.5, 1.0, 2.0]),
        mixes_classes=len(classes) > 1 and chance.random() < 0.3,
        utility=_small_curve(chance),
    )


def _small_curve(chance: random.Random) -> Curve:
    """Any shape; positive at its first size."""
    sizes = sorted(chance.sample(range(1, 9), chance.randint(1, 4)))
    rates = [round(chance.uniform(0, 6), chance.choice([0, 1, 6])) for _ in sizes]
    return Curve(sizes=tuple(sizes), samples_per_s=(max(rates[0], 0.5), *rates[1:]))
