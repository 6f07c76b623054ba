"""What a door is: a parser, the errors it may raise, and inputs to try; and what it may cost."""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis.strategies import SearchStrategy

from tests.fuzz import doors

MOST_S = 0.1  # processor time of one call
MOST_BYTES = 50 << 20  # growth of the process during one call
CORPUS = Path(__file__).parent / "corpus"


@dataclass(frozen=True, slots=True, repr=False)
class Drawn:
    """An input, a megabyte of it perhaps."""

    value: Any

    def __repr__(self) -> str:
        text = repr(self.value)
        if len(text) <= 400:
            return text
        return f"{text[:250]} ... {text[-100:]} ({len(text)} characters)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """One parser or decoder.

    ``call`` takes what ``inputs`` draws. The corpus is of bytes; ``from_bytes`` turns a file of
    it into an input.
    """

    name: str  # also the folder of its corpus
    call: Callable[[Any], object]
    refuses_with: tuple[type[Exception], ...] = ()
    inputs: SearchStrategy[Any]
    from_bytes: Callable[[bytes], Any] = lambda raw: raw.decode("utf-8", "surrogateescape")

    def corpus(self) -> Iterator[Drawn]:
        """Yield the inputs that once did harm, oldest name first."""
        folder = CORPUS / self.name
        for file in sorted(folder.iterdir()) if folder.is_dir() else ():
            yield Drawn(self.from_bytes(file.read_bytes()))

    def drawn(self) -> SearchStrategy[Drawn]:
        """Draw inputs whose report fits a screen."""
        return self.inputs.map(Drawn)


def all_doors() -> tuple[Door, ...]:
    """Return the doors of all files in ``doors``."""
    found: list[Door] = []
    for module in pkgutil.iter_modules(doors.__path__):
        found.extend(importlib.import_module(f"{doors.__name__}.{module.name}").DOORS)
    return tuple(sorted(found, key=lambda door: door.name))


def knock(door: Door, given: Drawn) -> None:
    """Call once; fail on an error of another type, on time and on memory.

    Processor time, not the clock's: the machine may have other work, which slows processor time,
    too. Over the limit it is measured again: the least of five counts.
    """
    for is_last in (False, False, False, False, True):
        _forget_peak()
        before_bytes, began_s = memory_bytes("VmRSS"), time.thread_time()
        with contextlib.suppress(*door.refuses_with):
            door.call(given.value)
        took_s = time.thread_time() - began_s
        grew_bytes = memory_bytes("VmHWM") - before_bytes
        if took_s <= MOST_S and grew_bytes <= MOST_BYTES:
            return
        if is_last:
            raise AssertionError(
                f"{door.name}: {took_s:.2f} s, {grew_bytes / 2**20:.0f} MB for {given}"
            )


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM := VmRSS, proc(5)


def memory_bytes(what: str = "VmRSS") -> int:
    """Return a figure of this process's memory, proc(5)."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(what + ":"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"no {what} in /proc/self/status")
