"""How a plug-in is found: by the name an installed package declares in a group.

Batch systems, policies and runtimes are one file and one entry-point line each. A group
and a name come in, whatever the package declares there comes out, imported only now.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

from bftrainer.errors import ExitCode, UsageError


def plugin_names(group: str) -> list[str]:
    """Names of all installed plug-ins of a group, sorted."""
    return sorted({entry.name for entry in entry_points(group=group)})


def load_plugin(group: str, name: str, *, what: str, code: str) -> Any:
    """Return what is declared under ``name``.

    Args:
        group: entry-point group, such as ``bftrainer.policies``.
        name: as users choose it.
        what: for the message, such as "policy".
        code: of the error when there is none.

    Raises:
        UsageError: ``code``, no installed package declares that name.
    """
    for entry in entry_points(group=group, name=name):
        return entry.load()
    raise UsageError(
        code,
        f"There is no {what} called {name!r}.",
        f"Use one of: {', '.join(plugin_names(group)) or 'none installed'}.",
        exit_code=ExitCode.VALIDATION_FAILED,
    )
