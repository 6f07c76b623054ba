"""The pages of the documentation as they are installed, by name.

Messages name pages by their paths in the source, ``docs/howto/train-pytorch.md``. Whoever reads
them has no source, so that they are printed as the command that opens the page.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import bftrainer

_NAMED = re.compile(r"(?<![\w/.-])docs/((?:[a-z0-9-]+/)*[a-z0-9-]+)\.md\b")
_INSTALLED = "share/doc/bftrainer/"  # setup.cfg, options.data_files
# Last parts of names that mean something else as well: a verb, or several pages.
_TAKEN = frozenset({"compare", "policy", "reproduce", "studies"})
_OF_FOLDER = "README"  # the page on what is in a folder


def pages() -> Mapping[str, Path]:
    """Return the pages by their names below docs, without suffix: howto/train-pytorch."""
    source = Path(bftrainer.__file__).parents[1] / "docs"
    if source.is_dir():
        return {
            str(path.relative_to(source).with_suffix("")): path
            for path in sorted(source.rglob("*.md"))
        }
    from importlib.metadata import PackageNotFoundError, files  # noqa: PLC0415 - 30 ms

    try:
        installed = files("bftrainer") or ()
    except PackageNotFoundError:
        installed = ()
    return {
        str(file).partition(_INSTALLED)[2].removesuffix(".md"): Path(str(file.locate()))
        for file in installed
        if _INSTALLED in str(file) and file.suffix == ".md"
    }


def name_of(word: str) -> str:
    """Return the name that a word has as a page, which may be written as a path of the source."""
    return word.removeprefix("docs/").removesuffix(".md").strip("/")


def names_meant(word: str, names: Iterable[str]) -> list[str]:
    """Return the pages that a word names: by path, from docs or below it, or by the last part.

    A folder means the page on what is in it.
    """
    name = name_of(word)
    paths = list(names)
    for path in (name, f"{name}/{_OF_FOLDER}"):
        if path in paths:
            return [path]
    return [path for path in paths if path.rpartition("/")[2] == name]


def command_of(name: str) -> str:
    """Return the command that opens a page, with the shortest name that means it alone."""
    name = name.removesuffix(f"/{_OF_FOLDER}")
    last = name.rpartition("/")[2]
    return f"bftrainer help {name if last in _TAKEN else last}"


def with_commands(text: str) -> str:
    """Return a text in which pages are named by the commands that open them."""
    if "docs/" not in text:  # as most lines that are printed: the search is slower
        return text
    return _NAMED.sub(lambda match: f"'{command_of(match[1])}'", text)
