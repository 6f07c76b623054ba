"""Answers as responses: documents, and errors with their HTTP status.

Used by ``routes``; ``HANDLERS`` is for the application.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from bftrainer.api.documents import CodecError, error_document
from bftrainer.model.errors import BftError, ExitCode, UsageError

_STATUS_OF_EXIT_CODE = {
    ExitCode.USAGE: 400,
    ExitCode.VALIDATION_FAILED: 400,
    ExitCode.NOT_PERMITTED: 403,
    ExitCode.NOT_FOUND: 404,
    ExitCode.REFUSED_BY_POLICY: 409,
    ExitCode.ALREADY_RUNNING: 409,
    ExitCode.DAEMON_UNREACHABLE: 503,
    ExitCode.TIMEOUT: 504,
}
_STATUS_OF_CODE = {"BFT-1031": 429}  # may succeed a little later


def as_json(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a document as a response."""
    text = json.dumps(value, allow_nan=False)  # all ASCII, so any text is safe
    return Response(text, status, headers, "application/json")


async def _answer_error(_: Request, error: Exception) -> Response:
    if not isinstance(error, BftError):
        raise error
    status = _STATUS_OF_CODE.get(error.code) or _STATUS_OF_EXIT_CODE.get(error.exit_code, 500)
    return as_json(error_document(error), status)


async def _answer_malformed(_: Request, error: Exception) -> Response:
    refusal = UsageError(
        "BFT-1103",
        f"The request is malformed: {error}.",
        "Send what docs/reference/cli.md describes, or use the bftrainer command of this version.",
    )
    return as_json(error_document(refusal), 400)


async def _answer_http(_: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    refusal = UsageError(
        "BFT-1103",
        f"The request cannot be served: {error.detail}",
        "Send what docs/reference/cli.md describes, or use the bftrainer command of this version.",
    )
    return as_json(error_document(refusal), error.status_code, error.headers)


async def _answer_nobody(_: Request, __: Exception) -> Response:
    return Response()


async def _answer_bug(_: Request, error: Exception) -> Response:
    refusal = BftError(
        "BFT-1100",
        f"The daemon could not answer because of a defect ({type(error).__name__}).",
        "Look for the traceback in the daemon's log and report it.",
    )
    return as_json(error_document(refusal), 500)


# Coroutines, because Starlette runs plain functions in threads.
HANDLERS: dict[Any, Callable[[Request, Exception], Awaitable[Response]]] = {
    BftError: _answer_error,
    CodecError: _answer_malformed,
    HTTPException: _answer_http,
    ClientDisconnect: _answer_nobody,
    Exception: _answer_bug,  # the traceback goes to the daemon's log
}
