"""Blocking actions that can be abandoned: a thread runs them, as back ends have no interrupt.

The result is the action's outcome, or ``Broken`` if a newer generation came first. Used by
``group``, ``forming`` and ``mpi``. Standard library only.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from bftrainer.elastic.control import Control

T = TypeVar("T")

GROUP_TIMEOUT_S = 30.0  # last resort: the control plane notices long before
LEFT_BEHIND = "abandoned for a newer generation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """A group that did not form, or a collective that did not succeed."""

    reason: str


class AbandonableCall(Generic[T]):
    """A blocking action, started at once in its own thread."""

    def __init__(self, control: Control, action: Callable[[], T]) -> None:
        self._control = control
        self._action = action
        self._lock = threading.Lock()
        self._outcome: list[T | Broken | Exception] = []
        self._discard: Callable[[T], object] | None = None
        threading.Thread(target=self._run, name="bft-side", daemon=True).start()

    def _run(self) -> None:
        result: T | Broken | Exception
        try:
            result = self._action()
        except RuntimeError as problem:
            result = Broken(reason=str(problem).partition("\n")[0][:300])
        except Exception as problem:  # noqa: BLE001 - raised again in wait, by the caller
            result = problem
        with self._lock:
            self._outcome.append(result)
            discard = self._discard
        if discard is None:
            self._control.notify()
        elif not isinstance(result, Broken | Exception):
            discard(result)

    @property
    def is_done(self) -> bool:
        """Whether the action has ended."""
        return bool(self._outcome)

    def wait(
        self, abandoned: Callable[[], bool], timeout_s: float = 2 * GROUP_TIMEOUT_S
    ) -> T | Broken:
        """Return the outcome; stop waiting as soon as ``abandoned`` is true."""
        self._control.wait_until(lambda: bool(self._outcome) or abandoned(), timeout_s)
        if not self._outcome:
            return Broken(reason=LEFT_BEHIND)
        if isinstance(self._outcome[0], Exception):
            raise self._outcome[0]
        return self._outcome[0]

    def forgo(self, discard: Callable[[T], object]) -> None:
        """Discard the outcome, now or when the action ends."""
        with self._lock:
            self._discard = discard
            outcome = list(self._outcome)
        if outcome and not isinstance(outcome[0], Broken | Exception):
            discard(outcome[0])


def in_side_thread(
    control: Control, abandoned: Callable[[], bool], action: Callable[[], T]
) -> T | Broken:
    """Run a blocking action; stop waiting as soon as ``abandoned`` is true."""
    return AbandonableCall(control, action).wait(abandoned)
