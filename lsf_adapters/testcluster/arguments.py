"""Reads the arguments of the commands that show and control, in both dialects.

bsub has its own reader (``options``). An argument that a command does not know is answered with
the command's name and the letter, status 255, as recorded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

_ID = re.compile(r"([0-9]+)(?:\[([0-9,:%-]+)\])?")


class BadArgumentError(Exception):
    """Raised where a command refuses; its text is the command's."""

    def __init__(self, text: str, *, status: int = 255) -> None:
        super().__init__(text)
        self.text = text
        self.status = status


@dataclass(slots=True, kw_only=True)
class Arguments:
    """Flags, options with values, and the words that are neither."""

    flags: set[str] = field(default_factory=set)
    values: dict[str, str] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)

    def has(self, name: str) -> bool:
        """Return whether a flag or option was given."""
        return name in self.flags or name in self.values


def read(
    argv: list[str], *, flags: Iterable[str], valued: Iterable[str], usage: str = ""
) -> Arguments:
    """Read a command line; single letters may be written together.

    Raises:
        BadArgumentError: an option that is not known, or lacks its value.
    """
    arguments = Arguments()
    flags, valued = set(flags), set(valued)
    words = argv[1:]
    while words:
        word = words.pop(0)
        name = word.removeprefix("-")
        if not word.startswith("-") or word == "-":
            arguments.words.append(word)
        elif name in flags:
            arguments.flags.add(name)
        elif name in valued:
            if not words:
                raise BadArgumentError(
                    f"{argv[0]}: option requires an argument -- '{name}'\n{usage}"
                )
            arguments.values[name] = words.pop(0)
        elif len(name) > 1 and flags.issuperset(name):
            arguments.flags.update(name)
        else:
            wrong = next((letter for letter in name if letter not in flags), name[:1])
            raise BadArgumentError(f"{argv[0]}: invalid option -- '{wrong}'\n{usage}")
    return arguments


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """A job id as a command was given it."""

    text: str
    id: int
    indices: frozenset[int] = frozenset()  # empty: the whole array


def job_spec(text: str) -> JobSpec:
    """Read "7", "7[2]" or "7[1-3,5]"; raises ``BadArgumentError``: it is not a job id."""
    match = _ID.fullmatch(text)
    if match is None:
        raise BadArgumentError(f"{text}: Illegal job ID.")
    indices: set[int] = set()
    for part in (match[2] or "").split(","):
        if part:
            first, _, last = part.partition("-")
            indices.update(range(int(first), int(last or first) + 1))
    return JobSpec(text=text, id=int(match[1]), indices=frozenset(indices))
