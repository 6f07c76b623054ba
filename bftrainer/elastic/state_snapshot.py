"""The state at a step boundary, copied into memory that is used again.

A run's ``State`` comes in; a header and copied tensors go out, for a thread to write
or send while the training goes on. Used by ``writer`` and ``replica_sender``, each with memory
of its own: a slow disk must not delay a copy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from bftrainer.elastic.state import Counters, State


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSnapshot:
    """What a checkpoint is made of."""

    header: dict[str, Any]
    tensors: list[torch.Tensor]

    @property
    def size_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(t.numel() * t.element_size() for t in self.tensors)


class Snapshots:
    """Takes one snapshot after the other; the next one overwrites the last one's tensors."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._memory: list[torch.Tensor] = []
        self._is_prepared = False  # tried to, for the next one

    def collect(self, counters: Counters) -> StateSnapshot:
        """Return the state itself, not copied: to be used before the next step."""
        structure, rest = self._state.encode_rest(counters)
        header = {
            "layout": self._state.layout(),
            "counters": counters.as_dict(),
            "structure": structure,
        }
        return StateSnapshot(header=header, tensors=[*self._state.model_tensors(), *rest])

    def preparation(self, counters: Counters) -> Callable[[], None] | None:
        """Return what makes memory for a snapshot, to be called in a thread before one is taken.

        None where there is nothing to make, or where it was tried: a state that changes
        its shape is copied anyhow. Asking the kernel for memory takes longer than copying.
        """
        now = self.collect(counters)
        if self._is_prepared or _kinds(self._memory) == _kinds(now.tensors):
            return None
        self._is_prepared = True
        return partial(self._make_memory, now)

    def _make_memory(self, snapshot: StateSnapshot) -> None:
        """Its contents are not read: the training may be changing them."""
        fresh = [torch.empty(t.shape, dtype=t.dtype) for t in snapshot.tensors]
        for tensor in fresh:
            tensor.zero_()
        self._memory = fresh

    def take(self, counters: Counters) -> StateSnapshot:
        """Return a copy of the state as it is now."""
        now = self.collect(counters)
        self._is_prepared = False
        if _kinds(self._memory) == _kinds(now.tensors):
            for copy, tensor in zip(self._memory, now.tensors, strict=True):
                copy.copy_(tensor)
        else:
            self._memory = [t.detach().cpu().clone() for t in now.tensors]
        return StateSnapshot(header=now.header, tensors=self._memory)

    def forget(self) -> None:
        """Give the memory back; a thread that still reads it keeps what it has."""
        self._memory = []


def _kinds(tensors: list[torch.Tensor]) -> list[tuple[torch.Size, torch.dtype]]:
    return [(t.shape, t.dtype) for t in tensors]
