"""Calls that look at users' files, beside the loop: few per user, none waited for long.

A file system that hangs keeps whoever looks at it for as long as it likes. Such a call has a
thread of its own here, which nobody joins, and a place among those of the user whose files
they are: when these are taken, that user is refused at once, and nobody else.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from bftrainer.errors import BftError, ExitCode

T = TypeVar("T")

LIMIT_S = 2.0
MOST_PER_USER = 4
MOST = 64


class NoAnswerError(BftError):
    """BFT-1033: what was looked at did not answer, or too much of the user's did not."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(
            "BFT-1033",
            f"{what} cannot be looked at: {why}.",
            "Look at it yourself (ls); try again, or name a directory on another file system.",
            exit_code=ExitCode.TIMEOUT,
        )


class Aside:
    """The threads of one loop."""

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self._limit_s = limit_s
        self._running: dict[tuple[str, str], asyncio.Future[Any]] = {}

    async def call(self, user: str, what: str, work: Callable[[], T]) -> T:
        """Return what ``work`` returns, or raise what it raises.

        What is being looked at already gets no second thread: it may hang.

        Raises:
            NoAnswerError: it did not return in time, or too many others did not.
        """
        key = (user, what)
        while key in self._running:
            await self._outcome(what, self._running[key])
        own = sum(1 for owner, _ in self._running if owner == user)
        if own >= MOST_PER_USER or len(self._running) >= MOST:
            raise NoAnswerError(what, f"{own} looks for {user} have not come back")
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._running[key] = answer
        answer.add_done_callback(partial(self._came_back, key))
        threading.Thread(target=_run, args=(work, answer), name="aside", daemon=True).start()
        await self._outcome(what, answer)
        return answer.result()

    async def _outcome(self, what: str, answer: asyncio.Future[Any]) -> None:
        done, _ = await asyncio.wait({answer}, timeout=self._limit_s)
        if not done:
            raise NoAnswerError(what, f"there was no answer within {self._limit_s:g} s")

    def _came_back(self, key: tuple[str, str], answer: asyncio.Future[Any]) -> None:
        del self._running[key]
        if not answer.cancelled():
            answer.exception()  # seen: nobody may be waiting for it any more


def _run(work: Callable[[], T], answer: asyncio.Future[T]) -> None:
    try:
        value, problem = work(), None
    except Exception as raised:  # noqa: BLE001 - whoever asked gets it
        value, problem = None, raised

    def tell() -> None:
        if answer.done():
            return
        if problem is not None:
            answer.set_exception(problem)
        else:
            answer.set_result(value)  # type: ignore[arg-type]  # of work

    with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
        answer.get_loop().call_soon_threadsafe(tell)
