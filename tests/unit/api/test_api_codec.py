"""Plain data through JSON and back: nothing lost, nothing foreign let in."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bftrainer.api import admission
from bftrainer.api.documents import (
    CodecError,
    decode,
    document,
    encode,
    error_document,
    error_of,
    listing,
    parse,
    view_of,
    views_of,
)
from bftrainer.model.errors import BftError, ExitCode, UsageError
from bftrainer.model.trainer import TrainerRecord, TrainerSpec, TrainerState
from bftrainer.model.views import Explanation, LogFile, NodeView, StatusView, TrainerView
from milp.problem import Curve
from tests.support.examples import examples

TEXT = st.text(max_size=20)
SPEC: dict[str, Any] = {"name": "n", "user": "u", "script": "/s.py"}


def _curve(points: dict[int, float]) -> Curve:
    return Curve(sizes=tuple(points), samples_per_s=tuple(points.values()))


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Return values of a type hint that JSON can carry."""
    origin, arms = typing.get_origin(hint), typing.get_args(hint)
    simple = {str: TEXT, float: st.floats(allow_nan=False, allow_infinity=False)}
    if hint in simple:
        return simple[hint]
    if dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        names = [field.name for field in dataclasses.fields(hint)]
        return st.builds(typing.cast("Any", hint), **{n: values(hints[n]) for n in names})
    if origin is types.UnionType:
        return st.one_of(*(st.none() if arm is type(None) else values(arm) for arm in arms))
    if origin is tuple and arms[-1] is Ellipsis:
        return st.lists(values(arms[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values, arms))
    return st.from_type(hint)


@pytest.mark.parametrize("cls", [StatusView, TrainerView, NodeView, Explanation, LogFile])
@settings(max_examples=examples(100))
@given(data=st.data())
def test_views_survive_the_wire(cls: type, data: st.DataObject) -> None:
    view = data.draw(values(cls))
    wire = json.dumps(document("x", view), allow_nan=False).encode()
    assert view_of(cls, "x", parse(wire)) == view
    wire = json.dumps(listing("x", [view, view], more=1), allow_nan=False).encode()
    assert views_of(cls, "x", parse(wire)) == (view, view)


@given(values(TrainerSpec))
def test_specs_survive_the_wire_strictly(spec: TrainerSpec) -> None:
    assert decode(TrainerSpec, parse(json.dumps(encode(spec)).encode())) == spec


@given(st.binary(max_size=64) | st.text('[]{}",:0123456789truefalsn.eE-').map(str.encode))
def test_parsing_garbage_ends_in_one_error(text: bytes) -> None:
    try:
        value = parse(text)
        decode(TrainerSpec, value)
    except CodecError:
        return
    pytest.fail(f"{text!r} was taken for a spec")


def test_a_key_given_twice_is_refused() -> None:
    names = [f'"k{number}":1' for number in range(50_000)]  # the time is linear in them
    with pytest.raises(CodecError, match="has the field 'k7' twice in one object"):
        parse(f"{{{','.join([*names, names[7]])}}}".encode())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from(sorted(encode(TrainerSpec(name="", user="", script="")))), JSON)
def test_a_field_is_taken_whole_or_refused(name: str, value: Any) -> None:
    try:
        spec = decode(TrainerSpec, {**SPEC, name: value})
    except CodecError as problem:
        assert problem.where.startswith(name)  # noqa: PT017 - one outcome of two
        return
    assert _said_again(value, encode(spec)[name])


def _said_again(value: Any, encoded: Any) -> bool:
    """Whether nothing of it was lost; fields of a part that were left out have their defaults."""
    if isinstance(value, dict) and isinstance(encoded, dict):
        return all(_said_again(part, encoded[key]) for key, part in value.items())
    return bool(encoded == value)


def test_a_newer_daemon_may_say_more() -> None:
    value = {**encode(NodeView(name="n1", state="idle", use="free")), "temperature_c": 40}
    assert decode(NodeView, value, is_strict=False).name == "n1"
    with pytest.raises(CodecError, match="temperature_c is not a known field"):
        decode(NodeView, value)


