"""Canonical JSON of frozen dataclasses: equal values have equal bytes.

The journal stores the output of ``encode``, and digests are computed over it; ``decode`` reads it
back, strictly, driven by the type hints of a class (``milp.plain``). Keys are sorted, there is no
white space, floats are written by ``repr``, a dataclass is an object with its name as ``type``.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any, Final, TypeVar, cast

from bftrainer.model.errors import BftError
from milp import plain as plain_json
from milp.plain import Form, FormError, codec, encode_any

T = TypeVar("T")
_FORM: Final = Form(has_tags=True, takes_any_text=True, omits_added=True)
_WRITER: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)


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
    return _coded(plain_json.parse, "", data)


def to_plain(value: object) -> Any:
    """Return the value as dicts, lists, strings, numbers, booleans and None."""
    root = type(value).__name__ if is_dataclass(value) else ""
    return _coded(functools.partial(encode_any, form=_FORM), root, value)


def text_of(plain: Any) -> str:
    """Return the canonical JSON of a result of ``to_plain`` or ``parse``."""
    return _WRITER.encode(plain)


def from_plain(plain: Any, cls: type[T]) -> T:
    """Return the ``cls`` described by a result of ``parse``."""
    return cast("T", _coded(codec(cls, _FORM).decode, cls.__name__, plain))


@functools.cache
def encoder(hint: Any) -> Callable[[Any], Any]:
    """Return ``to_plain`` for values of a type hint, such as that of a field."""
    return functools.partial(_coded, codec(hint, _FORM).encode, "")


def _coded(convert: Callable[[Any], Any], root: str, value: Any) -> Any:
    """Convert a value; ``root`` begins the path of an error."""
    try:
        return convert(value)
    except FormError as problem:
        raise CanonicalError(problem.problem, problem.under(root).where) from problem
