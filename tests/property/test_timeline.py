"""Every term of the objective against its definition, a clock that shares no formula with them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Set as AbstractSet
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from bftrainer.decide.constraints import swaps
from bftrainer.decide.constraints.swaps import Owners
from bftrainer.decide.policies.base import Decided
from milp import worth as product
from milp.check import find_violations
from milp.problem import Allocation, Curve, Objective, Problem, ProblemNode, ProblemTrainer
from milp.reference import timeline
from milp.reference.timeline import (
    NodeChange,
    change_of,
    made_within_horizon,
    rate_by_count,
    worth_of,
)
from milp.solve import solve
from milp.tables import value_table
from milp.victims import choose_victims
from tests.support.examples import examples
from tests.support.late_nodes import made_with_swaps

PROPERTY = settings(max_examples=examples(200), deadline=None)
SIZES = (1, 2, 3, 4, 6, 8)
KINDS = ("linear", "concave", "flat", "stepped", "superlinear", "falling", "any")


def _curve(draw: st.DrawFn, kind: str) -> Curve:
    alone = draw(st.sampled_from([1.0, 100.0, 1000.0]))
    rates = {
        "linear": [float(n) for n in SIZES],
        "concave": [n / (1.0 + 0.12 * (n - 1)) for n in SIZES],
        "flat": [1.0, 1.5, 1.6, 1.8, 1.9, 1.95],
        "stepped": [1.0, 1.0, 1.0, 2.5, 2.5, 4.0],
        "superlinear": [n**1.4 for n in SIZES],
        "falling": [1.0, 1.6, 1.9, 1.8, 1.2, 0.5],
        "any": [1.0, *(draw(st.floats(0.0, 8.0, allow_subnormal=False)) for _ in SIZES[1:])],
    }[kind]
    return Curve(sizes=SIZES, samples_per_s=tuple(alone * rate for rate in rates))


@st.composite
def _problems(draw: st.DrawFn, *, max_nodes: int = 5, classes: str = "a") -> Problem:
    """Small pools with trainers that warm up, of every kind of curve and set of sizes."""
    objective = draw(st.sampled_from(list(Objective)))
    nodes = tuple(
        ProblemNode(name=f"n{i}", eligibility=draw(st.sampled_from(classes)))
        for i in range(draw(st.integers(1, max_nodes)))
    )
    left, trainers = draw(st.permutations([*(node.name for node in nodes), "departed"])), []
    for j in range(draw(st.integers(1, 3))):
        n_current = draw(st.integers(0, min(len(left), 3)))
        current, left = tuple(left[:n_current]), left[n_current:]
        n_min = draw(st.integers(1, 2))
        kind, utility = draw(st.sampled_from(KINDS)), draw(st.sampled_from(KINDS))
        trainers.append(
            ProblemTrainer(
                trainer_id=f"t{j}",
                n_min=n_min,
                n_max=draw(st.integers(n_min, 8)),
                sizes=draw(st.sampled_from([(), (), (1, 2, 4), (2, 3)])),
                curve=_curve(draw, kind),
                utility=_curve(draw, utility) if objective is Objective.UTILITY else None,
                rescale_up_s=draw(st.sampled_from([0.0, 0.5, 30.0, 300.0])),
                rescale_down_s=draw(st.sampled_from([0.0, 0.2, 30.0])),
                warm_up_s=draw(st.sampled_from([0.0, 5.0, 60.0, 500.0])),
                weight=draw(st.sampled_from([0.0, 1.0, 2.5])),
                current=current,
            )
        )
    return Problem(
        nodes=nodes,
        trainers=tuple(trainers),
        t_fwd_s=draw(st.sampled_from([0.0, 10.0, 120.0])),
        p_jmax=draw(st.integers(1, 4)),
        objective=objective,
    )


ONE_CLASS, TWO_CLASSES = _problems(), _problems(max_nodes=4, classes="ab")


def _is(value: float, defined: float, problem: Problem) -> bool:
    return math.isclose(value, defined, rel_tol=1e-9, abs_tol=1e-10 * _scale(problem))


def _scale(problem: Problem) -> float:
    curves = [c for t in problem.trainers for c in (t.curve, t.utility) if c is not None]
    return 1.0 + 300.0 * sum([sum(curve.samples_per_s) for curve in curves])


def _defined(problem: Problem, trainer: ProblemTrainer, size: int) -> float:
    """What the trainer makes with ``size`` nodes, of its own as far as there are."""
    own = [node.name for node in problem.nodes if node.name in trainer.current]
    others = [f"new{k}" for k in range(size)]
    change = change_of(problem, trainer, {*[*own, *others][:size]})
    rate = rate_by_count(trainer, problem.objective)
    return float(made_within_horizon(trainer, change, horizon_s=problem.t_fwd_s, rate=rate))


@PROPERTY
@given(ONE_CLASS)
def test_values_of_sizes_are_what_the_clock_counts(problem: Problem) -> None:
    pool = {node.name for node in problem.nodes}
    for trainer in problem.trainers:
        present = len(pool.intersection(trainer.current))
        values = value_table(
            trainer, present, 8, t_fwd_s=problem.t_fwd_s, objective=problem.objective
        )
        for size, value in enumerate(values.tolist()):
            # The clock lets nobody have a size that it may not have.
            if size in {0, present} or trainer.largest_of(size) == size:
                assert _is(value, _defined(problem, trainer, size), problem), (trainer, size)


@PROPERTY
@given(st.one_of(ONE_CLASS, TWO_CLASSES))
def test_no_map_makes_more_than_the_answer(problem: Problem) -> None:
    answer = solve(problem)
    made = worth_of(problem, answer.assignment)
    assert _is(answer.objective, made, problem)
    assert find_violations(problem, answer) == []
    choices = (None, *(trainer.trainer_id for trainer in problem.trainers))
    for owners in itertools.product(choices, repeat=len(problem.nodes)):
        pairs = zip(problem.nodes, owners, strict=True)
        assignment = {node.name: owner for node, owner in pairs if owner is not None}
        other = worth_of(problem, assignment)
        stated = Allocation(assignment=assignment, objective=other, node_price=0.0)
        # The checker, too: of a map that is allowed it takes the clock's worth for right.
        objections = find_violations(problem, stated)
        assert len(objections) != 1 or not objections[0].startswith("the objective is")
        if not objections:
            assert other <= made + 1e-9 * _scale(problem)
    is_growth = any(
        size > sum(node.name in trainer.current for node in problem.nodes) > 0
        for trainer in problem.trainers
        if (size := answer.sizes().get(trainer.trainer_id, 0))
    )
    event("a trainer grows" if is_growth else "nobody grows")


@PROPERTY
@given(ONE_CLASS)
def test_marginal_values_are_differences_of_the_clock(problem: Problem) -> None:
    answer = solve(problem)
    sizes = answer.sizes()
    for trainer in problem.trainers[: problem.p_jmax]:
        size = sizes.get(trainer.trainer_id, 0)
        marginal, here = answer.marginals[trainer.trainer_id], _defined(problem, trainer, size)
        if marginal.gain_of_one_more is not None:
            gain = _defined(problem, trainer, size + 1) - here
            assert _is(marginal.gain_of_one_more, gain, problem)
        if marginal.loss_of_one_fewer is not None:
            loss = here - _defined(problem, trainer, trainer.largest_of(size - 1))
            assert _is(marginal.loss_of_one_fewer, loss, problem)


@PROPERTY
@given(ONE_CLASS, st.data())
def test_nodes_given_back_cost_the_least_by_the_clock(
    problem: Problem, data: st.DataObject
) -> None:
    held = [n.name for n in problem.nodes if any(n.name in t.current for t in problem.trainers)]
    count = data.draw(st.integers(0, len(held)))

    def cost(going: AbstractSet[str]) -> float:
        total = 0.0
        for trainer in problem.trainers:
            own = [name for name in held if name in trainer.current]
            stays = [name for name in own if name not in going]
            left = len(own) if len(stays) == len(own) else trainer.largest_of(len(stays))
            total += _defined(problem, trainer, len(own)) - _defined(problem, trainer, left)
        return total

    chosen = choose_victims(problem, count)
    assert _is(chosen.cost, cost({*chosen.nodes}), problem)
    least = min(cost({*going}) for going in itertools.combinations(held, count))
    assert chosen.cost <= least + 1e-9 * _scale(problem)


@PROPERTY
@given(ONE_CLASS, st.data())
def test_slow_nodes_are_counted_as_the_clock_counts_them(
    problem: Problem, data: st.DataObject
) -> None:
    names = [node.name for node in problem.nodes]
    fractions = {n: data.draw(st.sampled_from([0.25, 0.5, 0.8])) for n in names[: len(names) // 2]}
    ids = [None, *(trainer.trainer_id for trainer in problem.trainers)]
    assignment = {n: its for n in names if (its := data.draw(st.sampled_from(ids))) is not None}
    made = 0.0
    for trainer in problem.trainers:
        gets = {name for name, its in assignment.items() if its == trainer.trainer_id}
        change = change_of(problem, trainer, gets)
        # The clock lets it have any number, as the sum does: what it may have, others look after.
        free = replace(trainer, n_min=1, n_max=8, sizes=())
        in_step = rate_by_count(free, problem.objective)

        def rate(nodes: AbstractSet[str]) -> Fraction:
            slowest = min([Fraction(fractions.get(name, 1.0)) for name in nodes], default=1)
            return in_step(nodes) * slowest  # noqa: B023 - called before the next one

        made += float(made_within_horizon(free, change, horizon_s=problem.t_fwd_s, rate=rate))
    assert _is(product.worth(problem, fractions, assignment), made, problem)


# ---- nodes that come from another user -------------------------------------------------------

SWAP_S = 2.0


@PROPERTY
@given(ONE_CLASS, st.data())
def test_nodes_that_move_between_users_cost_what_the_clock_says(
    problem: Problem, data: st.DataObject
) -> None:
    users = st.sampled_from(["ann", "bob"])
    trainers = {t.trainer_id: data.draw(users) for t in problem.trainers}
    own = {name: trainers[t.trainer_id] for t in problem.trainers for name in t.current}
    pilots = {node.name: own.get(node.name) or data.draw(users) for node in problem.nodes}
    owners = Owners(pilots=pilots, trainers=trainers)

    def answer(asked: Problem) -> Decided:
        return Decided(allocation=solve(asked))

    plain = solve(problem)
    priced = swaps._worth(plain, problem, owners, SWAP_S)
    made = float(
        sum(
            made_with_swaps(problem, trainer, plain.assignment, owners, SWAP_S)
            for trainer in problem.trainers
        )
    )
    # A trainer that is slower with more nodes gains by a delay; that is not counted as a gain.
    assert priced <= made + 1e-9 * _scale(problem) or priced <= plain.objective
    rises = all(
        a <= b
        for trainer in problem.trainers
        for curve in (trainer.utility or trainer.curve,)
        for a, b in itertools.pairwise(curve.samples_per_s)
    )
    if rises:
        assert _is(priced, made, problem)
    event("a swap" if owners.swaps(plain.assignment) else "no swap")
    chosen = swaps.PricedSwaps(owners=owners, swap_s=SWAP_S).answer(problem, answer).allocation
    assert swaps._worth(chosen, problem, owners, SWAP_S) >= priced - 1e-9 * _scale(problem)


# ---- by hand ---------------------------------------------------------------------------------

FLAT = Curve(sizes=(1, 2, 3), samples_per_s=(10.0, 15.0, 18.0))
ONE = ProblemTrainer(
    trainer_id="t", n_min=1, n_max=3, curve=FLAT, rescale_up_s=2.0, rescale_down_s=1.0
)


@pytest.mark.parametrize(
    ("has", "gets", "warm_at_s", "made"),
    [
        # 100 s at 15, no change
        ("ab", "ab", {}, 1500.0),
        # 30 s at 10, a pause of 2 s at 10, 70 s at 15
        ("a", "ab", {"b": 30.0}, 300.0 - 20.0 + 1050.0),
        # 30 s at 10, 2 s, 20 s at 15, 2 s at 15, 50 s at 18
        ("a", "abc", {"b": 30.0, "c": 50.0}, 300.0 - 20.0 + 300.0 - 30.0 + 900.0),
        # starts from none: 30 s nothing, 70 s at 15, and no pause of anything
        ("", "ab", {"a": 30.0, "b": 30.0}, 1050.0),
        # leaves at once: a pause of 1 s at 18, 100 s at 10
        ("abc", "a", {}, 1000.0 - 18.0),
        # b is replaced by c: trains on until c is warm; 2 s at 15
        ("ab", "ac", {"c": 30.0}, 1500.0 - 30.0),
        # is warm after the horizon: pays its pause all the same
        ("a", "ab", {"b": 130.0}, 1000.0 - 20.0),
    ],
)
def test_the_clock(has: str, gets: str, warm_at_s: dict[str, float], made: float) -> None:
    change = NodeChange(has=frozenset(has), gets=frozenset(gets), warm_at_s=warm_at_s)
    rate = timeline.rate_by_count(ONE, Objective.THROUGHPUT)
    assert made_within_horizon(ONE, change, horizon_s=100.0, rate=rate) == made


def test_more_nodes_of_a_flat_curve_are_taken_though_they_warm_up_for_long() -> None:
    """Of 12% that cannot be shared 8 nodes make 4,348, 16 make 5,714 samples per second."""
    rates = tuple(1000.0 * n / (1.0 + 0.12 * (n - 1)) for n in (1, 2, 4, 8, 16))
    nodes = [ProblemNode(name=f"n{k:02}") for k in range(16)]
    trainer = ProblemTrainer(
        trainer_id="t",
        n_min=1,
        n_max=16,
        curve=Curve(sizes=(1, 2, 4, 8, 16), samples_per_s=rates),
        rescale_up_s=0.3,
        rescale_down_s=0.2,
        warm_up_s=60.0,
        current=tuple(node.name for node in nodes[:8]),
    )
    problem = Problem(nodes=tuple(nodes), trainers=(trainer,), t_fwd_s=120.0, p_jmax=1)
    answer = solve(problem)
    assert answer.sizes() == {"t": 16}
    assert answer.objective == pytest.approx(60 * rates[3] + 60 * rates[4] - 0.3 * rates[3])
    assert answer.objective == pytest.approx(602_422, abs=1.0)
