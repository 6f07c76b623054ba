"""Loads plug-ins from the entry points of installed packages.

Batch systems, policies and runtimes are one file and one entry-point line each, imported on
first use.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any

from bftrainer.model.errors import ExitCode, UsageError

CONTENT = "base64:"  # begins an option that holds the content of a file


def plugin_names(group: str) -> list[str]:
    """Names of all installed plug-ins of a group, sorted."""
    return sorted({entry.name for entry in entry_points(group=group)})


def distributions(group: str) -> Mapping[str, str]:
    """Return the installed distribution that declares each plug-in of a group; "": not known."""
    return {
        entry.name: entry.dist.name if entry.dist is not None else ""
        for entry in entry_points(group=group)
    }


def load_plugin(group: str, name: str, *, what: str, code: str, listed_by: str = "") -> Any:
    """Return the object declared under ``name``.

    Args:
        group: entry-point group, such as ``bftrainer.policies``.
        name: of the plug-in.
        what: its kind for the message, such as "policy".
        code: of the error if there is no such plug-in.
        listed_by: the command that says what each of them does; "": there is none.

    Raises:
        UsageError: ``code``, no installed package declares that name, or what it declares cannot
            be imported.
    """
    for entry in entry_points(group=group, name=name):
        try:
            return entry.load()
        except Exception as problem:
            raise UsageError(
                code,
                f"The {what} {name!r} is declared as {entry.value}, which cannot be loaded "
                f"({type(problem).__name__}: {problem}).",
                "Correct the module or its line in setup.cfg, and install its package again (in a "
                "clone: pip install -e .): the names are those of the last installation.",
                exit_code=ExitCode.VALIDATION_FAILED,
            ) from problem
    hint = f" '{listed_by}' says what each does." if listed_by else ""
    raise UsageError(
        code,
        f"There is no {what} called {name!r}.",
        f"Use one of: {', '.join(plugin_names(group)) or 'none installed'}.{hint}",
        exit_code=ExitCode.VALIDATION_FAILED,
    )


def content_of(data: bytes) -> str:
    """Return the content of a file as an option holds it."""
    return CONTENT + base64.b64encode(data).decode()
