"""Canonical JSON of frozen dataclasses: equal values have equal bytes.

The journal stores the output of ``encode``, and digests are computed over it; ``decode`` reads it
back, strictly, driven by the type hints of a class. Keys are sorted, there is no white space,
floats are written by ``repr``, an int in a float field is written as a float.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import json
import math
import operator
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from bftrainer.errors import BftError

T = TypeVar("T")
_Convert = Callable[[Any], Any]
_TAG = "type"
_WRITER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)


class _Codec(NamedTuple):
    encode: _Convert
    decode: _Convert


class CanonicalError(BftError):
    """A value without canonical form, or bytes that are not canonical JSON."""

    def __init__(self, cause: str, where: str = "") -> None:
        super().__init__(
            "BFT-2220",
            f"{where or 'The value'}: {cause}.",
            "Report this together with the entry or input that caused it.",
        )
        self.bare_cause = cause
        self.where = where

    def under(self, step: str) -> CanonicalError:
        """Return the same error with ``step`` prepended to its path."""
        joint = "" if not self.where or self.where.startswith("[") else "."
        return CanonicalError(self.bare_cause, f"{step}{joint}{self.where}")


def encode(value: object) -> bytes:
    """Return the canonical JSON of a value; equal values give equal bytes.

    Raises:
        CanonicalError: a NaN, an infinity, or a type that has no canonical form.
    """
    return text_of(to_plain(value)).encode("ascii")


def decode(data: bytes | str, cls: type[T]) -> T:
    """Return the ``cls`` described by canonical JSON, with every part type-checked.

    A missing field takes its default, so that entries written before the field existed stay
    readable. Fields listed in the class's ``REMOVED`` are ignored. Any other unknown field,
    tag or type is refused.

    Raises:
        CanonicalError: not JSON, or not a ``cls``.
    """
    return from_plain(parse(data), cls)


def digest(value: object) -> str:
    """Return the sha256 of the canonical encoding, in hex."""
    return hashlib.sha256(encode(value)).hexdigest()


def parse(data: bytes | str) -> Any:
    """Return the JSON value in ``data``; refuses NaN and repeated keys."""
    try:
        return json.loads(data, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as problem:
        raise CanonicalError(f"not JSON ({problem})") from problem


def to_plain(value: object) -> Any:
    """Return the value as dicts, lists, strings, numbers, booleans and None."""
    return _encode_any(value)


def text_of(plain: Any) -> str:
    """Return the canonical JSON of a result of ``to_plain`` or ``parse``."""
    return _WRITER.encode(plain)


def from_plain(plain: Any, cls: type[T]) -> T:
    """Return the ``cls`` described by a result of ``parse``."""
    return cast("T", _codec(cast("Any", cls)).decode(plain))


def encoder(hint: Any) -> Callable[[Any], Any]:
    """Return ``to_plain`` for values of a type hint, such as that of a field."""
    return _codec(hint).encode


@functools.cache
def field_hints(cls: type) -> Mapping[str, Any]:
    """Return the fields of a dataclass with their type hints, in the order of the class."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise CanonicalError("a key occurs twice")
    return result


def _refuse_constant(name: str) -> Any:
    raise CanonicalError(f"{name} is not a finite number")


def _mismatch(value: object, wanted: str) -> CanonicalError:
    return CanonicalError(f"{type(value).__name__} where {wanted} belongs")


# ---- scalars: the same in both directions ------------------------------------------


def _as_none(value: Any) -> None:
    if value is not None:
        raise _mismatch(value, "None")


def _as_bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _mismatch(value, "bool")
    return value


def _as_str(value: Any) -> str:
    if not isinstance(value, str):
        raise _mismatch(value, "str")
    return str(value)


def _as_int(value: Any) -> int:
    if isinstance(value, bool):
        raise _mismatch(value, "int")
    try:
        return operator.index(value)  # numpy's integers too
    except TypeError as problem:
        raise _mismatch(value, "int") from problem


def _as_float(value: Any) -> float:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise CanonicalError(f"{float(value)!r} is not a finite number")
        return float(value) + 0.0  # -0.0 equals 0.0, so it is written as 0.0
    exact = _as_int(value)
    try:
        result = float(exact)
    except OverflowError as problem:
        raise CanonicalError("an int too large for a float field") from problem
    if int(result) != exact:
        raise CanonicalError(f"{exact} cannot be a float without loss")
    return result


def _as_is(plain: Any) -> Any:
    return plain


_SCALARS: dict[Any, _Convert] = {
    type(None): _as_none,
    None: _as_none,
    bool: _as_bool,
    int: _as_int,
    float: _as_float,
    str: _as_str,
}


