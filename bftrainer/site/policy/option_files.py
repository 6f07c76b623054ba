"""Options of a policy that name a file: replaced by its content when the policy file is read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bftrainer.batch.batch_system import OptionError, OptionProblem
from bftrainer.model.plugins import CONTENT, content_of

MOST_BYTES = 1_000_000


def with_files(names: tuple[str, ...], given: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return options in which files are replaced by what they hold.

    Args:
        names: of the options that name files.
        given: the options; a content that is there already stays.
        folder: of the policy file, which relative paths begin from.

    Raises:
        OptionError: BFT-3053, a file cannot be read.
    """
    found = dict(given)
    for name in names:
        value = given.get(name)
        if isinstance(value, str) and value and not value.startswith(CONTENT):
            found[name] = content_of(_read(name, folder / value))
    return found


def _read(name: str, path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        raise _unreadable(name, path, getattr(error, "strerror", None) or str(error)) from error
    if len(content) > MOST_BYTES:
        raise _unreadable(name, path, f"it has more than {MOST_BYTES} bytes")
    return content


def _unreadable(name: str, path: Path, why: str) -> OptionError:
    cause = f"Option {name!r} names the file {path}, which cannot be read: {why}."
    problem = OptionProblem(path=(name,), cause=cause, next_step="Name a file that exists.")
    return OptionError("BFT-3053", [problem])
