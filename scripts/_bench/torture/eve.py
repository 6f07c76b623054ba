"""Eve on one host: told to attack, to burn as much processor time, or to rest."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from _bench.waiting import BenchError


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What her processes have to know."""

    victim: int  # whose ports are attacked
    trainer: str  # id of the victim's
    socket: str  # of the daemon
    n_nodes: int
    addresses: dict[str, str]  # host -> address; the first host is the daemon's
    host: str = ""
    only: tuple[str, ...] = ()

    def on(self, host: str, only: Sequence[str]) -> dict[str, Any]:
        """As JSON, for one host; ``only``: names of attacks, () for all."""
        return asdict(replace(self, host=host, only=tuple(only)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What one attack, or the burning in its place, did in a slice of time."""

    cpu_s: float  # of its processes that have ended, children included
    answers: dict[str, int] = field(default_factory=dict)  # how it was answered -> times


class Eve:
    """Her process on a host (``on_host``); a context manager that ends it."""

    def __init__(self, host: str, argv: Sequence[str], log: Path) -> None:
        self.host, self._log = host, log
        with log.open("wb") as stderr:
            self._child = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._child.communicate()

    def tell(self, word: str) -> None:
        """Let her begin: attack, burn, rest, or one of the steps of her preparation."""
        if self._child.stdin is not None:
            self._child.stdin.write(f"{word}\n".encode())
            self._child.stdin.flush()

    def done(self) -> dict[str, Ended]:
        """Wait until she has done as she was told; for rest, what each attack did.

        Raises:
            BenchError: she could not: an attack that does not take place proves nothing.
        """
        line = self._child.stdout.readline() if self._child.stdout is not None else b""
        answer: dict[str, Any] = json.loads(line or "{}")
        if not line or "problem" in answer:
            why = answer.get("problem") or self._log.read_text()[-2000:]
            raise BenchError(f"eve on {self.host}: {why}")
        return {name: Ended(**ended) for name, ended in answer.items()}