# ---- values without a type hint -----------------------------------------------------


def _encode_any(value: Any) -> Any:
    """Encode by the value's own type."""
    if isinstance(value, enum.Enum):
        result = _encode_any(value.value)
    elif type(value) in _SCALARS:
        result = _SCALARS[type(value)](value)
    elif dataclasses.is_dataclass(value):
        kind: Any = type(value)
        result = _codec(kind).encode(value)
    elif isinstance(value, Mapping):
        result = _encode_mapping(value, _encode_any, _encode_any)
    elif isinstance(value, (list, tuple)):
        result = _each(value, _encode_any)
    elif isinstance(value, AbstractSet):
        result = _sorted(_each(value, _encode_any))
    elif isinstance(value, Path):
        result = str(value)
    elif isinstance(value, float):
        result = _as_float(value)
    elif isinstance(value, str):
        result = _as_str(value)
    else:
        result = _as_int(value)
    return result


def _each(values: Iterable[Any], item: _Convert) -> list[Any]:
    result = []
    for index, value in enumerate(values):
        try:
            result.append(item(value))
        except CanonicalError as problem:
            raise problem.under(f"[{index}]") from problem
    return result


def _sorted(plain: list[Any]) -> list[Any]:
    return sorted(plain, key=lambda item: json.dumps(item, sort_keys=True))


def _encode_mapping(value: Mapping[Any, Any], key: _Convert, item: _Convert) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for raw_name, raw in value.items():
        name = key(raw_name)
        if isinstance(name, bool) or not isinstance(name, (str, int)):
            raise CanonicalError(f"a key of type {type(raw_name).__name__}")
        try:
            result[str(name)] = item(raw)
        except CanonicalError as problem:
            raise problem.under(f"[{name!r}]") from problem
    if len(result) != len(value):
        raise CanonicalError("two keys are written alike")
    return result


# ---- values with a type hint --------------------------------------------------------


@functools.cache
def _codec(hint: Any) -> _Codec:
    """Return how values of a type hint are encoded and decoded (built once per hint)."""
    if hint in _SCALARS:
        return _Codec(_SCALARS[hint], _SCALARS[hint])
    if hint is Any or hint is object:
        return _Codec(_encode_any, _as_is)
    if dataclasses.is_dataclass(hint):
        return _Dataclass(cast("type", hint)).codec
    if isinstance(hint, enum.EnumType):
        return _enum_codec(hint)
    if hint is Path:
        return _Codec(lambda value: str(_instance(value, Path)), lambda p: Path(_as_str(p)))
    return _generic_codec(typing.get_origin(hint), typing.get_args(hint), hint)


def _generic_codec(origin: Any, arguments: tuple[Any, ...], hint: Any) -> _Codec:
    if origin is typing.Annotated:
        return _codec(arguments[0])
    if origin is typing.Literal:
        check = functools.partial(_literal, arguments)
        return _Codec(check, check)
    if origin in (typing.Union, types.UnionType):
        return _union_codec(arguments)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping_codec(*arguments)
    if isinstance(origin, type) and issubclass(origin, (Sequence, AbstractSet)):
        return _items_codec(origin, arguments)
    raise CanonicalError(f"no canonical form for the type {hint!r}")


def _items_codec(origin: type, arguments: tuple[Any, ...]) -> _Codec:
    is_endless = len(arguments) == 2 and arguments[1] is ...
    if issubclass(origin, tuple) and not is_endless:
        parts = [_codec(argument) for argument in arguments]
        encodes, decodes = [part.encode for part in parts], [part.decode for part in parts]
        return _Codec(
            lambda value: _fixed(_instance(value, (tuple, list)), encodes),
            lambda plain: tuple(_fixed(_instance(plain, list), decodes)),
        )
    item = _codec(arguments[0])
    if issubclass(origin, AbstractSet):
        make: Callable[[list[Any]], Any] = set if origin is set else frozenset
        return _Codec(
            lambda value: _sorted(_each(_instance(value, AbstractSet), item.encode)),
            lambda plain: make(_each(_instance(plain, list), item.decode)),
        )
    make = list if issubclass(origin, list) else tuple
    return _Codec(
        lambda value: _each(_instance(value, (tuple, list)), item.encode),
        lambda plain: make(_each(_instance(plain, list), item.decode)),
    )


def _mapping_codec(key_hint: Any, item_hint: Any) -> _Codec:
    key, item = _codec(key_hint), _codec(item_hint)
    name: _Convert = _int_key if key_hint is int else key.decode
    return _Codec(
        lambda value: _encode_mapping(_instance(value, Mapping), key.encode, item.encode),
        lambda plain: {name(k): item.decode(v) for k, v in _instance(plain, dict).items()},
    )


