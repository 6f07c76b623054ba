"""All that is used of Accelerate and that Accelerate does not promise to keep.

Looked at in ``accelerate`` 1.10 to 1.15. Used by ``own_sharding``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NAMES = ("state.AcceleratorState._shared_state",)  # in ``accelerate``


def state_of(module: Any) -> Mapping[str, Any]:
    """Return what ``accelerate.state`` holds; the public way would make such a state.

    Without it a script that Accelerate was told to shard is refused later, by torch's own message.
    """
    shared: Mapping[str, Any] = getattr(module.AcceleratorState, "_shared_state", {})
    return shared
