"""Hosts whose GPUs are lent one by one: what is refused, checked, placed and given back."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace

import pytest

from milp.check import allocation_value, check, find_violations, validate
from milp.hosts import FreeHost, UnitKind
from milp.placement.packing import pack
from milp.placement.place import place
from milp.pool import view_pool
from milp.problem import (
    Allocation,
    Cap,
    Curve,
    Problem,
    ProblemError,
    ProblemNode,
    ProblemTrainer,
    unit_sizes,
)
from milp.reference.solve import keep_map
from milp.solve import solve
from milp.victims import choose_victims, choose_victims_on
from milp.worth import objective_value
from tests.support.host_problems import draw

RISING = Curve(sizes=(1, 100), samples_per_s=(1.0, 100.0))


def gpus(
    host: str, count: int, *, of: int = 8, start: int = 0, **fields: object
) -> list[ProblemNode]:
    """Return free GPUs of a host."""
    return [
        ProblemNode(name=f"{host}/g{start + i}", host=host, host_width=of, **fields)  # type: ignore[arg-type]
        for i in range(count)
    ]


def part(name: str, width: int, *, of: int = 8, **fields: object) -> ProblemNode:
    """Return a part that a pilot holds."""
    host, _, _ = name.partition("/")
    return ProblemNode(
        name=name,
        host=host,
        width=width,
        host_width=of,
        has_pilot=True,
        **fields,  # type: ignore[arg-type]
    )


def trainer(
    name: str, width: int, *current: str, n_max: int = 1, **fields: object
) -> ProblemTrainer:
    plain = ProblemTrainer(
        trainer_id=name,
        n_min=1,
        n_max=n_max,
        curve=RISING,
        rescale_up_s=0.0,
        rescale_down_s=0.0,
        current=current,
        settled=current,
        width=width,
    )
    return replace(plain, **fields)  # type: ignore[arg-type]


def problem(
    nodes: list[ProblemNode], *trainers: ProblemTrainer, caps: tuple[Cap, ...] = ()
) -> Problem:
    return Problem(
        nodes=tuple(nodes), trainers=trainers, t_fwd_s=100.0, p_jmax=len(trainers), caps=caps
    )


def solved(asked: Problem) -> dict[str, set[str]]:
    """Return by trainer the names of its nodes, of the exact answer, checked."""
    answer = solve(asked)
    check(asked, answer)
    names: dict[str, set[str]] = {}
    for name, trainer_id in answer.assignment.items():
        names.setdefault(trainer_id, set()).add(name)
    return names


def hosts_of(names: set[str]) -> set[str]:
    return {name.partition("/")[0] for name in names}


# ---- what a unit is ----------------------------------------------------------------------------


def test_free_gpus_of_one_host_make_a_unit_and_those_of_two_do_not() -> None:
    assert solved(problem([*gpus("h1", 3), *gpus("h2", 3)], trainer("a", 4))) == {}
    assert hosts_of(solved(problem([*gpus("h1", 3), *gpus("h2", 4)], trainer("a", 4)))["a"]) == {
        "h2"
    }


def test_gpus_of_two_types_make_no_unit_together() -> None:
    nodes = [*gpus("h1", 2), *gpus("h1", 2, start=2, eligibility="other")]
    assert solved(problem(nodes, trainer("a", 4))) == {}
    assert len(solved(problem(nodes, trainer("a", 2, n_max=2, mixes_classes=True)))["a"]) == 4


def test_a_part_is_neither_split_nor_combined() -> None:
    nodes = [part("h1/p", 4), *gpus("h1", 3)]
    assert solved(problem(nodes, trainer("a", 2, n_max=9))) == {"a": {"h1/g0", "h1/g1"}}
    assert solved(problem(nodes, trainer("a", 7))) == {}
    assert solved(problem(nodes, trainer("a", 4, n_max=9))) == {"a": {"h1/p"}}


def test_whole_hosts_are_nodes_without_a_host_full_parts_and_all_gpus_of_a_host() -> None:
    nodes = [
        ProblemNode(name="n1"),
        part("h1/p", 8),
        *gpus("h2", 8),
        *gpus("h3", 7),
        part("h4/p", 4),
    ]
    asked = problem(nodes, trainer("a", 0, n_max=9))
    answer = solve(asked)
    assert answer.unit_sizes(asked) == {"a": 3}
    assert hosts_of(set(answer.assignment)) == {"n1", "h1", "h2"}


def test_who_asks_for_gpus_takes_no_nodes_without_a_host() -> None:
    assert solved(problem([ProblemNode(name="n1", gpus=8)], trainer("a", 8))) == {}


def test_a_part_of_another_width_is_given_up() -> None:
    nodes = [part("h1/p", 2), *gpus("h2", 8)]
    assert solved(problem(nodes, trainer("a", 4, "h1/p", n_max=2))) == {}


def test_sizes_count_units_in_worth_and_caps() -> None:
    asked = problem(
        [*gpus("h1", 8), *gpus("h2", 8)],
        trainer("a", 4, n_max=9),
        caps=(Cap(name="user", trainers=("a",), most=3),),
    )
    answer = solve(asked)
    assert answer.unit_sizes(asked) == {"a": 3}
    assert len(answer.assignment) == 12
    assert answer.objective == pytest.approx(300.0)
    assert allocation_value(asked, answer.assignment) == pytest.approx(300.0)
    assert answer.marginals["a"].gain_of_one_more is None  # the cap is full


def test_without_hosts_sizes_count_nodes() -> None:
    asked = problem([ProblemNode(name="n1"), ProblemNode(name="n2")], trainer("a", 0, n_max=2))
    assert unit_sizes(asked, {"n1": "a", "n2": "a"}) == {"a": 2}


def test_of_trainers_of_two_widths_the_one_that_makes_more_of_the_gpus_has_them() -> None:
    worthy = Curve(sizes=(1,), samples_per_s=(9.0,))
    nodes = gpus("h1", 8)
    single = trainer("single", 1, n_max=8)
    assert len(solved(problem(nodes, single, trainer("wide", 8, curve=worthy)))["wide"]) == 8
    worthless = Curve(sizes=(1,), samples_per_s=(7.0,))
    names = solved(problem(nodes, single, trainer("wide", 8, curve=worthless)))
    assert len(names["single"]) == 8


def test_contended_parts_do_not_make_a_trainer_migrate() -> None:
    """One of width 8 has the full part that one of whole hosts wants; another 8 is free."""
    nodes = [part("h1/p", 8), part("h2/p", 8, of=16)]
    has_it = trainer("eight", 8, "h1/p", rescale_down_s=1.0)
    assert solved(problem(nodes, has_it, trainer("whole", 0))) == {"eight": {"h1/p"}}
    names = solved(problem(nodes, trainer("eight", 8), trainer("whole", 0)))
    assert names == {"eight": {"h2/p"}, "whole": {"h1/p"}}


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "changes", "code"),
    [
        ([part("h1/p", 0)], {}, "BFT-3013"),
        ([part("h1/p", 9)], {}, "BFT-3013"),
        ([part("h1/p", -1)], {}, "BFT-3013"),
        ([replace(part("h1/p", 2), has_pilot=False)], {}, "BFT-3014"),
        ([part("h1/p", 2), part("h1/q", 2, of=4)], {}, "BFT-3015"),
        ([part("h1/p", 6), *gpus("h1", 3)], {}, "BFT-3016"),
        ([], {"width": -1}, "BFT-3017"),
        (gpus("h1", 1), {"current": ("h1/g0",)}, "BFT-3018"),
    ],
)
def test_hosts_and_widths_that_do_not_fit_are_refused(
    nodes: list[ProblemNode], changes: dict[str, object], code: str
) -> None:
    asked = problem(nodes, replace(trainer("a", 1), **changes))  # type: ignore[arg-type]
    with pytest.raises(ProblemError) as refused:
        validate(asked)
    assert refused.value.code == code


# ---- what the checker finds ----------------------------------------------------------------------

CHECKED = problem(
    [part("h1/p", 4), part("h1/q", 2), *gpus("h2", 6), ProblemNode(name="n1")],
    trainer("a", 4, "h1/p", n_max=3),
    trainer("w", 0, n_max=3),
)


@pytest.mark.parametrize(
    ("assignment", "violation"),
    [
        ({"h1/p": "a", "h1/q": "a"}, "has h1/q, which is no unit of 4 GPUs"),
        ({"h1/p": "a", "h2/g0": "a"}, "has 1 free GPUs of h2, no multiple of 4"),
        ({"h1/p": "a", "n1": "a"}, "has n1, which is no unit of 4 GPUs"),
        ({"h1/p": "w"}, "has h1/p, which is no unit of a whole host"),
        ({f"h2/g{i}": "w" for i in range(6)}, "has 6 free GPUs of h2, no multiple of 8"),
        ({f"h2/g{i}": "a" for i in range(4)}, "migrates"),
    ],
)
def test_the_checker_names_what_is_no_unit(assignment: dict[str, str], violation: str) -> None:
    value = objective_value(CHECKED, unit_sizes(CHECKED, assignment))
    answer = Allocation(assignment=assignment, objective=value, node_price=0.0)
    assert any(violation in sentence for sentence in find_violations(CHECKED, answer))


def test_the_checker_accepts_units() -> None:
    assignment = {"h1/p": "a", **{f"h2/g{i}": "a" for i in range(4)}, "n1": "w"}
    value = objective_value(CHECKED, {"a": 2, "w": 1})
    answer = Allocation(assignment=assignment, objective=value, node_price=0.0)
    assert find_violations(CHECKED, answer) == []


# ---- where units are placed ----------------------------------------------------------------------


def test_leftover_gpus_come_before_a_wholly_free_host() -> None:
    nodes = [*gpus("h1", 8), *gpus("h2", 5), *gpus("h3", 3)]
    assert hosts_of(solved(problem(nodes, trainer("a", 2)))["a"]) == {"h3"}
    assert hosts_of(solved(problem(nodes, trainer("a", 4)))["a"]) == {"h2"}
    assert hosts_of(solved(problem(nodes, trainer("a", 1, n_max=8)))["a"]) == {"h2", "h3"}


def test_ready_parts_come_before_free_gpus() -> None:
    nodes = [*gpus("h1", 2), part("h2/p", 2)]
    assert solved(problem(nodes, trainer("a", 2))) == {"a": {"h2/p"}}


def test_of_hosts_alike_the_one_that_is_free_longest_is_taken() -> None:
    nodes = [
        *gpus("h1", 2, expected_remaining_s=60.0),
        *gpus("h2", 2, expected_remaining_s=900.0),
        *gpus("h3", 2, expected_remaining_s=300.0),
    ]
    assert hosts_of(solved(problem(nodes, trainer("a", 2)))["a"]) == {"h2"}


def test_a_trainer_that_grows_stays_on_its_host_where_that_costs_nothing() -> None:
    nodes = [*gpus("h1", 4), part("h2/p", 2), *gpus("h2", 4), *gpus("h3", 4)]
    names = solved(problem(nodes, trainer("a", 2, "h2/p", n_max=3)))["a"]
    assert hosts_of(names) == {"h2"}


def test_units_of_a_trainer_are_kept_together() -> None:
    nodes = [node for h in range(4) for node in gpus(f"h{h}", 4, of=4, switch=f"s{h // 2}")]
    names = solved(problem(nodes, trainer("a", 1, n_max=8), trainer("b", 1, n_max=8)))
    assert sorted([hosts_of(names["a"]), hosts_of(names["b"])], key=min) == [
        {"h0", "h1"},
        {"h2", "h3"},
    ]


def test_who_shrinks_keeps_what_trains_and_stays_longest() -> None:
    nodes = [
        part("h1/p", 2, expected_remaining_s=60.0),
        part("h2/p", 2),
        part("h3/p", 2),
    ]
    shrinking = trainer("a", 2, "h1/p", "h2/p", "h3/p", n_max=1)
    assert solved(problem(nodes, replace(shrinking, settled=("h1/p", "h2/p")))) == {"a": {"h2/p"}}


def test_units_that_do_not_fit_greedily_are_packed_by_the_plan() -> None:
    """In 6 and 7 free GPUs there is room for 2 of 3 and 3 of 2 only if the 3s are together."""
    nodes = [*gpus("h1", 6), *gpus("h2", 7)]
    asked = problem(nodes, trainer("two", 2, n_max=2), trainer("five", 5), trainer("four", 4))
    free = [
        FreeHost(h, "default", 8, [f"{h}/{i}" for i in range(n)]) for h, n in (("h1", 6), ("h2", 7))
    ]
    wanted = {UnitKind("default", 2): 2, UnitKind("default", 5): 1, UnitKind("default", 4): 1}
    assert pack(free, wanted, {}, [math.inf] * len(free)) is None
    answer = solve(asked)
    check(asked, answer)
    assert answer.unit_sizes(asked) == {"two": 2, "five": 1, "four": 1}


def test_the_pool_counts_units_of_each_kind() -> None:
    pool = view_pool(
        problem(
            [*gpus("h1", 7), part("h2/p", 2)], trainer("a", 2), trainer("b", 3), trainer("c", 8)
        )
    )
    assert pool.counts() == (4, 2)  # of 2 and of 3 GPUs; there is none of 8
    assert [list(accepts) for accepts in pool.accepts] == [
        [True, False],
        [False, True],
        [False, False],
    ]


@pytest.mark.parametrize("seed", range(60))
def test_any_sizes_within_counts_apart_can_be_placed(seed: int) -> None:
    asked = draw(seed)
    bare = [replace(t, current=(), settled=(), must_run=False) for t in asked.trainers]
    asked = replace(asked, trainers=tuple(bare))
    pool, chance = view_pool(asked, is_apart=True), random.Random(seed)  # noqa: S311 - a test
    left, split = list(pool.counts()), list[list[int]]()
    for accepts in pool.accepts:
        sizes = [0] * len(left)
        k = chance.choice([k for k, is_its in enumerate(accepts) if is_its] or [0])
        sizes[k] = left[k] if accepts[k] else 0
        left[k] -= sizes[k]
        split.append(sizes)
    assignment = place(asked, pool, split)
    sizes_of = unit_sizes(asked, assignment)
    assert [sum(row) for row in split] == [sizes_of.get(t.trainer_id, 0) for t in pool.trainers]


@pytest.mark.parametrize("seed", range(30))
def test_the_current_map_without_what_is_not_allowed_is_legal(seed: int) -> None:
    asked = draw(seed)
    asked = replace(asked, trainers=tuple([replace(t, must_run=False) for t in asked.trainers]))
    kept = keep_map(asked)
    answer = Allocation(assignment=kept, objective=allocation_value(asked, kept), node_price=0.0)
    assert find_violations(asked, answer) == []


# ---- what is given back --------------------------------------------------------------------------


def test_victims_count_parts() -> None:
    asked = problem([part("h1/p", 4), part("h2/p", 2)], trainer("a", 4, "h1/p"))
    assert choose_victims(asked, 1).nodes == ("h2/p",)


def test_gpus_of_a_host_are_freed_at_the_least_cost() -> None:
    nodes = [part("h1/p", 4), part("h1/q", 2), part("h1/r", 1), part("h2/p", 4)]
    asked = problem(nodes, trainer("four", 4, "h1/p", "h2/p", n_max=2), trainer("two", 2, "h1/q"))
    assert choose_victims_on(asked, "h1", 1).nodes == ("h1/r",)
    assert set(choose_victims_on(asked, "h1", 2).nodes) == {"h1/q"}
    assert set(choose_victims_on(asked, "h1", 3).nodes) == {"h1/r", "h1/q"}
    freed = choose_victims_on(asked, "h1", 7)
    assert set(freed.nodes) == {"h1/p", "h1/q", "h1/r"}
    assert freed.sizes_after == {"four": 1, "two": 0}
    assert choose_victims_on(asked, "h1", 4, candidates=("h1/p",)).nodes == ("h1/p",)


def test_more_gpus_than_a_host_has_of_ours_are_refused() -> None:
    asked = problem([part("h1/p", 4)], trainer("a", 4, "h1/p"))
    with pytest.raises(ProblemError) as refused:
        choose_victims_on(asked, "h1", 5)
    assert refused.value.code == "BFT-3062"


@pytest.mark.parametrize("seed", range(25))
def test_no_other_parts_of_a_host_cost_less(seed: int) -> None:
    asked = draw(seed)
    chance = random.Random(seed)  # noqa: S311 - a test
    pool = {node.name for node in asked.nodes}
    for host in sorted({node.host for node in asked.nodes if node.has_pilot and node.host}):
        own = [node for node in asked.nodes if node.host == host and node.has_pilot]
        n_gpus = chance.randint(1, sum(node.width for node in own))
        found = choose_victims_on(asked, host, n_gpus)
        assert sum(node.width for node in own if node.name in found.nodes) >= n_gpus
        ways = [way for n in range(len(own) + 1) for way in itertools.combinations(own, n)]
        enough = [way for way in ways if sum(node.width for node in way) >= n_gpus]
        costs = [_cost(asked, {node.name for node in way}, pool) for way in enough]
        assert found.cost == pytest.approx(min(costs), abs=1e-9)


def _cost(asked: Problem, gone: set[str], pool: set[str]) -> float:
    """Return what trainers lose when those parts are given back."""
    now, after = {}, {}
    for one in asked.trainers:
        present = [name for name in one.current if name in pool]
        now[one.trainer_id] = len(present)
        left = len([name for name in present if name not in gone])
        after[one.trainer_id] = left if left == len(present) else one.largest_of(left)
    return objective_value(asked, now) - objective_value(asked, after)
