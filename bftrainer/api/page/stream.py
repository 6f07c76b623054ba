"""Server-sent events: what is new to one browser, as soon as it is.

One thread of each browser waits for the daemon, so that a daemon that is away, slow or restarted
matters to nobody else. Threads are not joined: one that waits does not keep the process.
"""

from __future__ import annotations

import asyncio
import getpass
import json
import time
from collections.abc import AsyncIterator
from typing import Any, Final

from bftrainer.api.page import parts
from bftrainer.api.page.source import PageSource
from bftrainer.fleet.background import in_thread
from bftrainer.model.errors import BftError
from bftrainer.model.timeline import TimelineView

LEAST_S: Final = 0.5  # between two events
AGAIN_S: Final = 1.0  # after a failure


def user() -> str:
    """Return who looks: the page is served to one user."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # an account that this host does not know
        return ""


def event(kind: str, data: Any) -> str:
    """Return one event (WHATWG HTML, 9.2.6)."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return f"event: {kind}\ndata: {text}\n\n"


class Looks:
    """What one browser has seen."""

    def __init__(self, source: PageSource) -> None:
        self._source, self._sent = source, parts.Sent()
        self._timeline: TimelineView | None = None
        self._asked_s: dict[str, float] = {}
        self._slow: dict[str, Any] = {}

    def next(self) -> dict[str, Any]:
        """Wait until something is new, and return it; blocks."""
        source = self._source
        since = self._timeline.seen if self._timeline else None
        timeline = source.timeline(since)
        status = source.status()
        for name, figure in source.slow().items():
            if time.monotonic() - self._asked_s.get(name, -figure.every_s) >= figure.every_s:
                self._asked_s[name] = time.monotonic()
                self._slow[name] = figure.ask()
        spans, days = parts.planned(timeline), timeline.days
        current = {"head": parts.head(status), "planned": spans, "days": days, **self._slow}
        news = self._sent.news(current, status.trainers, timeline)
        if timeline.is_whole or timeline.changes:
            news["timeline"] = parts.uses(timeline)
        self._timeline = timeline
        return {"now_s": timeline.now_s, "is_first": since is None, **news}


async def events(source: PageSource, ended: asyncio.Event) -> AsyncIterator[str]:
    """Yield events for one browser, until it is gone or the server has ended."""
    over = asyncio.ensure_future(ended.wait())
    try:
        async for text in _events(source, over):
            yield text
    finally:
        over.cancel()


async def _events(source: PageSource, over: asyncio.Future[Any]) -> AsyncIterator[str]:
    looks, was_live = Looks(source), None
    while not over.done():
        began_s = time.monotonic()
        if source.is_live is not was_live:  # a run may end while somebody looks
            was_live = source.is_live
            yield event("hello", {"title": source.title, "is_live": was_live, "user": user()})
            looks = Looks(source)
        look = in_thread(looks.next, "page")
        await asyncio.wait({look, over}, return_when=asyncio.FIRST_COMPLETED)
        if over.done():
            look.cancel()
            return
        try:
            yield event("news", look.result())
        except BftError as error:
            looks = Looks(source)  # a daemon that comes back may be another one
            if source.is_live is not was_live:
                continue
            yield event("away", {"code": error.code, "cause": error.cause, "next": error.next_step})
            began_s += AGAIN_S
        await asyncio.wait({over}, timeout=max(0.0, began_s + LEAST_S - time.monotonic()))
