"""What a door is: a parser, the errors it may raise, and inputs to try; and what it may cost."""

from __future__ import annotations

import contextlib
import gc
import importlib
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis.strategies import SearchStrategy

from tests.fuzz import doors
from tests.support.effort import lines_of

# Of plain Python that cost as much as one call: 0.1 s where 10,000 of them take 0.87 ms.
MOST_LINES = 1_200_000
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
    gc.freeze()  # as templates do: else calls pay for collections of all that tests import
    return tuple(sorted(found, key=lambda door: door.name))


def knock(door: Door, given: Drawn) -> None:
    """Call once; fail on an error of another type, on work and on memory."""
    grew_bytes: list[int] = []

    def call() -> None:
        _forget_peak()
        before_bytes = memory_bytes("VmRSS")
        with contextlib.suppress(*door.refuses_with):
            door.call(given.value)
        grew_bytes.append(memory_bytes("VmHWM") - before_bytes)

    lines = lines_of(call, most=MOST_LINES)
    if lines > MOST_LINES or min(grew_bytes) > MOST_BYTES:
        raise AssertionError(
            f"{door.name}: as much as {lines:.0f} lines, {min(grew_bytes) >> 20} MB for {given}"
        )


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM := VmRSS, proc(5)


def memory_bytes(what: str = "VmRSS") -> int:
    """Return a figure of this process's memory, proc(5)."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(what + ":"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"no {what} in /proc/self/status")
