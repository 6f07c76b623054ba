"""A Python interpreter that records which lines of the product it executes, and when.

``wrapper`` writes a program to use in place of ``sys.executable``; processes started with it, and
the ones that they fork, append ``seconds file line`` to a file each, seconds of the monotonic
clock. ``read`` gives the lines by file of a span of time. Lines count inside functions only:
importing a module is no part of a walk. The same line is recorded again after 20 ms.
"""

from __future__ import annotations

import os
import runpy
import shlex
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from types import FrameType
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final = ("bftrainer", "milp", "trainers", "slurm_plugins", "lsf_adapters")
AGAIN_S: Final = 0.02
FLUSH_S: Final = 0.1
IS_FUNCTION: Final = 0x1  # CO_OPTIMIZED: not the body of a module or class
_PREFIXES: Final = tuple(f"{ROOT}/{package}/" for package in PACKAGES)
_WITH_VALUE: Final = ("-X", "-W")


class Recorder:
    """Records the lines that this process executes."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._names: dict[str, str] = {}  # file -> its path below the root; "": no product
        self._last: dict[tuple[str, int], float] = {}
        self._lines: list[str] = []
        self._flushed_s = time.monotonic()
        os.register_at_fork(after_in_child=self._lines.clear)

    def start(self) -> None:
        """Record from now on, in all threads."""
        threading.settrace(self._called)
        sys.settrace(self._called)

    def stop(self) -> None:
        """Record no more in this thread."""
        sys.settrace(None)
        threading.settrace(None)
        self._flush(time.monotonic())

    def _called(self, frame: FrameType, _event: str, _arg: object) -> Any:
        code = frame.f_code
        name = self._names.get(code.co_filename)
        if name is None:
            path = os.path.realpath(code.co_filename)
            name = path.removeprefix(f"{ROOT}/") if path.startswith(_PREFIXES) else ""
            self._names[code.co_filename] = name
        now_s = time.monotonic()
        if self._lines and now_s - self._flushed_s > FLUSH_S:
            self._flush(now_s)
        if not name or not code.co_flags & IS_FUNCTION:
            return None

        def executed(frame: FrameType, event: str, _arg: object) -> Any:
            if event == "line":
                self._add(name, frame.f_lineno)
            return executed

        return executed

    def _add(self, name: str, line: int) -> None:
        now_s = time.monotonic()
        if now_s - self._last.get((name, line), 0.0) > AGAIN_S:
            self._last[name, line] = now_s
            self._lines.append(f"{now_s:.6f} {name} {line}\n")

    def _flush(self, now_s: float) -> None:
        lines, self._lines[:] = "".join(self._lines), []
        self._flushed_s = now_s
        with (self._directory / f"{os.getpid()}.lines").open("a") as file:
            file.write(lines)


def wrapper(directory: Path) -> str:
    """Write the program into a directory, where its records go, too; returns its path."""
    path = directory / "python"
    words = shlex.join((sys.executable, str(Path(__file__).resolve()), str(directory)))
    path.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    path.chmod(0o755)
    return str(path)


def read(directory: Path, began_s: float, ended_s: float) -> dict[str, set[int]]:
    """Return the lines executed in a span of the monotonic clock, by file."""
    found: dict[str, set[int]] = defaultdict(set)
    for path in directory.glob("*.lines"):
        for text in path.read_text().splitlines():
            at_s, name, line = text.split(" ")
            if began_s <= float(at_s) <= ended_s:
                found[name].add(int(line))
    return dict(found)


def first_s(directory: Path, package: str, after_s: float) -> float:
    """Return when a line of a package was executed first after an instant."""
    times = (
        float(text.split(" ", 1)[0])
        for path in directory.glob("*.lines")
        for text in path.read_text().splitlines()
        if f" {package}/" in text
    )
    return min(at_s for at_s in times if at_s > after_s)


def main(directory: str, *words: str) -> None:
    """Run what the command line of an interpreter names: ``-m MODULE``, ``-c CODE`` or a file."""
    sys.executable = str(Path(directory) / "python")
    rest = list(words)
    is_isolated = False
    while rest and rest[0].startswith("-") and rest[0] not in {"-m", "-c"}:
        flag = rest.pop(0)
        is_isolated |= flag in {"-I", "-P"}
        if flag in _WITH_VALUE:
            rest.pop(0)
    sys.path.pop(0)  # the directory of this file
    Recorder(Path(directory)).start()
    kind, *sys.argv = rest if rest[0] in {"-m", "-c"} else ["", *rest]
    if kind == "-m":
        sys.path[:0] = [] if is_isolated else [""]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        code, sys.argv[0] = sys.argv[0], "-c"
        exec(code, {"__name__": "__main__"})  # noqa: S102 - as the interpreter does
    else:
        sys.path[:0] = [str(Path(sys.argv[0]).resolve().parent)]
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
