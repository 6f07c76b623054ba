"""The JSON documents of the API and of ``--json``, each with a name and version.

``document`` wraps a view and adds a ``schema`` field, ``view_of`` reads it back. The API sends the
same documents that the verbs print.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from bftrainer.api.codec import CodecError, decode, encode
from bftrainer.model.errors import BftError, ExitCode

T = TypeVar("T")

VERSION = 1


def schema(name: str) -> str:
    """Return the schema field of a document."""
    return f"bftrainer/{name}/{VERSION}"


def document(name: str, body: Any) -> dict[str, Any]:
    """Wrap one view: its fields and the schema."""
    return {"schema": schema(name), **encode(body)}


def listing(name: str, items: Sequence[Any], **more: Any) -> dict[str, Any]:
    """Wrap several views: a list under the document's name."""
    return {"schema": schema(name), **encode(more), name: [encode(item) for item in items]}


def trials_document(specs: Sequence[Any]) -> dict[str, Any]:
    """Return what submits these specs, at least one: what they share, then what each has alone."""
    common, *_ = plain = [encode(spec) for spec in specs]
    own = [{k: v for k, v in one.items() if common[k] != v} for one in plain]
    return {"schema": schema("trials"), "spec": common, "trials": own}


def check_schema(name: str, value: Any) -> dict[str, Any]:
    """Return the document if it is the expected one.

    Raises:
        CodecError: another document, another version, or not a document.
    """
    if not isinstance(value, dict):
        raise CodecError("", "must be an object")
    if value.get("schema") != schema(name):
        raise CodecError("schema", f"must be {schema(name)!r}")
    return value


def view_of(cls: type[T], name: str, value: Any) -> T:
    """Read one view; fields of a newer daemon are ignored."""
    return decode(cls, check_schema(name, value), is_strict=False)


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
    error = value.get("error") if isinstance(value, dict) else None
    if not isinstance(error, dict):
        return None
    texts = [error.get(name) for name in ("code", "cause", "next_step")]
    exit_code = error.get("exit_code")
    if not all(isinstance(text, str) for text in texts) or not isinstance(exit_code, int):
        return None
    known = {int(code) for code in ExitCode}
    code, cause, next_step = (str(text) for text in texts)
    return BftError(
        code,
        cause,
        next_step,
        exit_code=ExitCode(exit_code) if exit_code in known else ExitCode.INTERNAL,
    )
