"""What users say to the daemon's socket, and what a daemon may answer them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import http.client
import io
import json
import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from bftrainer.api.admission import check_spec
from bftrainer.api.checkpoint_place import check_place, normal, resolve_directory
from bftrainer.api.client import Client
from bftrainer.api.documents import CodecError, document, encode, listing, schema, trials_document
from bftrainer.api.http_messages import read_submission, read_trials
from bftrainer.api.http_protocol import Credentials, EmbeddedServer, PeerProtocol
from bftrainer.api.routes import Routes
from bftrainer.model.errors import BftError
from bftrainer.model.study import TrialTag
from bftrainer.model.trainer import TrainerSpec
from bftrainer.model.views import LogFile
from milp.problem import Curve
from tests.fuzz.door import Door
from tests.fuzz.hostile import as_json, bytestrings, documents, texts
from tests.support.memory_service import MemoryService

_SPEC = TrainerSpec(
    name="train", user="root", script="/home/u/train.py", args=("--lr", "0.1"), cwd="/home/u",
    interpreter="/usr/bin/python3", n_max=4, epochs=3, checkpoint_dir="/home/u/c",
    curve=Curve(sizes=(1, 2), samples_per_s=(10.0, 19.0)), environment=(("A", "1"),),
)  # fmt: skip
_SUBMISSION = {"schema": schema("submit"), "spec": encode(_SPEC)}
_BODY = as_json(_SUBMISSION)
_TRIALS = trials_document(
    [
        replace(_SPEC, checkpoint_dir=f"/home/u/{n}", trial=TrialTag(study="s", number=n, most=9))
        for n in (0, 1)
    ]
)
_CHANGE = as_json({"schema": schema("change"), "change": {"is_held": True, "n_max": 8}})


def _request(head: str, body: bytes = b"", more: str = "") -> bytes:
    return (
        f"{head} HTTP/1.1\r\nHost: x\r\n{more}Content-Length: {len(body)}\r\n\r\n".encode() + body
    )


_REQUESTS = (
    _request("POST /v1/trainers", _BODY),
    _request("GET /v1/status"),
    _request("GET /v1/trainers/t1/logs"),
    _request("GET /v1/harm?since_s=1e9"),
    _request("DELETE /v1/trainers/%74%31", more="Expect: 100-continue\r\n"),
    _request("PATCH /v1/trainers/t1", _CHANGE),
    _request("POST /v1/trainers/t1/requeue"),
    _request("POST /v1/shutdown", as_json({"schema": schema("shutdown")}), "Upgrade: h2c\r\n"),
    b"POST /v1/trainers HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"%x\r\n%s\r\n0\r\n\r\n" % (len(_BODY), _BODY),
    _request("GET /v1/nodes") + _request("GET /metrics"),
    _request("POST /v1/studies/s/trials", as_json(_TRIALS)),
    _request("GET /v1/studies/s?seen=0&wait_s=0"),
    _request("GET /v1/studies"),
    _request("GET /v1/account?by=user,day&since=2026-11-24&until=2026-11-24"),
)


# ---- what is said to the server --------------------------------------------------------


class _Transport(asyncio.Transport):
    """Takes what the server writes; the test plays the other end."""

    def __init__(self) -> None:
        super().__init__()
        self.is_over = False

    def write(self, data: Any) -> None:
        del data

    def is_closing(self) -> bool:
        return self.is_over

    def close(self) -> None:
        self.is_over = True

    abort = close
    pause_reading = resume_reading = lambda _: None


class _Server(logging.Handler):
    """The real protocol and routes in a loop of their own; what they log is an error here."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.problems: list[BaseException] = []
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(self._on_problem)
        self.service = MemoryService(Path("/"))
        self.server = EmbeddedServer(Routes(self.service).app())
        self.server.config.load()
        self.loop.run_until_complete(self.server.on_tick(0))  # headers of every answer
        logging.getLogger("uvicorn.error").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        problem = record.exc_info[1] if record.exc_info else None
        self.problems.append(problem or AssertionError(record.getMessage()))

    def _on_problem(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.problems.append(context.get("exception") or AssertionError(context["message"]))

    async def meet(self, raw: bytes) -> None:
        who, transport = Credentials(uid=os.geteuid(), pid=1), _Transport()
        self.service.records.clear()
        self.raw = raw
        protocol = PeerProtocol(self.server.config, self.server.server_state, who, lambda _: None)
        protocol.connection_made(transport)
        for piece in (raw[: len(raw) // 2], raw[len(raw) // 2 :]):
            if piece and not transport.is_over:
                protocol.data_received(piece)
                await asyncio.sleep(0)
        if protocol.cycle is not None and not protocol.cycle.more_body:
            await self._tasks()
        protocol.connection_lost(None)
        await self._tasks()
        await asyncio.sleep(0)

    async def _tasks(self) -> None:
        if self.server.server_state.tasks:
            await asyncio.wait(self.server.server_state.tasks, timeout=20)
        if self.server.server_state.tasks:
            raise AssertionError(f"a request never ends: {self.raw[:300]!r}")


@functools.cache
def _server() -> _Server:
    return _Server()


def _say(raw: bytes) -> None:
    server = _server()
    server.problems.clear()
    server.loop.run_until_complete(server.meet(raw))
    if server.problems:
        raise server.problems[0]


def _check_strings(text: str) -> None:
    spec = TrainerSpec(
        name=text[:255] or "n",
        user="u",
        script=f"/{text}",
        args=(text, *text.split(",")),
        checkpoint_dir=f"/bft-fuzz/{text}",
        environment=((text[:20] or "A", text), ("A", text)),
        preamble=text,
        notify=f"/{text}",
    )
    with contextlib.suppress(BftError):
        check_spec(spec)
        check_place(spec, ())
        resolve_directory(spec)
    assert normal(normal(spec.checkpoint_dir)) == normal(spec.checkpoint_dir)


# ---- what is said to the client --------------------------------------------------------


class _Told(http.client.HTTPConnection):
    """A connection on which the answer is already there."""

    def __init__(self, answer: bytes) -> None:
        super().__init__("localhost")
        self._answer = answer

    def connect(self) -> None:
        self.sock = self

    def sendall(self, data: object) -> None:
        del data

    def makefile(self, mode: str) -> io.BufferedIOBase:
        del mode
        return io.BytesIO(self._answer)

    def close(self) -> None:
        self.sock = None
        super().close()


class _Hearing(Client):
    """A client of whoever answers so."""

    def __init__(self, answer: bytes) -> None:
        super().__init__(Path("/nowhere"))
        self._answer = answer

    def _check_path(self) -> None:
        pass

    def _connection(self) -> http.client.HTTPConnection:
        return _Told(self._answer)


def _hear(answer: bytes) -> None:
    client = _Hearing(answer)
    logs = functools.partial(client.logs, "t1")
    verbs = (client.status, client.trainers, client.nodes, client.metrics, logs)
    verbs[len(answer) % len(verbs)]()  # one of them: the limit of time is for one call


def _answer(body: Any, head: bytes = b"HTTP/1.1 200 OK") -> bytes:
    text = as_json(body)
    return b"%s\r\nContent-Length: %d\r\n\r\n%s" % (head, len(text), text)


_FILE = LogFile(worker_id="t1-1-1", node="n1", path="/c/logs/t1-1-1.log", generation=1, rank=0)
_ERROR = {
    "schema": schema("error"),
    "error": {"code": "BFT-1004", "cause": "None.", "next_step": "Look.", "exit_code": 4},
}
_ANSWERS = (
    listing("logs", [_FILE], trainer_id="t1"),
    document("status", MemoryService(Path("/")).status()),
    listing("nodes", MemoryService(Path("/")).nodes()),
    _ERROR,
)
_CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"

DOORS = (
    Door(
        name="api-submission",
        call=read_submission,
        refuses_with=(CodecError, BftError),
        inputs=documents(_SUBMISSION).map(as_json) | bytestrings(_BODY),
        from_bytes=bytes,
    ),
    Door(
        name="api-trials",
        call=lambda body: read_trials(body, "s"),
        refuses_with=(CodecError, BftError),
        inputs=documents(_TRIALS).map(as_json) | bytestrings(as_json(_TRIALS)),
        from_bytes=bytes,
    ),
    Door(
        name="api-request",
        call=_say,
        inputs=bytestrings(*_REQUESTS)
        | documents(_SUBMISSION).map(as_json).map(functools.partial(_request, "POST /v1/trainers")),
        from_bytes=bytes,
    ),
    Door(name="api-strings", call=_check_strings, inputs=texts("/home/u/c", "a,b", "../x", "LR=1")),
    Door(
        name="api-answer",
        call=_hear,
        refuses_with=(BftError,),
        inputs=documents(*json.loads(json.dumps(_ANSWERS))).map(_answer)
        | documents(_ERROR).map(lambda body: _answer(body, b"HTTP/1.1 404 Not Found"))
        | bytestrings(*map(_answer, _ANSWERS), _CHUNKED),
        from_bytes=bytes,
    ),
)
