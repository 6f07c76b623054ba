"""How much work a call is, beside other work done in the same process at the same time.

The only place of the tests that reads a clock to judge: a slower or busier machine slows both
sides of a ratio alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable

NO_LINE_IS_FASTER_S = 4e-9  # some twenty cycles; CPython 3.11 takes 87 ns


def effort_s(call: Callable[[], object]) -> float:
    """Return the processor time of one call, of this thread alone."""
    began_s = time.thread_time()
    call()
    return time.thread_time() - began_s


def interpreted(n_lines: int) -> None:
    """Do what interpreting so many plain lines of Python costs."""
    seen = {}
    for number in range(n_lines):
        seen[number & 1023] = str(number)


def lines_of(call: Callable[[], object], *, most: int, tries: int = 5) -> float:
    """Return how many plain lines of Python cost as much as a call; the least of some tries.

    Of a call that is certainly good enough it is the most that it may be.

    Args:
        call: what is judged.
        most: so many are good enough not to try again.
        tries: a processor that another process slows meanwhile is measured again.
    """
    found = float("inf")
    for _ in range(tries):
        taken_s = effort_s(call)
        if taken_s <= most * NO_LINE_IS_FASTER_S:
            return taken_s / NO_LINE_IS_FASTER_S  # at most; what a line takes need not be known
        unit_s = effort_s(lambda: interpreted(10_000)) / 10_000
        found = min(found, taken_s / unit_s)
        if found <= most:
            break
    return found
