"""The published schemas say what the codec reads and writes: fields, types, defaults."""

from __future__ import annotations

import copy
import dataclasses
import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given, settings

from bftrainer.batch import process
from milp import schema
from milp.check import validate
from milp.codec import (
    allocation_from_dict,
    allocation_to_dict,
    problem_from_dict,
    problem_to_dict,
)
from milp.plain import added_fields
from milp.problem import (
    Allocation,
    Cap,
    Curve,
    Marginal,
    Problem,
    ProblemError,
    ProblemNode,
    ProblemTrainer,
)
from milp.solve import solve
from tests.support.examples import examples
from tests.support.json_schema import violations
from tests.support.problems import problems

PROBLEM, ALLOCATION = schema.load("problem"), schema.load("allocation")
CURVE = Curve(sizes=(1, 4), samples_per_s=(1.0, 3.0))
BARE_NODE = ProblemNode(name="n1")
BARE_TRAINER = ProblemTrainer(
    trainer_id="t1", n_min=1, n_max=2, curve=CURVE, rescale_up_s=20.0, rescale_down_s=10.0
)
BARE = Problem(nodes=(BARE_NODE,), trainers=(BARE_TRAINER,), t_fwd_s=120.0, p_jmax=3)
FULL = dataclasses.replace(
    BARE,
    nodes=(dataclasses.replace(BARE_NODE, expected_remaining_s=60.0),),
    trainers=(
        dataclasses.replace(
            BARE_TRAINER,
            current=("n1",),
            settled=("n1",),
            eligible=("default",),
            utility=CURVE,
        ),
    ),
    caps=(Cap(name="user a", trainers=("t1",), most=1),),
)
BARE_ALLOCATION = Allocation(assignment={}, objective=0.0, node_price=0.0)
FULL_ALLOCATION = Allocation(
    assignment={"n1": "t1"},
    objective=1.0,
    node_price=0.5,
    marginals={"t1": Marginal(gain_of_one_more=1.0, loss_of_one_fewer=None)},
)
# Record, the schema of it, and what the codec writes for one with nothing but defaults.
RECORDS: list[tuple[type, Mapping[str, Any], Mapping[str, Any]]] = [
    (Problem, PROBLEM, problem_to_dict(BARE)),
    (ProblemNode, PROBLEM["$defs"]["node"], problem_to_dict(BARE)["nodes"][0]),
    (ProblemTrainer, PROBLEM["$defs"]["trainer"], problem_to_dict(BARE)["trainers"][0]),
    (Cap, PROBLEM["$defs"]["cap"], problem_to_dict(FULL)["caps"][0]),
    (Curve, PROBLEM["$defs"]["curve"], problem_to_dict(BARE)["trainers"][0]["curve"]),
    (Allocation, ALLOCATION, allocation_to_dict(BARE_ALLOCATION)),
    (
        Marginal,
        ALLOCATION["$defs"]["marginal"],
        allocation_to_dict(FULL_ALLOCATION)["marginals"]["t1"],
    ),
]
each_record = pytest.mark.parametrize(
    ("record", "part", "written"), RECORDS, ids=[record.__name__ for record, _, _ in RECORDS]
)
AMOUNT = {"$ref": "#/$defs/amount"}
TYPES: dict[str, tuple[Mapping[str, Any], ...]] = {  # by annotation: the rules that say it
    "str": ({"type": "string"},),
    "bool": ({"type": "boolean"},),
    "int": ({"type": "integer"},),
    "int | None": ({"type": ["integer", "null"]},),
    "float": (AMOUNT, {"type": "number"}),
    "float | None": ({"type": ["number", "null"]},),
    "tuple[int, ...]": ({"type": "array", "items": {"type": "integer", "minimum": 1}},),
    "tuple[float, ...]": ({"type": "array", "items": AMOUNT},),
    "tuple[str, ...]": ({"type": "array", "items": {"type": "string"}},),
    "tuple[ProblemNode, ...]": ({"type": "array", "items": {"$ref": "#/$defs/node"}},),
    "tuple[Cap, ...]": ({"type": "array", "items": {"$ref": "#/$defs/cap"}},),
    "tuple[ProblemTrainer, ...]": ({"type": "array", "items": {"$ref": "#/$defs/trainer"}},),
    "Curve": ({"$ref": "#/$defs/curve"},),
    "Curve | None": ({"anyOf": [{"$ref": "#/$defs/curve"}, {"type": "null"}]},),
    "Mapping[str, str]": ({"type": "object", "additionalProperties": {"type": "string"}},),
    "Mapping[str, Marginal]": (
        {"type": "object", "additionalProperties": {"$ref": "#/$defs/marginal"}},
    ),
}


@each_record
def test_fields_are_those_of_the_codec(
    record: type, part: Mapping[str, Any], written: Mapping[str, Any]
) -> None:
    assert list(part["properties"]) == [field.name for field in dataclasses.fields(record)]
    assert set(part["properties"]) == {*written, *added_fields(record)}
    assert part["additionalProperties"] is False


