"""The daemon's HTTP API on a Unix socket.

A ``Service`` comes in and is served under /v1 until ``stop``: views and errors go out
as the documents of ``documents``; beside it, /metrics for Prometheus. Started by the
daemon inside its own asyncio loop; the service is called in that loop, one call at a
time.
"""

from __future__ import annotations

import asyncio
import math
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route

from bftrainer.api import paths
from bftrainer.api.admission import check_checkpoint_dir, check_spec
from bftrainer.api.codec import CodecError, decode, parse
from bftrainer.api.documents import check_schema, document, error_document, listing
from bftrainer.api.http_protocol import PEER_KEY, EmbeddedServer
from bftrainer.api.service import Peer, Service
from bftrainer.errors import BftError, ExitCode, UsageError
from bftrainer.trainer import TrainerSpec

MAX_BODY_BYTES = 1024 * 1024
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"  # Prometheus' text format
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


class ApiServer:
    """Serves one ``Service`` on one socket."""

    def __init__(self, service: Service, socket_path: Path, *, mode: int = 0o600) -> None:
        self.socket_path = socket_path.absolute()
        self._service = service
        self._mode = mode
        self._server: EmbeddedServer | None = None
        self._task: asyncio.Task[None] | None = None
        self._inode: tuple[int, int] | None = None

    async def start(self) -> None:
        """Listen; when this returns, requests are answered.

        Raises:
            BftError: BFT-1102 when another daemon answers there, BFT-1104 when the
                path is not safe.
        """
        listener = bind(self.socket_path, self._mode)
        info = self.socket_path.stat()
        self._inode = (info.st_dev, info.st_ino)
        self._server = EmbeddedServer(make_app(self._service))
        self._task = asyncio.create_task(self._server.serve(sockets=[listener]))
        ready = asyncio.create_task(self._server.is_ready.wait())
        await asyncio.wait({self._task, ready}, return_when=asyncio.FIRST_COMPLETED)
        if self._task.done():
            ready.cancel()
            self._task.result()  # raises what went wrong

    async def stop(self) -> None:
        """Finish what is being answered and remove the socket."""
        if self._server is None or self._task is None:
            return
        self._remove_socket()  # first: newcomers learn at once that nobody is here
        self._server.leave()
        await self._task
        self._server = self._task = None

    def _remove_socket(self) -> None:
        # A successor may already have put its own socket there.
        try:
            info = self.socket_path.lstat()
        except FileNotFoundError:
            return
        if (info.st_dev, info.st_ino) == self._inode:
            self.socket_path.unlink()