def test_enums_and_depth_are_named() -> None:
    record = encode(
        TrainerRecord(
            trainer_id="t1",
            spec=TrainerSpec(**SPEC),
            state=TrainerState.PARKED,
            submitted_s=1.0,
        )
    )
    assert record["state"] == "parked"
    with pytest.raises(CodecError, match=r"state must be one of queued, running"):
        decode(TrainerRecord, {**record, "state": "asleep"})
    record["spec"]["curve"] = {"sizes": [1], "samples_per_s": ["x"]}
    with pytest.raises(CodecError, match=r"spec\.curve\.samples_per_s\[0\] must be a number"):
        decode(TrainerRecord, record)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_json_cannot_carry_is_not_sent(value: float) -> None:
    with pytest.raises(CodecError):
        encode({"a": [value]})


@pytest.mark.parametrize("code", list(ExitCode))
def test_errors_survive_the_wire(code: ExitCode) -> None:
    error = BftError("BFT-1234", "Cause.", "Next.", exit_code=code)
    back = error_of(error_document(error))
    assert back is not None
    assert (back.code, back.cause, back.next_step, back.exit_code) == (
        "BFT-1234",
        "Cause.",
        "Next.",
        code,
    )


@pytest.mark.parametrize(
    "value",
    [None, [], {}, {"error": "text"}, {"error": {"code": 1}}, {"error": {"code": "BFT-1"}}],
)
def test_what_is_no_error_is_none(value: Any) -> None:
    assert error_of(value) is None


def test_an_unknown_exit_code_is_internal() -> None:
    error = error_of({"error": {"code": "c", "cause": "c", "next_step": "n", "exit_code": 99}})
    assert error is not None
    assert error.exit_code is ExitCode.INTERNAL


# ---- admission --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"n_min": 0}, "BFT-1002"),
        ({"n_min": 2, "n_max": 1}, "BFT-1002"),
        ({"n_max": 10**7}, "BFT-1002"),
        ({"name": ""}, "BFT-1007"),
        ({"name": "x" * 256}, "BFT-1007"),
        ({"name": "a\u0000"}, "BFT-1007"),
        ({"args": ("ok", "a\nb")}, "BFT-1007"),
        ({"args": ("x" * 4097,)}, "BFT-1007"),
        ({"args": ("x" * 4096,) * 200}, "BFT-1007"),
        ({"environment": (("A B", "1"),)}, "BFT-1007"),
        ({"environment": (("A", "\x1b[0m"),)}, "BFT-1007"),
        ({"environment": (("", "1"),)}, "BFT-1007"),
        ({"cwd": "relative"}, "BFT-1016"),
        ({"interpreter": "python"}, "BFT-1016"),
        ({"epochs": 0}, "BFT-1016"),
        ({"samples": -1}, "BFT-1016"),
        ({"weight": 0.0}, "BFT-1016"),
        ({"weight": float("inf")}, "BFT-1016"),
        ({"weight": 1e-300}, "BFT-1016"),
        ({"weight": 1e15}, "BFT-1016"),
        ({"samples": 10**400}, "BFT-1016"),
        ({"workers_per_node": 10**6}, "BFT-1016"),
        ({"checkpoint_interval_s": 5e-324}, "BFT-1016"),
        ({"max_failures": 10**18}, "BFT-1016"),
        ({"curve": _curve({1: 1e-20})}, "BFT-1015"),
        ({"curve": _curve({1: 1e16})}, "BFT-1015"),
        ({"curve": _curve({2**40: 1e9})}, "BFT-1015"),
        ({"curve": _curve({10**400: 1.0})}, "BFT-1015"),
        ({"curve": _curve({1: 1.0, 2: 1e6})}, "BFT-1015"),
        ({"curve": _curve(dict.fromkeys(range(1, 1100), 1.0))}, "BFT-1015"),
        ({"utility": _curve({1: 1e300})}, "BFT-1015"),
        ({"checkpoint_interval_s": float("nan")}, "BFT-1016"),
        ({"epochs": 1, "samples": 1}, "BFT-1016"),
    ],
)
def test_specs_that_no_daemon_could_run(fields: dict[str, Any], code: str) -> None:
    with pytest.raises(UsageError) as caught:
        admission.check_spec(TrainerSpec(**{**SPEC, **fields}))
    assert caught.value.code == code


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"name": "名前 $(rm -rf) ; --"},
        {"args": ("", "--", "-x", "`id`", "\u202eright to left")},
        {"environment": (("PATH", ""), ("_x1", "a=b"))},
        {"n_min": 1, "n_max": 10**6, "epochs": 1, "weight": 0.5},
    ],
)
def test_specs_that_look_odd_but_are_fine(fields: dict[str, Any]) -> None:
    admission.check_spec(TrainerSpec(**{**SPEC, **fields}))
