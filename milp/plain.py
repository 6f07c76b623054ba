"""Records as plain JSON values and back, strictly by type hint: the one codec of all formats.

A record is a frozen dataclass. A ``Form`` has what differs between the formats: the journal's
(``bftrainer.model.canonical``), the API's (``bftrainer.api.documents``), that of problem files
(``milp.codec``). Equal records have equal plain values: an int in a float field becomes a float,
-0.0 becomes 0.0, sets are sorted.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import math
import operator
import sys
import types
import typing
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, Final, NamedTuple

_Convert = Callable[[Any], Any]
_TAG: Final = "type"
_NAMES: Final = {
    type(None): "null",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a string",
    list: "a list",
    tuple: "a list",
    dict: "an object",
}


class Fault(enum.Enum):
    """The kind of fault of a value."""

    TYPE = "type"
    MISSING = "missing"
    UNKNOWN = "unknown"
    CHOICE = "choice"
    RANGE = "range"


class FormError(ValueError):
    """A value that does not match its type hint; ``where`` is a dotted path."""

    def __init__(self, where: str, problem: str, fault: Fault = Fault.TYPE) -> None:
        super().__init__(f"{where or 'the body'} {problem}")
        self.where = where
        self.problem = problem
        self.fault = fault

    def under(self, step: str) -> FormError:
        """Return the same error with ``step`` prepended to its path."""
        joint = ""
        if step and self.where and not self.where.startswith("["):
            joint = "."
        return FormError(f"{step}{joint}{self.where}", self.problem, self.fault)


class Form(NamedTuple):
    """The rules of a format for writing and reading."""

    has_tags: bool = False  # a record names its class under "type"
    takes_any_text: bool = False  # also text that is not valid Unicode
    ignores_unknown: bool = False  # fields that the class lacks
    omits_added: bool = False  # fields of ``added_fields`` that have their default
    max_items: int = sys.maxsize  # of a list
    max_int: int | None = None


class Codec(NamedTuple):
    """Converts values of one type hint; both raise ``FormError``."""

    encode: _Convert
    decode: _Convert


def parse(data: bytes | str) -> Any:
    """Return the JSON value in ``data``.

    Raises:
        FormError: not JSON, NaN, a key given twice, too deep, or too many digits.
    """
    try:
        return json.loads(data, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except FormError:
        raise
    except (ValueError, RecursionError) as problem:
        raise FormError("", f"is not JSON: {str(problem) or 'nested too deeply'}") from problem


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        [(twice, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise FormError("", f"has the field {twice[:80]!r} twice in one object")
    return result


def _refuse_constant(name: str) -> Any:
    raise FormError("", f"holds {name}, which is not a JSON number")


@functools.cache
def field_hints(cls: type) -> Mapping[str, Any]:
    """Return the fields of a dataclass with their type hints, in the order of the class."""
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


@functools.cache
def added_fields(cls: type) -> Mapping[str, Any]:
    """Return the fields that a class lists in ``ADDED``, with their defaults.

    They are later than a release that may have to read the journal again: while they have their
    default they are not written there.
    """
    added_names: AbstractSet[str] = getattr(cls, "ADDED", frozenset())
    defaults: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        if field.name not in added_names:
            continue
        if field.default_factory is dataclasses.MISSING:
            defaults[field.name] = field.default
        else:
            defaults[field.name] = field.default_factory()
    return defaults


class Later(NamedTuple):
    """Fields that the release before lacks, and that are seldom at their default.

    A class attribute ``LATER``. The journal has them within a name that the release before ignores,
    because it once was a field.
    """

    within: str  # listed in ``REMOVED``
    fields: frozenset[str]  # listed in ``ADDED``, too


class InlinePart(NamedTuple):
    """A field of a record whose own fields are written on the level of the record.

    A class attribute ``INLINE`` names such fields: the class may then be divided into parts while
    its written form stays. What is missing there has the defaults of the part's class. A part is a
    record, or a member of an enumeration whose values are records.
    """

    name: str
    cls: type  # of the record
    kind: Any = None  # the enumeration, if the field is one

    def record_of(self, value: Any) -> Any:
        """Return the record that is written for a value of the field."""
        if self.kind is None:
            return value
        if not isinstance(value, self.kind):
            raise _mismatch(value, self.kind.__name__).under(self.name)
        return value.value

    def value_of(self, record: Any) -> Any:
        """Return the value of the field with this record."""
        if self.kind is None:
            return record
        try:
            return self.kind(record)
        except ValueError as problem:
            raise FormError("", f"holds no {self.kind.__name__}", Fault.CHOICE) from problem


@functools.cache
def parts_of(cls: type) -> Mapping[str, InlinePart]:
    """Return the parts of a class by the name of their field.

    Raises:
        FormError: a field in ``INLINE`` is no record, or is also in ``ADDED``, or two fields would
            be written under one name.
    """
    parts: dict[str, InlinePart] = {}
    for name in sorted(getattr(cls, "INLINE", frozenset[str]())):
        hint = field_hints(cls)[name]
        kind: Any = None
        if isinstance(hint, enum.EnumType):
            kind, hint = hint, type(next(iter(hint)).value)
        if not dataclasses.is_dataclass(hint) or name in added_fields(cls):
            raise FormError(name, f"of {cls.__name__} cannot be written inline")
        parts[name] = InlinePart(name, typing.cast("type", hint), kind)
    counts = Counter(written_names(cls, parts))
    for name, count in counts.items():
        if count > 1:
            raise FormError(name, f"is the name of {count} fields of {cls.__name__} and its parts")
    return parts


def written_names(cls: type, parts: Mapping[str, InlinePart]) -> list[str]:
    """Return the names under which the fields of a class are written, those of its parts too."""
    names: list[str] = []
    for name in field_hints(cls):
        if name in parts:
            inner = parts[name].cls
            names += written_names(inner, parts_of(inner))
        else:
            names.append(name)
    return names


# ---- scalars: the same in both directions ------------------------------------------


def _kind(value: object) -> str:
    return _NAMES.get(type(value), type(value).__name__)


def _mismatch(value: object, wanted: str) -> FormError:
    return FormError("", f"must be {wanted}, not {_kind(value)}")


def _not_one_of(value: object, options: Iterable[object]) -> FormError:
    value_text = _kind(value)
    if isinstance(value, str):
        value_text = repr(value[:80])
    choices = ", ".join(map(str, options))
    return FormError("", f"must be one of {choices}, not {value_text}", Fault.CHOICE)


def _instance(kinds: type | tuple[type, ...], value: Any) -> Any:
    if not isinstance(value, kinds):
        first = kinds[0] if isinstance(kinds, tuple) else kinds
        raise _mismatch(value, _NAMES.get(first, first.__name__))
    return value


def _as_str(value: Any) -> str:
    return str(_instance(str, value))  # without the class of a subclass


def _as_text(value: Any) -> str:
    try:
        _as_str(value).encode()
    except UnicodeEncodeError as problem:
        raise FormError("", "is not valid Unicode text") from problem
    return str(value)


def _as_int(value: Any) -> int:
    if isinstance(value, bool):
        raise _mismatch(value, "a whole number")
    try:
        return operator.index(value)  # numpy's integers too
    except TypeError as problem:
        raise _mismatch(value, "a whole number") from problem


def _as_float(value: Any) -> float:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise FormError("", f"must be a finite number, not {float(value)!r}")
        return float(value) + 0.0  # -0.0 equals 0.0, so it is written as 0.0
    try:
        exact = _as_int(value)
        result = float(exact)
    except OverflowError as problem:
        raise FormError("", "is too large for a number", Fault.RANGE) from problem
    except FormError as problem:
        raise _mismatch(value, "a number") from problem
    if int(result) != exact:
        raise FormError("", "is a whole number that a float cannot hold", Fault.RANGE)
    return result


def _within(largest: int, value: Any) -> int:
    number = _as_int(value)
    if abs(number) > largest:
        raise FormError("", f"is beyond {largest}", Fault.RANGE)
    return number


_SCALARS: dict[Any, _Convert] = {
    type(None): functools.partial(_instance, type(None)),
    bool: functools.partial(_instance, bool),
    int: _as_int,
    float: _as_float,
    str: _as_str,
}


# ---- values without a type hint -----------------------------------------------------


def encode_any(value: Any, form: Form) -> Any:
    """Return the plain form of a value, by its own type."""
    if isinstance(value, enum.Enum):
        result = encode_any(value.value, form)
    elif type(value) in _SCALARS:
        result = _SCALARS[type(value)](value)
    elif dataclasses.is_dataclass(value):
        result = codec(type(value), form).encode(value)
    elif isinstance(value, Mapping):
        item = functools.partial(encode_any, form=form)
        result = _encode_mapping(value, item, item)
    elif isinstance(value, (list, tuple, AbstractSet)):
        result = _each(value, functools.partial(encode_any, form=form))
        if isinstance(value, AbstractSet):
            result = _sorted(result)
    elif isinstance(value, (Path, str)):
        result = str(value)
    elif isinstance(value, float):
        result = _as_float(value)
    else:
        result = _as_int(value)
    return result


def _each(values: Iterable[Any], convert: _Convert) -> list[Any]:
    result: list[Any] = []
    try:
        for value in values:
            result.append(convert(value))  # noqa: PERF401 - its length is the path of an error
    except FormError as problem:
        raise problem.under(f"[{len(result)}]") from problem
    return result


def _sorted(plain: list[Any]) -> list[Any]:
    return sorted(plain, key=lambda item: json.dumps(item, sort_keys=True))


def _encode_mapping(value: Mapping[Any, Any], key: _Convert, item: _Convert) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for raw_name, raw in value.items():
        name = key(raw_name)
        if isinstance(name, bool) or not isinstance(name, (str, int)):
            raise FormError("", f"has a key of type {type(raw_name).__name__}")
        try:
            result[str(name)] = item(raw)
        except FormError as problem:
            raise problem.under(f"[{name!r}]") from problem
    if len(result) != len(value):
        raise FormError("", "has two keys that are written alike")
    return result


# ---- values with a type hint --------------------------------------------------------


def codec(hint: Any, form: Form) -> Codec:
    """Return how values of a type hint are converted (built once per hint).

    Raises:
        FormError: there is no plain form for that type.
    """
    return _codec(hint, form)


@functools.cache
def _codec(hint: Any, form: Form) -> Codec:
    if hint in _SCALARS:
        return Codec(_SCALARS[hint], _scalar_decoder(hint, form))
    if hint is Any or hint is object:
        return Codec(functools.partial(encode_any, form=form), lambda plain: plain)
    if dataclasses.is_dataclass(hint):
        record = _Record(typing.cast("type", hint), form)
        return Codec(record.encode, record.decode)
    if isinstance(hint, enum.EnumType):
        members: list[Any] = list(hint)
        return Codec(
            _chooser({member: member.value for member in members}),
            _chooser({member.value: member for member in members}),
        )
    if hint is Path:
        return Codec(lambda value: str(_instance(Path, value)), lambda p: Path(_as_str(p)))
    return _generic_codec(typing.get_origin(hint), typing.get_args(hint), hint, form)


def _scalar_decoder(kind: Any, form: Form) -> _Convert:
    if kind is str and not form.takes_any_text:
        return _as_text
    if kind is int and form.max_int is not None:
        return functools.partial(_within, form.max_int)
    return _SCALARS[kind]


def _chooser(options: dict[Any, Any]) -> _Convert:
    def choose(value: Any) -> Any:
        try:
            return options[value]
        except (KeyError, TypeError) as problem:  # TypeError: not hashable
            raise _not_one_of(value, options) from problem

    return choose


def _generic_codec(origin: Any, arguments: tuple[Any, ...], hint: Any, form: Form) -> Codec:
    if isinstance(hint, type) and issubclass(hint, tuple) and hasattr(hint, "_fields"):
        return _named_codec(hint, form)
    if origin is typing.Literal:
        check = _chooser({option: option for option in arguments})
        return Codec(check, check)
    if origin in (typing.Union, types.UnionType):
        return _union_codec(arguments, form)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        key_hint, item_hint = arguments
        key, item = codec(key_hint, form), codec(item_hint, form)
        name = _int_key if key_hint is int else key.decode
        return Codec(
            lambda value: _encode_mapping(_instance(Mapping, value), key.encode, item.encode),
            lambda plain: _decode_mapping(_instance(dict, plain), name, item.decode),
        )
    if isinstance(origin, type) and issubclass(origin, (Sequence, AbstractSet)):
        if issubclass(origin, tuple) and arguments[1:] != (...,):
            return _fixed_codec([codec(argument, form) for argument in arguments])
        return _items_codec(origin, codec(arguments[0], form), form.max_items)
    raise FormError("", f"has no plain form for the type {hint!r}")


def _union_codec(arguments: tuple[Any, ...], form: Form) -> Codec:
    encodes: list[_Convert] = []
    decodes: list[_Convert] = []
    # Numbers last: an int in "int | float" stays one.
    for hint in sorted(arguments, key=lambda argument: argument is float):
        if hint is not type(None):
            encode, decode = codec(hint, form)
            encodes.append(encode)
            decodes.append(decode)
    has_none = len(encodes) < len(arguments)
    return Codec(
        _first_of(encodes, has_none=has_none),
        _first_of(decodes, has_none=has_none),
    )


def _first_of(converts: list[_Convert], *, has_none: bool) -> _Convert:
    def convert(value: Any) -> Any:
        if value is None and has_none:
            return None
        problems = []
        for option in converts:
            try:
                return option(value)
            except FormError as problem:
                problems.append(problem)
        # The deepest error is that of the alternative that fitted best.
        raise max(problems, key=lambda problem: len(problem.where))

    return convert


def _int_key(name: str) -> int:
    try:
        return int(name)
    except (TypeError, ValueError) as problem:
        raise _mismatch(name, "a whole number") from problem


def _decode_mapping(plain: dict[str, Any], key: _Convert, item: _Convert) -> dict[Any, Any]:
    result = {}
    for name, value in plain.items():
        try:
            result[key(name)] = item(value)
        except FormError as problem:
            raise problem.under(f"[{str(name)[:80]!r}]") from problem
    return result


def _convert_pair(pair: tuple[_Convert, Any]) -> Any:
    convert, value = pair
    return convert(value)


def _fixed_codec(parts: list[Codec]) -> Codec:
    def converted(values: Sequence[Any], converts: list[_Convert]) -> list[Any]:
        if len(values) != len(converts):
            raise FormError("", f"must have {len(converts)} items, not {len(values)}")
        return _each(zip(converts, values, strict=True), _convert_pair)

    encodes: list[_Convert] = []
    decodes: list[_Convert] = []
    for encode, decode in parts:
        encodes.append(encode)
        decodes.append(decode)
    return Codec(
        lambda value: converted(_instance((tuple, list), value), encodes),
        lambda plain: tuple(converted(_instance(list, plain), decodes)),
    )


def _named_codec(kind: type, form: Form) -> Codec:
    """A ``NamedTuple`` is written as the list of its items."""
    items = _fixed_codec([codec(hint, form) for hint in typing.get_type_hints(kind).values()])
    return Codec(items.encode, lambda plain: kind(*items.decode(plain)))


def _items_codec(origin: type, item: Codec, max_items: int) -> Codec:
    make: Any = tuple
    if issubclass(origin, (list, set)):
        make = origin
    elif issubclass(origin, AbstractSet):
        make = frozenset

    def decode(plain: Any) -> Any:
        if len(_instance(list, plain)) > max_items:
            raise FormError("", f"has {len(plain)} items; the limit is {max_items}")
        return make(_each(plain, item.decode))

    if issubclass(origin, AbstractSet):
        return Codec(lambda v: _sorted(_each(_instance(AbstractSet, v), item.encode)), decode)
    return Codec(lambda v: _each(_instance((tuple, list), v), item.encode), decode)


# ---- records -----------------------------------------------------------------------


class _Record:
    """Encodes and decodes one dataclass."""

    def __init__(self, cls: type, form: Form) -> None:
        self._cls, self._form = cls, form
        self._head = {_TAG: cls.__name__} if form.has_tags else {}

    @functools.cached_property
    def _fields(self) -> list[tuple[str, Any, _Convert, _Convert]]:
        """Of each field: name, type that is taken as it is, how it is written and read.

        The type hints are read on first use: a class may refer to itself. Parts are no such fields.
        """
        fields = []
        for field in dataclasses.fields(self._cls):
            hint = field_hints(self._cls)[field.name]
            if field.name in self._head or not field.init:
                raise FormError(field.name, f"of {self._cls.__name__} has no plain form")
            if field.name in self._parts:
                continue
            # The journal, where speed counts, takes any text and any whole number.
            as_it_is = hint if hint in (bool, int, str) and self._form.has_tags else None
            fields.append((field.name, as_it_is, *codec(hint, self._form)))
        return fields

    @functools.cached_property
    def _parts(self) -> dict[str, tuple[InlinePart, _Record]]:
        """The parts that are written on this level, each with the record of its class."""
        parts = {}
        for name, part in parts_of(self._cls).items():
            parts[name] = part, _Record(part.cls, self._form)
        return parts

    @functools.cached_property
    def _added(self) -> Mapping[str, Any]:
        """The defaults that are not written, so that an earlier release reads the record."""
        return added_fields(self._cls) if self._form.omits_added else {}

    @functools.cached_property
    def _later(self) -> Later | None:
        if not self._form.has_tags:
            return None
        return getattr(self._cls, "LATER", None)

    @functools.cached_property
    def laters(self) -> list[Later]:
        """What is set apart on this level, by the class and its parts."""
        laters: list[Later] = []
        if self._later is not None:
            laters.append(self._later)
        for _, record in self._parts.values():
            laters += record.laters
        return laters

    @functools.cached_property
    def readable_names(self) -> frozenset[str]:
        """The names that may be on this level."""
        names = {*self._head, *written_names(self._cls, parts_of(self._cls))}
        if self._form.has_tags:
            names |= getattr(self._cls, "REMOVED", frozenset())
        for _, record in self._parts.values():
            names |= record.readable_names
        return frozenset(names)

    @functools.cached_property
    def required_names(self) -> frozenset[str]:
        """The names that must be on this level."""
        names: set[str] = set()
        for field in dataclasses.fields(self._cls):
            if field.name in self._parts:
                names |= self._parts[field.name][1].required_names
            elif field.default is field.default_factory is dataclasses.MISSING:
                names.add(field.name)
        return frozenset(names)

    @functools.cached_property
    def _n_names(self) -> int:
        return len(written_names(self._cls, parts_of(self._cls)))

    def _check_names(self, plain: dict[str, Any]) -> None:
        unknown = plain.keys() - self.readable_names
        if unknown and not self._form.ignores_unknown:
            raise FormError(min(map(str, unknown))[:80], "is not a known field", Fault.UNKNOWN)
        if missing := sorted(self.required_names - plain.keys()):
            raise FormError(missing[0], "is missing", Fault.MISSING)

    def encode(self, value: Any, level: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the plain form; ``level``: that of the record whose part this is, to be added to.

        Names are taken from a level again if they are written otherwise, or not at all.
        """
        if type(value) is not self._cls:
            raise _mismatch(value, self._cls.__name__)
        result: dict[str, Any] = dict(self._head) if level is None else level
        name = ""
        try:
            for name, as_it_is, encode, _ in self._fields:
                item = getattr(value, name)
                result[name] = item if type(item) is as_it_is else encode(item)
        except FormError as problem:
            raise problem.under(name) from problem
        for name, (part, record) in self._parts.items():
            record.encode(part.record_of(getattr(value, name)), result)
        for name, default in self._added.items():
            if getattr(value, name) == default:
                del result[name]
        if self._later is not None:
            _set_apart(result, self._later)
        return result

    def decode(self, plain: Any) -> Any:
        if type(plain) is self._cls:
            return plain  # decoded before, as a part of another value
        level = _instance(dict, plain)
        for later in self.laters:
            level = _put_back(level, later)
        if self._head and level.get(_TAG) != self._cls.__name__:
            raise _not_one_of(level.get(_TAG), [self._cls.__name__]).under(_TAG)
        values, n_read = self.read(level)
        if n_read < max(self._n_names, len(level) - len(self._head)):
            self._check_names(level)
        return self.made_of(values)

    def read(self, level: dict[str, Any]) -> tuple[dict[str, Any], int]:
        """Return the values of its fields, of a part those of the part's, and how many were there.

        Nothing is made of them before all names have been checked.
        """
        values: dict[str, Any] = {}
        name = ""
        try:
            for name, as_it_is, _, decode in self._fields:
                if name in level:
                    item = level[name]
                    values[name] = item if type(item) is as_it_is else decode(item)
        except FormError as problem:
            raise problem.under(name) from problem
        n_read = len(values)
        for name, (_, record) in self._parts.items():
            values[name], n_of_part = record.read(level)
            n_read += n_of_part
        return values, n_read

    def made_of(self, values: dict[str, Any]) -> Any:
        """Return the record with the values that ``read`` returned."""
        for name, (part, record) in self._parts.items():
            values[name] = part.value_of(record.made_of(values[name]))
        try:
            return self._cls(**values)
        except (TypeError, ValueError) as problem:  # the class's own checks
            raise FormError("", str(problem)) from problem


def _set_apart(plain: dict[str, Any], later: Later) -> None:
    """Move the fields of ``later`` that are written to the name that it has for them."""
    fields = {name: plain.pop(name) for name in later.fields if name in plain}
    if fields:
        plain[later.within] = fields


def _put_back(plain: dict[str, Any], later: Later) -> dict[str, Any]:
    """Return it as ``_set_apart`` had it; what the name held in earlier releases is left there."""
    within = plain.get(later.within)
    if not isinstance(within, dict):
        return plain
    fields = {name: within[name] for name in later.fields if name in within}
    if not fields:
        return plain
    level = {**plain, **fields}
    del level[later.within]
    return level
