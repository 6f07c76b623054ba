"""Copies the state at a step boundary into reused memory.

A thread writes the copy while the training goes on. Used by ``writer``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from bftrainer.elastic import parentage
from bftrainer.elastic.state import Counters, State


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSnapshot:
    """Header and tensors of a checkpoint."""

    header: dict[str, Any]
    tensors: list[torch.Tensor]


class Snapshots:
    """Takes snapshots; each overwrites the tensors of the previous one."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._memory: list[torch.Tensor] = []
        self._is_prepared = False  # whether memory for the next one was prepared

    def collect(self, counters: Counters) -> StateSnapshot:
        """Return the state itself, not copied: valid until the next step."""
        structure, rest = self._state.encode_rest(counters)
        header = {
            "layout": self._state.layout(),
            "counters": counters.as_dict(),
            "structure": structure,
            **parentage.mark(),
        }
        return StateSnapshot(header=header, tensors=[*self._state.model_tensors(), *rest])

    def preparation(self, counters: Counters) -> Callable[[], None] | None:
        """Return a function that allocates the snapshot's memory, to be run in a thread.

        None if memory of the right shape exists, or was prepared once and the state changed
        its shape since. Getting memory from the kernel takes longer than copying.
        """
        now = self.collect(counters)
        if self._is_prepared or _kinds(self._memory) == _kinds(now.tensors):
            return None
        self._is_prepared = True
        return partial(self._make_memory, now)

    def _make_memory(self, snapshot: StateSnapshot) -> None:
        """Allocate; reads only shapes, as the training may be changing the contents."""
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


def _kinds(tensors: list[torch.Tensor]) -> list[tuple[torch.Size, torch.dtype]]:
    return [(t.shape, t.dtype) for t in tensors]
