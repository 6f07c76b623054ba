"""The page's HTTP server, for the browsers of one user. Nothing in it changes anything."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from functools import partial
from importlib.resources import files
from typing import Any, Final

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bftrainer.api.documents import error_document
from bftrainer.api.page.connections import LET_IN, PageServer
from bftrainer.api.page.door import HEADERS, KEY_HEADER, Door, PageAddress
from bftrainer.api.page.listeners import Listeners, listening
from bftrainer.api.page.source import PageSource
from bftrainer.api.page.stream import events
from bftrainer.fleet.background import in_thread
from bftrainer.model.errors import BftError, ExitCode

ASSETS: Final = {
    "": ("page.html", "text/html"),
    "page.css": ("page.css", "text/css"),
    "page.js": ("page.js", "text/javascript"),
    "curves.js": ("curves.js", "text/javascript"),
    "picture.js": ("picture.js", "text/javascript"),
}
MOST_TOKEN_BYTES: Final = 200


def app(source: PageSource, door: Door) -> Starlette:
    """Return the application; ``state.ended`` ends its streams."""
    pages = _Pages(source, door)
    app = Starlette(
        routes=[
            *(Route(f"/{name}", partial(_asset, name), methods=["GET"]) for name in ASSETS),
            Route("/enter", pages.enter, methods=["POST"]),
            Route("/known", _known, methods=["GET"]),
            Route("/events", pages.events, methods=["GET"]),
            Route("/explain/{name}", pages.explain, methods=["GET"]),
            Route("/log/{name}", pages.log, methods=["GET"]),
            Route("/study/{name:path}", pages.study, methods=["GET"]),
        ],
        middleware=[Middleware(_Guard, door=door)],
        exception_handlers={ClientDisconnect: _answer_nobody},
    )
    app.state.ended = pages.ended
    return app


class _Guard:
    """Asks the door about each request, and sends the headers of ``door`` with each answer."""

    def __init__(self, inner: ASGIApp, door: Door) -> None:
        self._inner, self._door = inner, door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request, inner = Request(scope), self._inner
        key = request.headers.get(KEY_HEADER, "")
        is_open = request.url.path == "/enter" or request.url.path.removeprefix("/") in ASSETS
        if why := self._door.why_refused(request.headers):
            inner = PlainTextResponse(why, 403)
        elif not is_open and not self._door.knows(request.cookies, key):
            inner = PlainTextResponse("Open the link that 'bftrainer web' printed.", 401)
        else:
            scope[LET_IN] = not is_open

        async def send_on(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await inner(scope, receive, send_on)


async def _asset(name: str, _: Request) -> Response:
    file, kind = ASSETS[name]
    text = files("bftrainer.api.page").joinpath("assets", file).read_bytes()
    return Response(text, media_type=kind)


async def _answer_nobody(_: Request, __: Exception) -> Response:
    return Response()


async def _known(_: Request) -> Response:
    """Answer a browser that has a cookie; the guard refuses others."""
    return Response(status_code=204)


class _Pages:
    def __init__(self, source: PageSource, door: Door) -> None:
        self._source, self._door = source, door
        self.ended = asyncio.Event()

    async def enter(self, request: Request) -> Response:
        token = b""
        async for chunk in request.stream():
            token += chunk
            if len(token) > MOST_TOKEN_BYTES:
                return PlainTextResponse("", 413)
        session = self._door.enter(token.decode(errors="replace"))
        if session is None:
            return PlainTextResponse("This link was used already, or is an old one.", 403)
        cookie, key = session
        return PlainTextResponse(key, headers={"Set-Cookie": self._door.set_cookie(cookie)})

    async def events(self, _: Request) -> Response:
        return StreamingResponse(
            events(self._source, self.ended),
            media_type="text/event-stream",
            headers={"X-Accel-Buffering": "no"},  # nginx would keep events back
        )

    async def explain(self, request: Request) -> Response:
        return await self._told(self._source.explain, request)

    async def log(self, request: Request) -> Response:
        return await self._told(self._source.log, request)

    async def study(self, request: Request) -> Response:
        return await self._told(self._source.study, request)

    async def _told(self, ask: Callable[[str], Any], request: Request) -> Response:
        try:
            work = partial(ask, str(request.path_params["name"]))
            document, status = await in_thread(work, "page"), 200
        except BftError as error:
            document = error_document(error)
            status = 404 if error.exit_code is ExitCode.NOT_FOUND else 503
        return Response(
            json.dumps(document, allow_nan=False), status, media_type="application/json"
        )


async def serve(application: Starlette, listeners: Listeners) -> None:
    """Serve until SIGINT or SIGTERM."""
    await _server(application, listeners).serve(sockets=list(listeners.sockets))


def _server(application: Starlette, listeners: Listeners) -> PageServer:
    return PageServer(application, listeners.sockets[0], application.state.ended)


@contextlib.contextmanager
def serving_beside(application: Starlette, listeners: Listeners) -> Iterator[None]:
    """Serve in a thread."""
    server = _server(application, listeners)
    serving = threading.Thread(
        target=lambda: asyncio.run(server.serve(sockets=list(listeners.sockets))),
        name="page",
        daemon=True,
    )
    serving.start()
    try:
        yield
    finally:
        server.should_exit = True
        serving.join()


@contextlib.contextmanager
def page_of(source: PageSource, said: Callable[[str], object]) -> Iterator[None]:
    """Serve a page to this host, in a thread; ``said``: is given its link."""
    with listening() as listeners:
        door = Door(PageAddress(port=listeners.port), said)
        with serving_beside(app(source, door), listeners):
            door.offer()
            yield
