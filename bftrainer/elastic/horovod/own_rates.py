"""Goes on with the script's learning rates under Horovod, as ``continuing`` does for torch.

A ``hvd.elastic.State`` keeps optimizers and schedules among its values, each perhaps in a handler
(horovod 0.28, ``horovod/torch/elastic/state.py``). The schedules stay the checkpoint's, at the
script's rates; where the optimizer's groups have no base rate of a schedule, the script's rate
counts as it is. Rank 0 does it, and hands the state on. Used by ``session``.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from bftrainer.elastic.horovod.horovod_compat import handlers_of, objects_of
from bftrainer.elastic.script.models import Optimizers
from bftrainer.elastic.state.continuing import OwnOptions, tell_changes


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredValues:
    """What a Horovod state has, as far as rates concern it."""

    optimizer: Optimizers
    extra: Mapping[str, Any]
    scheduler: None = None

    @classmethod
    def of(cls, state: Any) -> RegisteredValues:
        """Return that of a state as it is now."""
        handlers = handlers_of(state).values()
        values = dict(objects_of(state))
        for number, handler in enumerate(handlers):
            values[f"handler {number}"] = handler.value
        optimizers = [
            value for value in values.values() if isinstance(value, torch.optim.Optimizer)
        ]
        return cls(optimizer=Optimizers(optimizers), extra=values)

    def options(self) -> list[dict[str, Any]]:
        """Return the options of all groups, copied, without their parameters."""
        return list(map(_options_of, self.optimizer.param_groups))


def _options_of(group: Mapping[str, Any]) -> dict[str, Any]:
    return {name: copy.deepcopy(value) for name, value in group.items() if name != "params"}


class OwnRates:
    """The options that a script gave to the optimizers of its Horovod state."""

    def __init__(self, state: Any) -> None:
        """Keep them; call it before a checkpoint is loaded."""
        values = RegisteredValues.of(state)
        self._state = state
        self._own = OwnOptions(values, values.options())

    def put_back(self) -> str:
        """Set them again in what was loaded, commit that; say and return what has changed."""
        before = RegisteredValues.of(self._state).options()
        self._own.put_back()
        self._state.save()
        return tell_changes(before, RegisteredValues.of(self._state).options())
