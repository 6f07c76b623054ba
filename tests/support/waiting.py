"""Waits for a condition with a deadline; tests never sleep for a guessed time.

A callable comes in, its first truthy result goes out; every test that has to wait calls it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_for(
    condition: Callable[[], T | None],
    *,
    timeout_s: float = 150.0,
    interval_s: float = 0.05,
    what: str = "",
) -> T:
    """Call ``condition`` until its result is truthy and return that result.

    Raises:
        AssertionError: not truthy within ``timeout_s``; names ``what`` and the last result.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        result = condition()
        if result:
            return result
        if time.monotonic() >= deadline:
            named = what or getattr(condition, "__qualname__", "condition")
            raise AssertionError(f"not within {timeout_s:g} s: {named} (last result: {result!r})")
        time.sleep(interval_s)


def never() -> bool:
    """Return False: nothing breaks the waiting off."""
    return False