def _int_key(name: Any) -> int:
    try:
        return int(_as_str(name))
    except ValueError as problem:
        raise CanonicalError(f"key {name!r} is not an int") from problem


def _enum_codec(cls: enum.EnumType) -> _Codec:
    def member(value: Any) -> Any:
        try:
            return cls(value)
        except ValueError as problem:
            raise CanonicalError(f"{value!r} is not a {cls.__name__}") from problem

    return _Codec(lambda value: _encode_any(member(value).value), member)


def _union_codec(arguments: tuple[Any, ...]) -> _Codec:
    # float last: an int in "int | float" stays an int.
    others = sorted((a for a in arguments if a is not type(None)), key=lambda a: a is float)
    codecs = [_codec(other) for other in others]
    has_none = len(others) < len(arguments)
    return _Codec(
        _first_of([codec.encode for codec in codecs], has_none=has_none),
        _first_of([codec.decode for codec in codecs], has_none=has_none),
    )


def _first_of(converts: list[_Convert], *, has_none: bool) -> _Convert:
    def convert(value: Any) -> Any:
        if value is None and has_none:
            return None
        problems = []
        for option in converts:
            try:
                return option(value)
            except CanonicalError as problem:
                problems.append(problem)
        # The deepest error is that of the alternative that fitted best.
        raise max(problems, key=lambda problem: len(problem.where))

    return convert


def _literal(options: tuple[Any, ...], value: Any) -> Any:
    for option in options:
        if type(option) is type(value) and option == value:
            return option
    raise CanonicalError(f"{value!r} is not one of {options!r}")


def _fixed(values: Sequence[Any], parts: list[_Convert]) -> list[Any]:
    if len(values) != len(parts):
        raise CanonicalError(f"{len(values)} items where {len(parts)} belong")
    return [part(value) for part, value in zip(parts, values, strict=True)]


def _instance(value: Any, kinds: type | tuple[type, ...]) -> Any:
    if not isinstance(value, kinds):
        names = kinds if isinstance(kinds, tuple) else (kinds,)
        raise _mismatch(value, " or ".join(kind.__name__ for kind in names))
    return value


# ---- dataclasses -------------------------------------------------------------------


class _Field(NamedTuple):
    name: str
    codec: _Codec
    is_required: bool


class _Dataclass:
    """Encodes and decodes one dataclass; an object with a ``type`` tag in JSON."""

    def __init__(self, cls: type) -> None:
        self.cls = cls
        self.name = cls.__name__
        self.codec = _Codec(self.encode, self.decode)

    @functools.cached_property
    def fields(self) -> dict[str, _Field]:
        """Read the type hints on first use: a class may refer to itself."""
        hints = field_hints(self.cls)
        found = {}
        for field in dataclasses.fields(self.cls):
            if field.name == _TAG or not field.init:
                raise CanonicalError(f"field {field.name!r} cannot be encoded", self.name)
            defaults = (field.default, field.default_factory)
            is_required = all(default is dataclasses.MISSING for default in defaults)
            found[field.name] = _Field(field.name, _codec(hints[field.name]), is_required)
        return found

    def encode(self, value: Any) -> dict[str, Any]:
        if type(value) is not self.cls:
            raise _mismatch(value, self.name)
        result: dict[str, Any] = {_TAG: self.name}
        for field in self.fields.values():
            try:
                result[field.name] = field.codec.encode(getattr(value, field.name))
            except CanonicalError as problem:
                raise problem.under(f"{self.name}.{field.name}") from problem
        return result

    def decode(self, plain: Any) -> Any:
        given = _instance(plain, dict)
        if given.get(_TAG) != self.name:
            raise CanonicalError(f"{given.get(_TAG)!r} where {self.name} belongs")
        removed: frozenset[str] = getattr(self.cls, "REMOVED", frozenset())
        if unknown := sorted(given.keys() - self.fields.keys() - removed - {_TAG}):
            raise CanonicalError(f"unknown fields {unknown}", self.name)
        values = {}
        for field in self.fields.values():
            if field.name in given:
                try:
                    values[field.name] = field.codec.decode(given[field.name])
                except CanonicalError as problem:
                    raise problem.under(f"{self.name}.{field.name}") from problem
            elif field.is_required:
                raise CanonicalError("is missing", f"{self.name}.{field.name}")
        try:
            return self.cls(**values)
        except (TypeError, ValueError) as problem:  # the class's own checks
            raise CanonicalError(str(problem), self.name) from problem
