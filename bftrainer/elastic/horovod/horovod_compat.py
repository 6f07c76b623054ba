"""All that is used of ``hvd.elastic.State`` and that Horovod does not promise to keep.

Horovod 0.28 (``horovod/common/elastic.py``, ``horovod/torch/elastic/state.py``) has no public way
to a state's values. Without them nothing would be saved. Used by ``session`` and ``own_rates``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SAVED = "_saved"  # prefix of the committed values in handlers


def handlers_of(state: Any) -> Mapping[str, Any]:
    """Return the handlers of a state's models, optimizers and samplers, by name."""
    handlers: Mapping[str, Any] = getattr(state, "_handlers", {})
    return handlers


def objects_of(state: Any) -> Mapping[str, Any]:
    """Return the other values of a state as they were committed, by name."""
    objects: Mapping[str, Any] = getattr(state, "_saved_state", {})
    return objects


def set_objects(state: Any, objects: dict[str, Any]) -> None:
    """Set these committed values."""
    state._saved_state = objects  # noqa: SLF001


def share(state: Any, value: Any) -> Any:
    """Return rank 0's value, on all ranks."""
    return state._bcast_object(value)  # noqa: SLF001
