"""A JSON document as YAML, in block style. Pure.

All texts are quoted and ASCII, so that no reader of YAML 1.1 or 1.2 takes one for a number or a
truth value, and none reaches a terminal as a command. Floats have a point, as YAML 1.1 asks for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

_PLAIN_KEY: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z", re.ASCII)
_WORDS: Final = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
_ESCAPES: Final = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def yaml_text(document: Any) -> str:
    """Return a document of JSON types as YAML, with a line end.

    Raises:
        ValueError: it has a number that JSON does not have.
    """
    plain = json.loads(json.dumps(document, allow_nan=False))
    if isinstance(plain, (dict, list)) and plain:
        return "".join(f"{line}\n" for line in _lines(plain))
    return f"{_scalar(plain)}\n"


def _lines(value: dict[str, Any] | list[Any]) -> Iterator[str]:
    """Yield the lines of a mapping or a list that is not empty."""
    if isinstance(value, list):
        items = [("-", item) for item in value]
    else:
        items = [(f"{_key(name)}:", item) for name, item in value.items()]
    for head, item in items:
        if not isinstance(item, (dict, list)) or not item:
            yield f"{head} {_scalar(item)}"
            continue
        below = _lines(item)
        if head == "-":  # its first line stands beside
            yield f"- {next(below)}"
        else:
            yield head
        for line in below:
            yield f"  {line}"


def _key(name: str) -> str:
    if _PLAIN_KEY.match(name) and name.lower() not in _WORDS:
        return name
    return _quoted(name)


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        return _quoted(value)
    text = json.dumps(value)
    mantissa, has_exponent, exponent = text.partition("e")
    if isinstance(value, float) and has_exponent and "." not in mantissa:
        return f"{mantissa}.0e{exponent}"
    return text


def _quoted(text: str) -> str:
    return f'"{"".join(map(_escaped, text))}"'


def _escaped(character: str) -> str:
    code = ord(character)
    if character in _ESCAPES:
        return _ESCAPES[character]
    if 0x20 <= code < 0x7F:
        return character
    if code < 0x100:
        return f"\\x{code:02x}"
    if code < 0x10000:
        return f"\\u{code:04x}"
    return f"\\U{code:08x}"
