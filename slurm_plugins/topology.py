"""Which switch a node is connected to: parses ``scontrol show topology``. Pure.

Called by ``snapshot`` where the site has ``TopologyPlugin=topology/tree``. Source: output of
release 22.05.
"""

from __future__ import annotations

from bftrainer.model.hostlist import ParseError, expand
from slurm_plugins.parse import values_in


def switches(text: str) -> dict[str, str]:
    """Return the switch of each node, on the lowest level (0).

    Raises:
        ParseError: it is something else.
    """
    found: dict[str, str] = {}
    for line in filter(str.strip, text.splitlines()):
        values = values_in(line)
        if not values.get("SwitchName") or not values.get("Level"):
            raise ParseError(f"not a switch: {line[:80]!r}")
        if values["Level"] == "0":
            found.update(dict.fromkeys(expand(values.get("Nodes", "")), values["SwitchName"]))
    return found
