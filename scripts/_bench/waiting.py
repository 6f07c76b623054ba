"""Waits of benchmarks for what happens elsewhere, with an end to their patience.

A condition comes in, its first truthy result goes out; called by whatever waits.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class BenchError(Exception):
    """The benchmark cannot go on; the text says what did not happen."""


def wait_until(
    condition: Callable[[], T | None], what: str, *, patience_s: float, interval_s: float = 0.1
) -> T:
    """Look every ``interval_s`` until ``condition`` is truthy and return that.

    Raises:
        BenchError: not within ``patience_s``; names ``what``.
    """
    deadline_s = time.monotonic() + patience_s
    while not (result := condition()):
        _check(deadline_s, patience_s, what)
        time.sleep(interval_s)
    return result


async def wait_until_async(
    condition: Callable[[], T | None], what: str, *, patience_s: float, interval_s: float = 0.1
) -> T:
    """As ``wait_until``; other tasks run between two looks."""
    deadline_s = time.monotonic() + patience_s
    while not (result := condition()):
        _check(deadline_s, patience_s, what)
        await asyncio.sleep(interval_s)
    return result


def _check(deadline_s: float, patience_s: float, what: str) -> None:
    if time.monotonic() > deadline_s:
        raise BenchError(f"not within {patience_s:g} s: {what}")
