"""Random allocation problems and their answer by trying every map, for the milp tests."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import strategies as st

from milp.check import find_violations, objective_value
from milp.problem import Allocation, Cap, Curve, Objective, Problem, ProblemNode, ProblemTrainer

# Whole numbers make true ties, tenths make ties that float sums miss by a rounding.
RATES = st.one_of(
    st.integers(0, 6).map(float),
    st.integers(0, 60).map(lambda tenths: 0.1 * tenths),
    st.floats(0, 6, allow_subnormal=False),
)


@st.composite
def curves(draw: st.DrawFn) -> Curve:
    """Any shape: concave, convex, falling, linear; positive at its first size."""
    sizes = sorted(draw(st.sets(st.integers(1, 8), min_size=1, max_size=4)))
    if draw(st.booleans()):
        slope = draw(st.sampled_from([0.1, 0.3, 1.0]))
        return Curve(sizes=tuple(sizes), samples_per_s=tuple(slope * n for n in sizes))
    rates = draw(st.lists(RATES, min_size=len(sizes), max_size=len(sizes)))
    return Curve(sizes=tuple(sizes), samples_per_s=(max(rates[0], 0.5), *rates[1:]))


@st.composite
def problems(
    draw: st.DrawFn,
    *,
    max_nodes: int = 4,
    max_trainers: int = 3,
    classes: str = "a",
    mixes: bool = False,
    extras: bool = False,
    caps: bool = False,
    musts: bool = False,
    sets: bool = False,
) -> Problem:
    """Problems with every feature: gaps below n_min, departed nodes, waiting trainers.

    ``mixes`` adds trainers that mix classes, ``extras`` warm-ups, ``caps`` caps of any groups,
    ``musts`` those that must run, ``sets`` those that may have certain sizes only.
    """
    objective = draw(st.sampled_from(list(Objective)))
    switches = st.sampled_from(["s1", "s2"])
    nodes = tuple(
        ProblemNode(
            name=f"n{i}",
            eligibility=draw(st.sampled_from(classes)),
            expected_remaining_s=draw(st.sampled_from([None, 10.0, 60.0])),
            switch=draw(switches),
            has_pilot=draw(st.booleans()),
        )
        for i in range(draw(st.integers(0, max_nodes)))
    )
    names = draw(st.permutations([*(node.name for node in nodes), "departed"]))
    trainers: list[ProblemTrainer] = []
    for j in range(draw(st.integers(0, max_trainers))):
        n_current = draw(st.integers(0, min(len(names), 4)))
        current, names = tuple(names[:n_current]), names[n_current:]
        n_min = draw(st.integers(1, 3))
        n_max = n_min + draw(st.integers(0, 6))
        within = st.sets(st.integers(max(1, n_min - 1), n_max + 1))  # some beyond its bounds
        trainers.append(
            ProblemTrainer(
                trainer_id=f"t{j}",
                n_min=n_min,
                n_max=n_max,
                sizes=tuple(sorted(draw(within))) if sets else (),
                curve=draw(curves()),
                rescale_up_s=draw(st.sampled_from([0.0, 1.0, 2.5])),
                rescale_down_s=draw(st.sampled_from([0.0, 1.0, 2.5])),
                current=current,
                eligible=tuple(sorted(draw(st.sets(st.sampled_from(classes)))))
                if len(classes) > 1
                else (),
                weight=draw(st.sampled_from([0.0, 1.0, 2.0])),
                warm_up_s=draw(st.sampled_from([0.0, 0.0, 3.0])) if extras else 0.0,
                mixes_classes=mixes and draw(st.booleans()),
                utility=draw(curves()) if objective is Objective.UTILITY else None,
                must_run=musts and draw(st.sampled_from([False, False, True])),
            )
        )
    return Problem(
        nodes=nodes,
        trainers=tuple(trainers),
        t_fwd_s=draw(st.sampled_from([0.0, 1.0, 5.0, 120.0])),
        p_jmax=draw(st.integers(0, len(trainers) + 1)),
        objective=objective,
        caps=tuple(draw(st.lists(_caps(len(trainers)), max_size=3))) if caps else (),
    )


@st.composite
def _caps(draw: st.DrawFn, n_trainers: int) -> Cap:
    members = draw(st.sets(st.integers(0, n_trainers)))  # one of them is no trainer
    return Cap(
        name="the group",
        trainers=tuple([f"t{j}" for j in sorted(members)]),
        most=draw(st.integers(0, 5)),
    )


def present_sizes(problem: Problem) -> tuple[int, ...]:
    """C_j of every trainer."""
    pool = {node.name for node in problem.nodes}
    return tuple(sum(name in pool for name in t.current) for t in problem.trainers)


def sizes_of(problem: Problem, allocation: Allocation) -> tuple[int, ...]:
    """Size of every trainer, in FCFS order."""
    sizes = allocation.sizes()
    return tuple(sizes.get(trainer.trainer_id, 0) for trainer in problem.trainers)


def try_every_map(problem: Problem) -> tuple[float, tuple[int, ...]]:
    """The optimum and the sizes the tie rule picks, from all (J + 1) ** N maps."""
    before = present_sizes(problem)
    owners: Sequence[str | None] = (None, *(t.trainer_id for t in problem.trainers))
    values: dict[tuple[int, ...], float] = {}
    for owner_by_node in itertools.product(owners, repeat=len(problem.nodes)):
        pairs = zip(problem.nodes, owner_by_node, strict=True)
        assignment = {node.name: owner for node, owner in pairs if owner is not None}
        allocation = Allocation(assignment=assignment, objective=0.0, node_price=0.0)
        sizes = sizes_of(problem, allocation)
        if sizes in values:
            continue
        value = objective_value(problem, allocation.sizes())
        if not find_violations(problem, replace(allocation, objective=value)):
            values[sizes] = value
    best = max(values.values())
    scale = 1.0 + max(abs(value) for value in values.values())
    tied = [sizes for sizes, value in values.items() if value >= best - 1e-10 * scale]

    def preference(sizes: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
        rescales = sum(old != new for old, new in zip(before, sizes, strict=True))
        return -rescales, sizes

    return best, max(tied, key=preference)


def with_current(problem: Problem, allocation: Allocation) -> Problem:
    """The same problem after the allocation has been carried out."""
    nodes: dict[str, list[str]] = {}
    for name, trainer_id in allocation.assignment.items():
        nodes.setdefault(trainer_id, []).append(name)
    return replace(
        problem,
        trainers=tuple(
            replace(trainer, current=tuple(nodes.get(trainer.trainer_id, ())))
            for trainer in problem.trainers
        ),
    )


def without_extras(problem: Problem) -> Problem:
    """The same problem with the paper's two costs only: nobody warms up."""
    return replace(
        problem,
        trainers=tuple(replace(trainer, warm_up_s=0.0) for trainer in problem.trainers),
    )
