"""The events of a study: a line for people, an object in ``events.jsonl`` for plots.

Nothing depends on that file. After a crash an event may be missing or be there twice.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Events:
    """Says events and appends them to the study's file."""

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        self._path, self.say = path, say
        self._is_told = False  # that the file cannot be written

    def happened(self, event: str, line: str = "", **more: Any) -> None:
        """Tell one event; ``line`` is for people, "" if they need not know."""
        if line:
            self.say(line)
        said = {"at_s": round(time.time(), 3), "event": event, **more}
        try:
            with self._path.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(said) + "\n")
        except OSError as problem:
            self.unwritten(self._path, problem)

    def unwritten(self, path: Path, problem: OSError) -> None:
        """Say once that a file on which nothing depends cannot be written."""
        if not self._is_told:
            self.say(f"{path} cannot be written, the study goes on: {problem.strerror}")
        self._is_told = True


def read_events(path: Path) -> list[dict[str, Any]]:
    """Return the events in order; a line that a crash has cut is left out."""
    found: list[dict[str, Any]] = []
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return found
    for line in lines:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found
