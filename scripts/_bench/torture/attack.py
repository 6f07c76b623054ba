"""One attacker: does something hostile again and again, and counts how it was answered.

A function that does it once comes in; ``on_host`` starts a process for each, so that what it costs
is known.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import FrameType

LIAR = "lying agent"
EVERYWHERE = ("pairs", "ports")  # attacks on every host
ON_DAEMONS_HOST = ("sbatch", "submissions", "socket", "output", "plants", LIAR)
# Each of these alone, one after the other, for ``--floods``; what another user's requests take.
FLOODS = ("asking", "reports", "lines", "submissions", "socket", LIAR)
ONLY_FLOODS = ("asking", "reports", "lines")
NAMES = (*EVERYWHERE, *ON_DAEMONS_HOST, *ONLY_FLOODS)

Once = Callable[[random.Random], str]
PATIENCE_S = 60.0  # for the attack under way
TURN_S = 0.1  # of burning
_FORK = multiprocessing.get_context("fork")


def _no_end() -> None:
    """Nothing lasts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """``once`` is called every ``pause_s``; it returns how it was answered, in a word or two."""

    name: str
    once: Once
    pause_s: float
    end: Callable[[], None] = _no_end  # undoes what would last


class Attacker:
    """A process that attacks until ``stop``."""

    def __init__(self, attack: Attack, seed: int) -> None:
        self.name = attack.name
        self._end, theirs = _FORK.Pipe()
        self._process = _FORK.Process(target=_run, args=(attack, seed, theirs), daemon=True)
        self._process.start()
        theirs.close()
        self._end.recv()  # it can be ended

    def stop(self) -> tuple[float, Counter[str]]:
        """End after the attack under way; its processor time and answers.

        Raises:
            RuntimeError: it had ended before, for the reason that is named.
        """
        self._process.terminate()
        problem: str | None = "it does not end"
        if self._end.poll(PATIENCE_S):
            problem, cpu_s, answers = self._end.recv()
        self._process.kill()
        self._process.join()
        if problem is not None:
            raise RuntimeError(f"{self.name}: {problem}")
        return cpu_s, answers


def _run(attack: Attack, seed: int, end: Connection) -> None:
    is_over = False

    def stop(_signal: int, _frame: FrameType | None) -> None:
        nonlocal is_over
        is_over = True

    signal.signal(signal.SIGTERM, stop)
    end.send(None)
    began, answers, problem = os.times(), Counter[str](), None
    chance = random.Random(seed)  # noqa: S311 - an attack, not a secret
    try:
        while not (is_over and answers):  # at least once
            answers[attack.once(chance)] += 1
            time.sleep(attack.pause_s)
        attack.end()
    except Exception:  # noqa: BLE001 - raised again by stop
        problem = traceback.format_exc()
    cpu_s = sum(os.times()[:4]) - sum(began[:4])  # with those of children that were waited for
    end.send((problem, cpu_s, answers))


class Burner:
    """Uses a share of one processor and harms nobody."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._began_s = time.monotonic()

    def burn(self, _chance: random.Random) -> str:
        """Use what is due, but not all that a busy machine has kept back, and wait for a turn."""
        due_s = self._share * (time.monotonic() - self._began_s)
        most_s = time.process_time() + 2.0 * TURN_S
        while time.process_time() < min(due_s, most_s):
            pass
        time.sleep(TURN_S)
        return "turn"
