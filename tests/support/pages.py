"""The commands of a documentation page, with the output that the page shows under them.

In blocks marked ``sh`` a line that begins with ``$`` is a command; lines up to the next one are
shown output; after the line ``<!-- not run: REASON -->`` the block is for readers alone. Blocks
marked ``python`` or ``yaml`` are files, named by their first line. A paragraph's bold first
sentence that begins with "Now" is an event: whoever runs the page makes it happen.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_FENCED = re.compile(
    r"(?:^<!-- not run: (?P<why>[^\n]+) -->\n)?"
    r"^```(?P<kind>\w*)\n(?P<body>.*?)^```$|^\*\*(?P<event>Now .*?)\*\*",
    re.MULTILINE | re.DOTALL,
)
FILES = ("python", "yaml")
# Counts of nodes and workers are claims of the page; other figures are examples.
_CLAIM = r"running +\d+ +\d+ +1:3|\d+ workers|\d+ nodes?\b|\d+ taken|max_nodes = \d+|t\d+\b"
_PART = re.compile(rf"(?P<claim>{_CLAIM})|(?P<number>\d[\d.hms]*)|(?P<space>\s+)|(?P<other>.)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command, or an event that is to happen then."""

    text: str
    shown: tuple[str, ...] = ()  # lines that the page shows as its output
    is_event: bool = False
    not_run: str = ""  # why it is for readers alone

    def is_seen_in(self, output: str) -> bool:
        """Whether these lines are in the output, in their order; figures may differ."""
        lines = iter(output.splitlines())
        return all(
            any(re.fullmatch(pattern, line.rstrip()) for line in lines)
            for pattern in map(_pattern, self.shown)
        )


def files(page: str) -> dict[str, str]:
    """Return the page's files by name."""
    bodies = [found["body"] for found in _FENCED.finditer(page) if found["kind"] in FILES]
    return {body.partition("\n")[0].removeprefix("# "): body for body in bodies}


def unmarked(page: str) -> tuple[str, ...]:
    """Return the lines of blocks that are neither marked nor said to be not run."""
    bodies = [
        found["body"]
        for found in _FENCED.finditer(page)
        if not found["event"] and not found["kind"] and not found["why"]
    ]
    return tuple(line for body in bodies for line in body.splitlines())


def commands(page: str) -> tuple[Command, ...]:
    """Return commands and events in the page's order."""
    found_all: list[Command] = []
    for found in _FENCED.finditer(page):
        if found["event"]:
            found_all.append(Command(text=found["event"], is_event=True))
        elif found["kind"] == "sh":
            for part in re.split(r"^\$ ", found["body"], flags=re.MULTILINE)[1:]:
                text, *shown = part.splitlines()
                why = found["why"] or ""
                found_all.append(Command(text=text, shown=tuple(shown), not_run=why))
    return tuple(found_all)


def _pattern(line: str) -> str:
    def part(found: re.Match[str]) -> str:
        if found["number"]:
            return r"\d[\d.hms]*"
        if found["space"]:
            return r"\s+"
        return r"\s+".join(map(re.escape, found[0].split()))

    return _PART.sub(part, line)