def bind(path: Path, mode: int) -> socket.socket:
    """Return a listening socket at ``path``, in the place of a dead daemon's.

    The socket is made under another name and renamed when it listens with its final
    mode: whoever sees it can use it, and nobody reaches it with a wider mode.
    """
    staging = path.with_name(f".{os.getpid():x}")
    paths.check_length(path)
    paths.check_length(staging)
    paths.check_directory(path.parent)
    _refuse_live(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        staging.unlink(missing_ok=True)
        listener.bind(str(staging))
        staging.chmod(mode)
        listener.listen(128)
        listener.settimeout(0)
        staging.rename(path)
    except OSError as problem:
        listener.close()
        staging.unlink(missing_ok=True)
        raise BftError(
            "BFT-1104",
            f"The socket {path} cannot be made: {problem.strerror}.",
            "Use a local directory that you can write to as BFTRAINER_STATE_DIR.",
        ) from problem
    return listener


def _refuse_live(path: Path) -> None:
    try:
        paths.check_socket(path)
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(2.0)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return  # its owner is dead
        except OSError as problem:
            # Full backlog or no answer: somebody is there, even if too busy.
            cause = f"Something holds the socket {path} ({problem})."
        else:
            cause = f"Another daemon answers on {path}."
    raise BftError(
        "BFT-1102",
        cause,
        "Use that daemon, stop it first, or start this one with another BFTRAINER_STATE_DIR.",
        exit_code=ExitCode.ALREADY_RUNNING,
    )


def make_app(service: Service) -> Starlette:
    """Return the application: every route of /v1."""
    api = _Routes(service)
    one = "/v1/trainers/{trainer_id}"
    routes = [
        Route("/v1/status", api.status, methods=["GET"]),
        Route("/v1/nodes", api.nodes, methods=["GET"]),
        Route("/v1/trainers", api.trainers, methods=["GET"]),
        Route("/v1/trainers", api.submit, methods=["POST"]),
        Route(one, api.trainer, methods=["GET"]),
        Route(one, api.cancel, methods=["DELETE"]),
        Route(f"{one}/explain", api.explain, methods=["GET"]),
        Route(f"{one}/logs", api.logs, methods=["GET"]),
        Route("/v1/harm", api.harm, methods=["GET"]),
        Route("/v1/shutdown", api.shutdown, methods=["POST"]),
        Route("/metrics", api.metrics, methods=["GET"]),  # where Prometheus looks
    ]
    handlers: dict[Any, Callable[[Request, Exception], JSONResponse]] = {
        BftError: _answer_error,
        CodecError: _answer_malformed,
        HTTPException: _answer_http,
        Exception: _answer_bug,  # the traceback goes to the daemon's log
    }
    return Starlette(routes=routes, exception_handlers=handlers)


class _Routes:
    """One method per route: read the request, call the service, wrap the view."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def status(self, _: Request) -> JSONResponse:
        return JSONResponse(document("status", self._service.status()))

    async def nodes(self, _: Request) -> JSONResponse:
        return JSONResponse(listing("nodes", self._service.nodes()))

    async def trainers(self, _: Request) -> JSONResponse:
        return JSONResponse(listing("trainers", self._service.trainers()))

    async def trainer(self, request: Request) -> JSONResponse:
        return JSONResponse(document("trainer", self._service.trainer(_trainer_id(request))))

    async def explain(self, request: Request) -> JSONResponse:
        return JSONResponse(document("explain", self._service.explain(_trainer_id(request))))

    async def logs(self, request: Request) -> JSONResponse:
        trainer_id = _trainer_id(request)
        return JSONResponse(listing("logs", self._service.logs(trainer_id), trainer_id=trainer_id))

    async def harm(self, request: Request) -> JSONResponse:
        return JSONResponse(document("harm", self._service.harm(_since_s(request))))

    async def metrics(self, _: Request) -> PlainTextResponse:
        headers = {"Content-Type": METRICS_TYPE}
        return PlainTextResponse(self._service.metrics(), headers=headers)

    async def submit(self, request: Request) -> JSONResponse:
        body = check_schema("submit", parse(await _body(request)))
        if unknown := sorted(set(body) - {"schema", "spec"}):
            raise CodecError(unknown[0][:80], "is not a known field")
        spec = decode(TrainerSpec, body.get("spec"), where="spec")
        check_spec(spec)
        check_checkpoint_dir(spec, self._service.trainers())
        view = self._service.submit(spec, _peer(request))
        return JSONResponse(document("trainer", view), 201)

    async def cancel(self, request: Request) -> JSONResponse:
        view = self._service.cancel(_trainer_id(request), _peer(request))
        return JSONResponse(document("trainer", view))

    async def shutdown(self, request: Request) -> JSONResponse:
        check_schema("shutdown", parse(await _body(request)))
        self._service.shutdown(_peer(request))
        return JSONResponse(document("shutdown", {}), 202)


def _trainer_id(request: Request) -> str:
    return str(request.path_params["trainer_id"])


def _since_s(request: Request) -> float | None:
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


def _peer(request: Request) -> Peer:
    peer = request.scope[PEER_KEY]
    if not isinstance(peer, Peer):
        raise TypeError("the connection carries no peer")
    return peer


async def _body(request: Request) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise HTTPException(413, f"The body is larger than {MAX_BODY_BYTES} bytes.")
    return bytes(body)


def _answer_error(_: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, BftError):
        raise error
    return JSONResponse(error_document(error), _STATUS_OF_EXIT_CODE.get(error.exit_code, 500))


def _answer_malformed(_: Request, error: Exception) -> JSONResponse:
    refusal = UsageError(
        "BFT-1103",
        f"The request is malformed: {error}.",
        "Send what docs/cli.md describes, or use the bftrainer command of this version.",
    )
    return JSONResponse(error_document(refusal), 400)


def _answer_http(_: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, HTTPException):
        raise error
    refusal = UsageError(
        "BFT-1103",
        f"The request cannot be served: {error.detail}",
        "Send what docs/cli.md describes, or use the bftrainer command of this version.",
    )
    headers = {**(error.headers or {}), "connection": "close"}
    return JSONResponse(error_document(refusal), error.status_code, headers)


def _answer_bug(_: Request, error: Exception) -> JSONResponse:
    refusal = BftError(
        "BFT-1100",
        f"The daemon could not answer because of a defect ({type(error).__name__}).",
        "Look for the traceback in the daemon's log and report it.",
    )
    return JSONResponse(error_document(refusal), 500)
