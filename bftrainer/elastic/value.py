"""One value that a training keeps, such as its best accuracy or a counter.

Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Value:
    """An object for ``extra`` that holds one value.

    It may be a number, a string, a tensor, or lists and dicts of them. Set ``value`` anew where it
    changes, on every worker alike.
    """

    def __init__(self, value: Any) -> None:
        """Begin with ``value``; where the training goes on from a state, that is restored."""
        self.value = value

    def __repr__(self) -> str:
        """Return it as it is made."""
        return f"Value({self.value!r})"

    def state_dict(self) -> dict[str, Any]:
        """Return what is kept."""
        return {"value": self.value}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore it."""
        self.value = state["value"]