@each_record
def test_defaults_are_those_of_the_codec(
    record: type, part: Mapping[str, Any], written: Mapping[str, Any]
) -> None:
    has_default = {
        field.name
        for field in dataclasses.fields(record)
        if field.default is not dataclasses.MISSING
        or field.default_factory is not dataclasses.MISSING
    }
    told = {name: rule["default"] for name, rule in part["properties"].items() if "default" in rule}
    added = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in added_fields(record).items()
    }
    defaults = {**added, **written}
    assert told == {name: defaults[name] for name in has_default}
    assert set(part["required"]) == set(part["properties"]) - has_default


@each_record
def test_types_and_units_are_those_of_the_records(
    record: type, part: Mapping[str, Any], written: Mapping[str, Any]
) -> None:
    for field in dataclasses.fields(record):
        rule = part["properties"][field.name]
        assert rule["description"].endswith(".")
        if field.name.endswith("_s"):
            assert "seconds" in rule["description"].lower() or "per second" in rule["description"]
        if field.type == "Objective":
            assert rule["enum"] == ["throughput", "scaling-efficiency", "weighted", "utility"]
            continue
        plain = {k: v for k, v in rule.items() if k in {"type", "$ref", "anyOf", "items"}}
        if rule.get("type") == "object":
            plain["additionalProperties"] = rule["additionalProperties"]
        assert plain in TYPES[str(field.type)]


@pytest.mark.parametrize("name", schema.NAMES)
def test_the_module_prints_the_file(name: str) -> None:
    done = process.run([sys.executable, "-m", "milp.schema", name], timeout_s=60.0)
    assert done.is_ok, done.stderr
    assert json.loads(done.stdout) == schema.load(name)
    assert schema.load(name)["$id"] == f"urn:bftrainer:schema:{name}:1"


def test_there_is_no_other_schema() -> None:
    with pytest.raises(ValueError, match="problem and allocation"):
        schema.load("node")


@settings(max_examples=examples(60), deadline=None)
@given(
    problems(
        max_nodes=5, max_trainers=3, classes="ab", extras=True, mixes=True, caps=True, musts=True
    )
)
def test_what_the_codec_writes_is_valid(problem: Problem) -> None:
    assert violations(problem_to_dict(problem), PROBLEM, PROBLEM) == []


@settings(max_examples=20, deadline=None)
@given(problems(max_nodes=5, max_trainers=3))
def test_what_the_solver_answers_is_valid(problem: Problem) -> None:
    assert violations(allocation_to_dict(solve(problem)), ALLOCATION, ALLOCATION) == []


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a document."""
    yield path
    members: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        members = list(value.items())
    elif isinstance(value, list):
        members = list(enumerate(value))
    for step, member in members:
        yield from paths(member, (*path, step))


def changed(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    document = copy.deepcopy(document)
    part = document
    for step in path[:-1]:
        part = part[step]
    part[path[-1]] = value
    return document


def is_read(document: Any) -> bool:
    try:
        problem_from_dict(document)
    except ProblemError:
        return False
    return True


def is_sound(document: Any) -> bool:
    try:
        validate(problem_from_dict(document))
    except ProblemError:
        return False
    return True


WRONG: tuple[Any, ...] = ("x", 7, 1.5, -1, True, None, [], {}, {"x": 1})


def test_what_the_codec_refuses_is_invalid_and_the_invalid_is_refused() -> None:
    document = problem_to_dict(FULL)
    assert is_sound(document)
    tried = 0
    for path in paths(document):
        for value in WRONG:
            one = changed(document, path, value)
            is_valid = not violations(one, PROBLEM, PROBLEM)
            if not is_read(one):
                assert not is_valid, (path, value)
            if not is_valid:
                assert not is_sound(one), (path, value)
            tried += 1
    assert tried > 300


def test_a_field_too_many_and_one_too_few_are_refused_by_both() -> None:
    for document, rules, read in (
        (problem_to_dict(FULL), PROBLEM, problem_from_dict),
        (allocation_to_dict(FULL_ALLOCATION), ALLOCATION, allocation_from_dict),
    ):
        open_maps = {("assignment",), ("marginals",)}
        for path in paths(document):
            if path in open_maps or not isinstance(at(document, path), dict):
                continue
            one = changed(document, (*path, "colour"), "red")
            assert violations(one, rules, rules)
            with pytest.raises(ProblemError):
                read(one)
            for name in at(document, path):
                one = changed(document, (*path, name), None)
                del at(one, path)[name]
                is_read_without = True
                try:
                    read(one)
                except ProblemError:
                    is_read_without = False
                assert is_read_without == (not violations(one, rules, rules)), (path, name)


def at(document: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        document = document[step]
    return document
