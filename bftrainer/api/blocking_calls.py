"""Runs calls that read users' files outside the event loop: few per user, with a time limit.

A file system that hangs blocks its readers for ever. Each call runs in a thread of its own that is
never joined, and counts for the user whose files it reads. A user with too many calls under way is
refused at once; other users are not affected.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from bftrainer.model.errors import BftError, ExitCode

T = TypeVar("T")

LIMIT_S = 2.0
MOST_PER_USER = 4
MOST = 64


class NoAnswerError(BftError):
    """BFT-1033: the file system did not answer, or too many calls for the user hang."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(
            "BFT-1033",
            f"{what} cannot be read: {why}.",
            "Check it with ls; try again, or name a directory on another file system.",
            exit_code=ExitCode.TIMEOUT,
        )


class Aside:
    """The threads of one event loop."""

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self._limit_s = limit_s
        self._running: dict[tuple[str, str], asyncio.Future[Any]] = {}

    async def call(self, user: str, what: str, work: Callable[[], T]) -> T:
        """Return the result of ``work``, or raise its exception.

        No second thread is started for the same user and object, because the first may hang.

        Raises:
            NoAnswerError: it did not return in time, or too many others did not.
        """
        key = (user, what)
        while key in self._running:
            await self._outcome(what, self._running[key])
        own = sum(1 for owner, _ in self._running if owner == user)
        if own >= MOST_PER_USER or len(self._running) >= MOST:
            raise NoAnswerError(what, f"{own} earlier calls for {user} have not returned")
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
            answer.exception()  # mark it as retrieved: the caller may be gone


def _run(work: Callable[[], T], answer: asyncio.Future[T]) -> None:
    try:
        value, problem = work(), None
    except Exception as raised:  # noqa: BLE001 - passed to the caller
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
