"""Converts plain data to JSON for the API and back, strictly by type hint.

Handles dataclasses, tuples and enums. The server refuses unknown fields; the client ignores them,
so that an older command line can read a newer daemon. Called by ``documents``, ``routes`` and
``client``.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")

MAX_ITEMS = 4096  # of a list, in strict mode (requests)


class CodecError(ValueError):
    """A value that does not match its type hint; ``where`` is a dotted path."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"{where or 'the body'} {problem}")
        self.where = where
        self.problem = problem


def encode(value: Any) -> Any:
    """Convert plain data to values that ``json.dumps`` accepts."""
    if isinstance(value, enum.Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, (tuple, list)):
        return [encode(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        raise CodecError("", f"holds {value!r}, which JSON cannot carry")
    return value


def parse(text: bytes) -> Any:
    """Parse JSON; refuses NaN, infinities, and excessive depth and digits."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as problem:
        raise CodecError("", f"is not JSON: {str(problem) or 'nested too deeply'}") from problem


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def decode(cls: type[T], value: Any, *, is_strict: bool = True, where: str = "") -> T:
    """Build ``cls`` from a parsed JSON object.

    Raises:
        CodecError: a field is missing, unknown (when strict) or of the wrong type.
    """
    result: T = _decode_dataclass(cls, value, where, is_strict=is_strict)
    return result


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _decode_dataclass(cls: Any, value: Any, where: str, *, is_strict: bool) -> Any:
    if not isinstance(value, dict):
        raise CodecError(where, f"must be an object, not {_kind(value)}")
    fields = {f.name: f for f in dataclasses.fields(cls)}
    if is_strict and (unknown := sorted(set(value) - set(fields))):
        raise CodecError(_join(where, unknown[0][:80]), "is not a known field")
    arguments: dict[str, Any] = {}
    for name, field in fields.items():
        if name in value:
            hint = _hints(cls)[name]
            arguments[name] = _decode(hint, value[name], _join(where, name), is_strict=is_strict)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise CodecError(_join(where, name), "is missing")
    return cls(**arguments)


def _decode(hint: Any, value: Any, where: str, *, is_strict: bool) -> Any:
    origin = typing.get_origin(hint)
    if origin in (types.UnionType, typing.Union):
        return _decode_optional(hint, value, where, is_strict=is_strict)
    if origin is tuple:
        return _decode_tuple(hint, value, where, is_strict=is_strict)
    if dataclasses.is_dataclass(hint):
        return _decode_dataclass(hint, value, where, is_strict=is_strict)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        try:
            return hint(value)
        except ValueError:
            known = ", ".join(str(member.value) for member in hint)
            raise CodecError(where, f"must be one of {known}") from None
    return _decode_scalar(hint, value, where)


def _decode_optional(hint: Any, value: Any, where: str, *, is_strict: bool) -> Any:
    if value is None:
        return None
    (inner,) = (arm for arm in typing.get_args(hint) if arm is not type(None))
    return _decode(inner, value, where, is_strict=is_strict)


def _decode_tuple(hint: Any, value: Any, where: str, *, is_strict: bool) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise CodecError(where, f"must be a list, not {_kind(value)}")
    if is_strict and len(value) > MAX_ITEMS:
        raise CodecError(where, f"has {len(value)} items; the limit is {MAX_ITEMS}")
    arms = typing.get_args(hint)
    if len(arms) == 2 and arms[1] is Ellipsis:
        arms = (arms[0],) * len(value)
    if len(arms) != len(value):
        raise CodecError(where, f"must have {len(arms)} items, not {len(value)}")
    return tuple(
        _decode(arm, item, f"{where}[{index}]", is_strict=is_strict)
        for index, (arm, item) in enumerate(zip(arms, value, strict=True))
    )


def _decode_scalar(hint: Any, value: Any, where: str) -> Any:
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        value = _as_float(value, where)
    if isinstance(value, bool) != (hint is bool) or not isinstance(value, hint):
        raise CodecError(where, f"must be {_NAMES.get(hint, str(hint))}, not {_kind(value)}")
    if isinstance(value, float) and not math.isfinite(value):
        raise CodecError(where, "must be a finite number")
    if isinstance(value, str) and not _is_utf8(value):
        raise CodecError(where, "is not valid Unicode text")
    return value


def _as_float(value: int, where: str) -> float:
    try:
        return float(value)
    except OverflowError:
        raise CodecError(where, "must be a finite number") from None


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _join(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


_NAMES = {str: "a string", int: "a whole number", float: "a number", bool: "true or false"}


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    kinds = {**_NAMES, list: "a list", dict: "an object"}
    return kinds.get(type(value), type(value).__name__)
