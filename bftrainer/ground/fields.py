"""Field types of messages: declared in annotations, checked on receipt.

``step: Count`` is an ``int`` to a type checker; ``made`` checks that it is in range. Standard
library only, like ``protocol``, which uses it. Nothing here recurses on received data.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, get_type_hints

MOST = 2**53 - 1  # the greatest integer that every JSON parser keeps exact
MOST_NAME, MOST_PATH, MOST_WORDS = 256, 4096, 2000  # characters
MOST_TEXT = 4 * 1024 * 1024
MOST_LISTED = 65_536  # members, arguments, variables
MOST_DEPTH = 32  # of nested brackets
_GREATEST = sys.float_info.max
_BRACKETS = b"[]{}"
_NO_BRACKETS = bytes(set(range(256)) - set(_BRACKETS))
_SQUARE = bytes.maketrans(b"{}", b"[]")
_TOO_MANY = b"[" * (MOST_DEPTH + 1)
# Colours, cursor movements, titles and links (ECMA-48); what is not complete stays, and is escaped.
_SEQUENCE = re.compile(r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")


def in_one_line(text: str) -> str:
    """Return the text without control sequences, all other unprintable characters escaped."""
    if text.isprintable():
        return text
    return "".join(map(_printable, _SEQUENCE.sub("", text)))


def _printable(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape").decode()


def shortened(text: str, most: int) -> str:
    """Return a text without escape codes, on one line, of at most ``most`` characters.

    What is left out is whole words of its middle: a traceback's error comes last.
    """
    text = " ".join(_SEQUENCE.sub("", text).split())
    if len(text) <= most:
        return text
    tail = text[-(most // 3) :]
    head = text[: most - len(tail) - len(" ... ")]
    return f"{head.rpartition(' ')[0] or head} ... {tail.partition(' ')[2] or tail}"


def is_deep(text: bytes) -> bool:
    """Return whether JSON text nests brackets deeper than ``MOST_DEPTH``.

    Checked before parsing, in linear time: each round removes the innermost pairs, and too
    many consecutive opening brackets end the search. Unbalanced brackets count as deep or are
    left to the parser.
    """
    unescaped = text.replace(rb"\\", b"").replace(rb"\"", b"")
    brackets = b"".join(unescaped.split(b'"')[::2]).translate(_SQUARE, _NO_BRACKETS)
    for _ in range(MOST_DEPTH):
        if not brackets or _TOO_MANY in brackets:
            return bool(brackets)
        brackets = brackets.replace(b"[]", b"")
    return bool(brackets)


# ---- kinds of values; each raises ValueError -----------------------------------------


def _whole(least: int, most: int) -> Callable[[Any], int]:
    def check(value: Any) -> int:
        if type(value) is not int or not least <= value <= most:
            raise ValueError(f"not a whole number from {least} to {most}")
        return value

    return check


def _amount(value: Any) -> float:
    # NaN compares as false, and a whole number of 400 digits as too great.
    if type(value) not in (int, float) or not 0 <= value <= MOST:
        raise ValueError(f"not a number from 0 to {MOST}")
    return float(value)


def _number(value: Any) -> float:
    # NaN compares as false.
    if type(value) not in (int, float) or not -_GREATEST <= value <= _GREATEST:
        raise ValueError("not a finite number")
    return float(value)


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError("neither true nor false")
    return value


def _text_of(most: int) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        if not isinstance(value, str) or len(value) > most:
            raise ValueError(f"not a text of at most {most} characters")
        value.encode()  # refuses lone surrogates
        return value

    return check


def words(value: Any) -> str:
    """Return a text for display: truncated, on one line, without escape codes."""
    if not isinstance(value, str):
        raise ValueError("not a text")  # noqa: TRY004  # one kind of error for all
    return in_one_line(value[:MOST_WORDS])[:MOST_WORDS]


def _optional(check: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def check_unless_none(value: Any) -> Any:
        return None if value is None else check(value)

    return check_unless_none


@dataclass(frozen=True, slots=True)
class Each:
    """A list of values of one kind."""

    inner: Callable[[Any], Any]
    most: int = MOST_LISTED

    def __call__(self, value: Any) -> tuple[Any, ...]:
        """Return the checked values."""
        if not isinstance(value, list | tuple) or len(value) > self.most:
            raise ValueError(f"not a list of at most {self.most}")
        return tuple(map(self.inner, value))


def _pair(value: Any) -> tuple[str, str]:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise ValueError("not a pair")
    name, text = value
    return (_text(name), _text(text))


_text = _text_of(MOST_TEXT)
_count = _whole(0, MOST)

Count = Annotated[int, _count]
MaybeCount = Annotated[int | None, _optional(_count)]
Port = Annotated[int, _whole(0, 65535)]
Amount = Annotated[float, _amount]  # seconds, or samples per second
MaybeAmount = Annotated[float | None, _optional(_amount)]
Number = Annotated[float, _number]  # finite, may be negative
MaybeNumber = Annotated[float | None, _optional(_number)]
Flag = Annotated[bool, _flag]
Name = Annotated[str, _text_of(MOST_NAME)]
FilePath = Annotated[str, _text_of(MOST_PATH)]
Text = Annotated[str, _text]
Words = Annotated[str, words]
Counts = Annotated[tuple[int, ...], Each(_count)]
Texts = Annotated[tuple[str, ...], Each(_text)]
Pairs = Annotated[tuple[tuple[str, str], ...], Each(_pair)]


# ---- classes ---------------------------------------------------------------------------


@functools.cache
def checks_of(cls: Any) -> Mapping[str, Callable[[Any], Any]]:
    """Return the check of each field of a class; every field needs one."""
    hints = get_type_hints(cls, include_extras=True)
    return {name: hint.__metadata__[-1] for name, hint in hints.items()}


def made(cls: Any, fields: Mapping[Any, Any]) -> Any:
    """Construct an object from received fields.

    Raises:
        ValueError: a field is unknown, missing or invalid.
    """
    checks = checks_of(cls)
    if unknown := fields.keys() - checks.keys():
        raise ValueError(f"unknown field {shown(min(map(str, unknown)))}")
    checked = {}
    for name, value in fields.items():
        try:
            checked[name] = checks[name](value)
        except ValueError as problem:
            raise ValueError(f"{name}: {problem}") from None
    try:
        return cls(**checked)
    except TypeError as problem:  # one without a default is missing
        raise ValueError(str(problem).partition(" ")[2]) from None


def record(cls: Any) -> Callable[[Any], Any]:
    """Return the check of an object with the fields of a class."""

    def check(value: Any) -> Any:
        if not isinstance(value, dict):
            raise ValueError("not an object")  # noqa: TRY004  # as for any other invalid value
        return made(cls, value)

    return check


def shown(value: object, most: int = 100) -> str:
    """Return the beginning of a received text, or the type of another value, for a log."""
    return repr(value[:most]) if isinstance(value, str) else f"a {type(value).__name__}"
