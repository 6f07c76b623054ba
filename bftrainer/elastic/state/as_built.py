"""The parts that stay as they were when the run was built: the model's parameters and buffers.

Those who join, and a trainer that starts again, build the script's model and then take the
state. A part that was put in later is in no state, and its gradients are averaged by nobody. So
that is an error at the next update, not at the next restart. Used by ``state``.
"""

from __future__ import annotations

import time
from typing import Any, Final, NamedTuple

import torch

from bftrainer.elastic.script.torch_compat import buffers_of, modules_of, parameters_of
from bftrainer.elastic.state.grouping import foreign, unfit

MOST_EACH_TIME: Final = 32  # parts of a model that is looked at before every update
SHARE: Final = 0.001  # of the time is spent on looking at a larger one

BufferKind = tuple[torch.Size, torch.dtype]


class ModelPart(NamedTuple):
    """What has a state: what it is, and by what it is told from another."""

    kind: str
    identity: Any


class AsBuilt:
    """The parts of one model and the parameters of its optimizer.

    Looks only at what is kept in dictionaries of the modules while nothing has changed: 7 us for
    twelve parameters, 2 ms for two thousand. Large models are looked at less often, so that it
    costs ``SHARE`` of the time. FSDP2 exchanges the parameters of a sharded model itself, so there
    only the modules count.
    """

    def __init__(self, model: torch.nn.Module, optimizer: Any, *, is_sharded: bool) -> None:
        self._model, self._optimizer, self._is_sharded = model, optimizer, is_sharded
        self._parameters = set(map(id, model.parameters()))
        self._next_s = 0.0
        self._optimizer_ids: list[int] = []  # of its parameters when it was last looked at
        self._named = self._parts()
        self._look_closely()

    def require(self) -> None:
        """Require that nothing was replaced, added or removed.

        Raises:
            ElasticError: BFT-1401, something was; or the optimizer has parameters of others.
        """
        if len(self._ids) > MOST_EACH_TIME and time.monotonic() < self._next_s:
            return
        began_s = time.monotonic()
        self._compare()
        ended_s = time.monotonic()
        self._next_s = ended_s + (ended_s - began_s) / SHARE

    def _compare(self) -> None:
        # A comprehension, not a loop, for speed: this runs before every update.
        ids = [id(part) for parts in self._dicts for part in parts.values()]
        if ids != self._ids or self._kinds() != self._kinds_before:
            parts = self._parts()
            if change := _change(self._named, parts):
                raise unfit(
                    f"The model was changed after Run: {change}.",
                    "Build it before Run as it stays. Layers that come in later can be in it from"
                    " the beginning, unused or without requires_grad.",
                )
            self._look_closely()  # modules without a state, which the script exchanges itself
        optimizer_ids = [id(p) for group in self._optimizer.param_groups for p in group["params"]]
        if optimizer_ids != self._optimizer_ids:
            if not self._is_sharded and not self._parameters.issuperset(optimizer_ids):
                raise foreign()
            self._optimizer_ids = optimizer_ids

    def _look_closely(self) -> None:
        modules = list(self._model.modules())
        self._dicts: list[dict[str, Any]] = list(map(modules_of, modules))
        if not self._is_sharded:
            self._dicts += map(parameters_of, modules)
        self._buffers = list(map(buffers_of, modules))
        # Kept, since an id may be given to another object when its owner is gone.
        self._contents: list[Any] = []
        for parts in self._dicts:
            self._contents.extend(parts.values())
        self._ids = list(map(id, self._contents))
        self._kinds_before = self._kinds()

    def _kinds(self) -> list[BufferKind | None]:
        # As fast as can be, too.
        return [
            None if buffer is None else (buffer.shape, buffer.dtype)
            for buffers in self._buffers
            for buffer in buffers.values()
        ]

    def _parts(self) -> dict[str, ModelPart]:
        """Return what has a state, by name."""
        model = self._model
        parts: dict[str, ModelPart] = {}
        for name, buffer in model.named_buffers():
            parts[name] = ModelPart("buffer", (buffer.shape, buffer.dtype))
        if self._is_sharded:
            for name, module in model.named_modules():
                if parameters_of(module):
                    parts[name] = ModelPart("module", module)
            return parts
        for name, p in model.named_parameters():
            parts[name] = ModelPart("parameter", p)
        return parts


def _change(before: dict[str, ModelPart], now: dict[str, ModelPart]) -> str:
    """Return what differs; empty: nothing."""
    for name, (kind, identity) in now.items():
        if name not in before:
            return f"its {kind} {name!r} is new"
        identity_before = before[name].identity
        if kind == "buffer" and identity_before != identity:
            return f"its buffer {name!r} has {_words(identity)} and had {_words(identity_before)}"
        if kind != "buffer" and identity_before is not identity:
            return f"its {kind} {name!r} is another one"
    for name, part in before.items():
        if name not in now:
            return f"its {part.kind} {name!r} is gone"
    return ""


def _words(kind: BufferKind) -> str:
    shape, dtype = kind
    return f"shape {tuple(shape)}, {str(dtype).removeprefix('torch.')}"
