"""Problems and allocations come back from JSON as they were, and have one hash."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings

from milp.codec import (
    allocation_from_dict,
    allocation_to_dict,
    canonical_json,
    problem_from_dict,
    problem_hash,
    problem_to_dict,
)
from milp.problem import Curve, Problem, ProblemError, ProblemNode, ProblemTrainer
from milp.solve import solve
from tests.support.examples import examples
from tests.support.problems import problems

EXAMPLE = Problem(
    nodes=(ProblemNode(name="n\u00e91", gpus=4, expected_remaining_s=1 / 3),),
    trainers=(
        ProblemTrainer(
            trainer_id="t1",
            n_min=1,
            n_max=2,
            curve=Curve(sizes=(1, 2), samples_per_s=(0.1, 0.30000000000000004)),
            rescale_up_s=20.0,
            rescale_down_s=10.0,
        ),
    ),
    t_fwd_s=120.0,
    p_jmax=3,
)


@settings(max_examples=examples(80), deadline=None)
@given(problems(max_nodes=8, max_trainers=4, classes="ab", caps=True))
def test_round_trip(problem: Problem) -> None:
    text = canonical_json(problem_to_dict(problem))
    again = problem_from_dict(json.loads(text))
    assert again == problem
    assert canonical_json(problem_to_dict(again)) == text
    assert problem_hash(again) == problem_hash(problem)
    allocation = solve(problem)
    told = json.loads(canonical_json(allocation_to_dict(allocation)))
    assert allocation_from_dict(told) == allocation


def test_hash_is_of_the_value_not_of_its_spelling() -> None:
    spelled = replace(EXAMPLE, t_fwd_s=120)
    assert problem_hash(spelled) == problem_hash(EXAMPLE)
    assert problem_hash(replace(EXAMPLE, t_fwd_s=121.0)) != problem_hash(EXAMPLE)
    assert (
        problem_hash(EXAMPLE) == "244769b64daf9cc225b1cd82083089c8b219b56802f54a75297788d0cdbf0c55"
    )


def test_left_out_fields_take_their_defaults() -> None:
    data = problem_to_dict(EXAMPLE)
    del data["objective"]
    del data["trainers"][0]["weight"]
    assert problem_from_dict(data) == EXAMPLE


def changed(path: list[Any], value: object) -> dict[str, Any]:
    data = problem_to_dict(EXAMPLE)
    part: Any = data
    for step in path[:-1]:
        part = part[step]
    part[path[-1]] = value
    return data


@pytest.mark.parametrize(
    ("data", "code", "field"),
    [
        ([], "BFT-3030", "problem"),
        (changed(["t_fwd_s"], "120"), "BFT-3030", "problem.t_fwd_s"),
        (changed(["p_jmax"], 1.5), "BFT-3030", "problem.p_jmax"),
        (changed(["p_jmax"], value=True), "BFT-3030", "problem.p_jmax"),
        (changed(["objective"], "fun"), "BFT-3033", "problem.objective"),
        (changed(["nodes", 0, "colour"], "red"), "BFT-3031", "problem.nodes[0]"),
        (changed(["nodes", 0], "n1"), "BFT-3030", "problem.nodes[0]"),
        (changed(["nodes", 0, "expected_remaining_s"], "soon"), "BFT-3030", "expected_remaining"),
        (changed(["trainers"], {}), "BFT-3030", "problem.trainers"),
        (changed(["trainers", 0, "current"], [1]), "BFT-3030", "trainers[0].current[0]"),
        (changed(["trainers", 0, "curve"], {"sizes": [1]}), "BFT-3032", "samples_per_s"),
    ],
)
def test_what_is_wrong_is_named(data: Any, code: str, field: str) -> None:
    with pytest.raises(ProblemError) as caught:
        problem_from_dict(data)
    assert caught.value.code == code
    assert field in caught.value.cause


def test_numbers_json_cannot_say_are_refused() -> None:
    with pytest.raises(ValueError, match="t_fwd_s must be a finite number"):
        problem_hash(replace(EXAMPLE, t_fwd_s=float("nan")))
