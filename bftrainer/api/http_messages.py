"""Requests and responses: path, query and body in, documents and errors out.

Used by ``routes``. Nothing is looked up, so requests may contain anything. ``HANDLERS`` is for the
application.

A study's trials differ in number, parameters, arguments and directory only, so that a thousand of
them fit into one request (``documents.trials_document``).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Awaitable, Callable, Mapping
from datetime import date
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from bftrainer.api.admission import check_spec
from bftrainer.api.documents import CodecError, check_schema, decode, error_document, parse
from bftrainer.api.http_protocol import PEER_KEY, Credentials
from bftrainer.model.errors import BftError, ExitCode, UsageError
from bftrainer.model.reports import COLUMNS, Asked
from bftrainer.model.study import Seen
from bftrainer.model.trainer import TrainerChange, TrainerSpec

MAX_BODY_BYTES = 768 * 1024  # size of the longest spec with every character escaped
MOST_DRAIN_S = 86_400.0
_TRAINER_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
MOST_AT_ONCE = 1000
MOST_BYTES = 8 * 1024 * 1024  # of all specs, written out
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


def read_submission(body: bytes) -> TrainerSpec:
    """Return the spec in the body of a submission.

    Raises:
        CodecError: there is none.
        UsageError: of ``check_spec``.
    """
    document = check_schema("submit", parse(body))
    if unknown := sorted(set(document) - {"schema", "spec"}):
        raise CodecError(unknown[0][:80], "is not a known field")
    spec = decode(TrainerSpec, document.get("spec"), where="spec")
    check_spec(spec)
    return spec


def read_change(body: bytes) -> TrainerChange:
    """Return the change in the body of a request; the service checks its result.

    Raises:
        CodecError: there is none.
    """
    document = check_schema("change", parse(body))
    if unknown := sorted(set(document) - {"schema", "change"}):
        raise CodecError(unknown[0][:80], "is not a known field")
    return decode(TrainerChange, document.get("change"), where="change")


def read_limit(body: bytes) -> float:
    """Return the seconds within which all nodes are to be given back.

    Raises:
        CodecError: there are none.
    """
    limit_s = check_schema("drain", parse(body)).get("limit_s")
    if isinstance(limit_s, bool) or not isinstance(limit_s, int | float):
        raise CodecError("limit_s", "must be a number")
    if not 0.0 <= limit_s <= MOST_DRAIN_S:
        raise CodecError("limit_s", f"must be from 0 to {MOST_DRAIN_S:g}")
    return float(limit_s)


def trainer_id_of(request: Request) -> str:
    """Return the trainer in the path; UsageError BFT-1004: that is no id."""
    trainer_id = str(request.path_params["trainer_id"])
    if not _TRAINER_ID.fullmatch(trainer_id):
        raise UsageError(
            "BFT-1004",
            f"{trainer_id[:40]!r} is not the id of a trainer.",
            "List them with: bftrainer status",
            exit_code=ExitCode.NOT_FOUND,
        )
    return trainer_id


def since_s_of(request: Request) -> float | None:
    """Return the time from which something is asked; None: from the beginning."""
    text = request.query_params.get("since_s")
    if text is None:
        return None
    try:
        since_s = float(text)
    except ValueError:
        since_s = math.nan
    if not math.isfinite(since_s):
        raise CodecError("since_s", "must be seconds since the epoch")
    return since_s


def asked_of(request: Request, *, user: str) -> Asked:
    """Return what of the account is asked for."""
    query = request.query_params
    columns = tuple(query.get("by", COLUMNS[0]).split(","))
    if not set(columns) <= set(COLUMNS) or len(set(columns)) < len(columns):
        raise CodecError("by", f"must be some of {', '.join(COLUMNS)}, each once")
    for name in ("since", "until"):
        try:
            date.fromisoformat(query.get(name, "2000-01-01"))
        except ValueError as problem:
            raise CodecError(name, "must be a day such as 2026-11-24") from problem
    return Asked(by=columns, since=query.get("since", ""), until=query.get("until", ""), user=user)


def credentials_of(request: Request) -> Credentials:
    """Return who is at the other end of the connection."""
    credentials = request.scope[PEER_KEY]
    if not isinstance(credentials, Credentials):
        raise TypeError("the connection carries no credentials")
    return credentials


async def body_of(request: Request) -> bytes:
    """Return the body; HTTPException 413: it is too long."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise HTTPException(413, f"The body is larger than {MAX_BODY_BYTES} bytes.")
    return bytes(body)


def read_trials(body: bytes, study: str) -> tuple[TrainerSpec, ...]:
    """Return the specs in a body; all are trials of this study and of one user.

    Raises:
        CodecError: there are none.
        UsageError: of ``check_spec``.
    """
    document = check_schema("trials", parse(body))
    if unknown := sorted(set(document) - {"schema", "spec", "trials"}):
        raise CodecError(unknown[0][:80], "is not a known field")
    common, trials = document.get("spec"), document.get("trials")
    if not isinstance(common, dict):
        raise CodecError("spec", "must be an object")
    if not isinstance(trials, list) or not 1 <= len(trials) <= MOST_AT_ONCE:
        raise CodecError("trials", f"must be a list of 1 to {MOST_AT_ONCE} objects")
    if len(json.dumps(common)) * len(trials) > MOST_BYTES:
        raise CodecError("trials", f"must not come to more than {MOST_BYTES} bytes together")
    specs: list[TrainerSpec] = []
    for index, trial in enumerate(trials):
        where = f"trials[{index}]"
        if not isinstance(trial, dict):
            raise CodecError(where, "must be an object")
        spec = decode(TrainerSpec, common | trial, where=where)
        check_spec(spec)
        if spec.trial is None or spec.trial.study != study:
            raise CodecError(f"{where}.trial", f"must be a trial of {study}")
        if spec.user != (specs[0] if specs else spec).user or not spec.checkpoint_dir:
            raise CodecError(where, "must have a checkpoint directory, and the user of the others")
        specs.append(spec)
    return tuple(specs)


def read_seen(query: Mapping[str, str]) -> Seen | None:
    """Return what the client has seen; None: nothing."""
    change, incarnation = (_count(query.get(name, "")) for name in ("seen", "incarnation"))
    if change is None or incarnation is None:
        return None
    return Seen(change=change, incarnation=incarnation)


def read_wait(query: Mapping[str, str], limit_s: float) -> float:
    """Return how long to wait for something that the client has not seen."""
    wait_s = _count(query.get("wait_s", ""))
    if wait_s is None:
        return limit_s
    return min(limit_s, wait_s)


def _count(text: str) -> int | None:
    if not text.isascii() or not text.isdigit():
        return None
    return int(text[:18])


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
