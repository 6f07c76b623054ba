"""The JSON of the API: plain data to values of ``json.dumps`` and back, by type hint.

The server refuses unknown fields and long lists; the client ignores unknown fields, so that an
older command line can read a newer daemon.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar, cast

from milp import plain
from milp.plain import Form, FormError, codec, encode_any

T = TypeVar("T")

CodecError = FormError
parse = plain.parse
_REQUEST: Final = Form(max_items=4096, omits_added=True)
_ANSWER: Final = Form(ignores_unknown=True)


def encode(value: Any) -> Any:
    """Convert plain data to values that ``json.dumps`` accepts."""
    return encode_any(value, _ANSWER)


def encode_request(value: Any) -> Any:
    """Convert what a daemon of the release before reads, too, unless it uses what is new."""
    return encode_any(value, _REQUEST)


def decode(cls: type[T], value: Any, *, is_strict: bool = True, where: str = "") -> T:
    """Build ``cls`` from a parsed JSON object.

    Raises:
        CodecError: a field is missing, unknown (when strict) or of the wrong type.
    """
    try:
        return cast("T", codec(cls, _REQUEST if is_strict else _ANSWER).decode(value))
    except FormError as problem:
        raise problem.under(where) from problem
