"""Results written between two marks of a document: ``<!-- numbers: NAME -->`` and its end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

END: Final = "<!-- numbers: end -->"


def has_marks(path: Path, name: str) -> bool:
    """Whether the document can take these results: ask before hours of work."""
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    return END in text.partition(_begin(name))[2]


def replace_between(path: Path, name: str, lines: Sequence[str]) -> None:
    """Replace what stands between the marks."""
    before, _, rest = path.read_text(encoding="utf-8").partition(_begin(name))
    _, _, after = rest.partition(END)
    text = "\n".join([_begin(name), "", *lines, "", END])
    path.write_text(before + text + after, encoding="utf-8")


def _begin(name: str) -> str:
    return f"<!-- numbers: {name} -->"
