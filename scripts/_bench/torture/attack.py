"""One attacker: does something hostile again and again, and counts how it was answered.

A function that does it once comes in. ``bench_torture`` starts a thread for each.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable

Once = Callable[[random.Random], str]


class Attacker:
    """A thread that calls ``once`` every ``pause_s`` until ``stop``.

    ``once`` returns how it was answered, in a word or two. What it raises ends the attacker and
    is raised by ``stop``: an attack that does not take place proves nothing.
    """

    def __init__(self, name: str, once: Once, *, pause_s: float, seed: int) -> None:
        self.name = name
        self.answers: Counter[str] = Counter()
        self._once, self._pause_s = once, pause_s
        self._chance = random.Random(seed)  # noqa: S311 - an attack, not a secret
        self._stopping = threading.Event()
        self._problem: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End after the attack that is under way."""
        self._stopping.set()
        self._thread.join()
        if self._problem is not None:
            raise self._problem

    def _run(self) -> None:
        try:
            while not self._stopping.wait(self._pause_s):
                self.answers[self._once(self._chance)] += 1
        except Exception as problem:  # noqa: BLE001 - raised again by stop
            self._problem = problem
