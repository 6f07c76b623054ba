"""The JSON documents of the API and of ``--json``, and their codec.

The server refuses unknown fields and long lists; the client ignores unknown fields, so that an
older command line can read a newer daemon.

``document`` wraps a view and adds a ``schema`` field, ``view_of`` reads it back. The API sends the
documents that the verbs print.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar, cast

from bftrainer.model.errors import BftError, ExitCode
from milp import plain
from milp.plain import Form, FormError, codec, encode_any

T = TypeVar("T")

CodecError = FormError
parse = plain.parse
_REQUEST: Final = Form(max_items=4096, omits_added=True)
_ANSWER: Final = Form(ignores_unknown=True)
VERSION: Final = 1


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


def schema(name: str) -> str:
    """Return the schema field of a document."""
    return f"bftrainer/{name}/{VERSION}"


def document(name: str, body: Any) -> dict[str, Any]:
    """Wrap one view: its fields and the schema."""
    return {"schema": schema(name), **encode(body)}


def listing(name: str, items: Sequence[Any], **more: Any) -> dict[str, Any]:
    """Wrap several views: a list under the document's name."""
    return {"schema": schema(name), **encode(more), name: list(map(encode, items))}


def trials_document(specs: Sequence[Any]) -> dict[str, Any]:
    """Return what submits these specs, at least one: what they share, then what each has alone."""
    records = list(map(encode, specs))
    common = records[0]
    trials = [_differing(record, common) for record in records]
    return {"schema": schema("trials"), "spec": common, "trials": trials}


def _differing(record: Mapping[str, Any], common: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if common[name] != value}


def check_schema(name: str, value: Any, *, formerly: Sequence[str] = ()) -> dict[str, Any]:
    """Return the document if it is the expected one.

    Args:
        name: of the document.
        value: what was read.
        formerly: names that earlier releases gave it.

    Raises:
        CodecError: another document, another version, or not a document.
    """
    if not isinstance(value, dict):
        raise CodecError("", "must be an object")
    if value.get("schema") not in list(map(schema, (name, *formerly))):
        raise CodecError("schema", f"must be {schema(name)!r}")
    return value


def view_of(cls: type[T], name: str, value: Any, *, formerly: Sequence[str] = ()) -> T:
    """Read one view; fields of a newer daemon are ignored. ``formerly``: see ``check_schema``."""
    return decode(cls, check_schema(name, value, formerly=formerly), is_strict=False)


def views_of(cls: type[T], name: str, value: Any) -> tuple[T, ...]:
    """Read a listing; fields of a newer daemon are ignored."""
    items = check_schema(name, value).get(name)
    if not isinstance(items, list):
        raise CodecError(name, "must be a list")
    return tuple(
        decode(cls, item, is_strict=False, where=f"{name}[{index}]")
        for index, item in enumerate(items)
    )


def error_document(error: BftError) -> dict[str, Any]:
    """Return the document that reports an error."""
    return {
        "schema": schema("error"),
        "error": {
            "code": error.code,
            "cause": error.cause,
            "next_step": error.next_step,
            "exit_code": int(error.exit_code),
        },
    }


def error_of(value: Any) -> BftError | None:
    """Rebuild the error of such a document; None: it is not one."""
    if not isinstance(value, dict) or not isinstance(value.get("error"), dict):
        return None
    error = value["error"]
    texts = list(map(error.get, ("code", "cause", "next_step")))
    exit_code = error.get("exit_code")
    if not all(isinstance(text, str) for text in texts) or not isinstance(exit_code, int):
        return None
    codes = set(map(int, ExitCode))
    code, cause, next_step = map(str, texts)
    return BftError(
        code,
        cause,
        next_step,
        exit_code=ExitCode(exit_code) if exit_code in codes else ExitCode.INTERNAL,
    )
