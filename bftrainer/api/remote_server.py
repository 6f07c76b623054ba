"""The API for a user's verbs on other hosts: the requests of the Unix socket, over CURVE.

Only the user of the daemon can read the client key in its state directory; without it the
handshake fails. One frame is one request, one frame its answer (``remote_client``).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from typing import Any
from urllib.parse import unquote

from starlette.types import ASGIApp, Message

from bftrainer.api.documents import error_document
from bftrainer.api.http_messages import MAX_BODY_BYTES
from bftrainer.api.http_protocol import PEER_KEY, Credentials
from bftrainer.fleet.wire.keys import KeyPair
from bftrainer.fleet.wire.router import CurveRouter, Origin
from bftrainer.model.errors import BftError, UsageError

LOG = logging.getLogger("bftrainer.api")
MAX_FRAME_BYTES = MAX_BODY_BYTES + 8192
MOST_REQUESTS = 32  # under way


class FarServer:
    """Answers requests in the daemon's event loop."""

    def __init__(self, app: ASGIApp, keys: KeyPair, client_public_key: str) -> None:
        self._app = app
        self._tasks: set[asyncio.Task[None]] = set()
        self._router = CurveRouter(
            keys=keys,
            max_message_bytes=MAX_FRAME_BYTES,
            is_allowed=lambda key: key == client_public_key,
            on_frame=self._on_frame,
        )

    def start(self, host: str, port: int = 0, ports: str = "") -> str:
        """Listen on this port or another one of ``ports``, and return the endpoint.

        Raises:
            BftError: BFT-1306, that is impossible.
        """
        if port:
            with contextlib.suppress(BftError):
                return self._router.start(host, port)
        return self._router.start(host, 0, ports)

    async def stop(self) -> None:
        """Finish the answers under way and close."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._router.close()

    def _on_frame(self, origin: Origin, frame: bytes) -> None:
        if len(self._tasks) >= MOST_REQUESTS:
            self._send(origin, 429, _refusal("BFT-1107", "There are too many requests."))
            return
        task = asyncio.get_running_loop().create_task(self._answer(origin, frame))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, origin: Origin, frame: bytes) -> None:
        try:
            method, path, body = request_of(frame)
        except (ValueError, LookupError, TypeError, RecursionError):
            self._send(origin, 400, _refusal("BFT-1103", "The request is malformed."))
            return
        try:
            status, text = await _called(self._app, method, path, body)
        except Exception:  # a defect; the application has answered all others
            LOG.exception("%s %s failed", method, path.partition("?")[0])
            return
        self._send(origin, status, text)

    def _send(self, origin: Origin, status: int, text: bytes) -> None:
        self._router.send(origin.route, b"%d\n" % status + text)


def request_of(frame: bytes) -> tuple[str, str, bytes]:
    """Return method, path and body of a frame.

    Raises:
        ValueError: it is no request; or LookupError, TypeError, RecursionError.
    """
    head, _, body = frame.partition(b"\n")
    header = json.loads(head)
    method, path = header["method"], header["path"]
    if method not in ("GET", "POST", "DELETE", "PATCH") or not isinstance(path, str):
        raise ValueError("not a request")
    return method, path, body


def _refusal(code: str, cause: str) -> bytes:
    refusal = UsageError(code, cause, "Try again, with the bftrainer command of this version.")
    return json.dumps(error_document(refusal)).encode()


async def _called(app: ASGIApp, method: str, path: str, body: bytes) -> tuple[int, bytes]:
    """Run one request of the user through the application; return status and answer."""
    name, _, query = path.partition("?")
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(name),
        "raw_path": name.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
        PEER_KEY: Credentials(uid=os.geteuid(), pid=0),
    }
    status, answer = 500, bytearray()

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = int(message["status"])
        elif message["type"] == "http.response.body":
            answer.extend(message.get("body", b""))

    await app(scope, receive, send)
    return status, bytes(answer)
