"""Combines the models and optimizers that a script registers into one of each.

Called by ``Run``, so that all other modules handle one model and one optimizer.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch

from bftrainer.elastic.errors import ElasticError


class Optimizers:
    """Several optimizers that update together, with the interface that a run needs."""

    def __init__(self, parts: Sequence[torch.optim.Optimizer]) -> None:
        self.parts = tuple(parts)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The parameter groups of all optimizers."""
        return [group for part in self.parts for group in part.param_groups]

    def step(self) -> None:
        """Step all optimizers."""
        for part in self.parts:
            part.step()

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all."""
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the states.

        Raises:
            ValueError: they are those of other optimizers.
        """
        states = state.get("parts", ())
        if len(states) != len(self.parts):
            raise ValueError(f"{len(states)} optimizers were saved, {len(self.parts)} are here")
        for part, own in zip(self.parts, states, strict=True):
            part.load_state_dict(own)


def parts_of(optimizer: Any) -> tuple[Any, ...]:
    """Return the single optimizers of a registered one."""
    return optimizer.parts if isinstance(optimizer, Optimizers) else (optimizer,)


def one_model(models: Any) -> torch.nn.Module:
    """Return the registered model, or one that holds all of them."""
    given = models if isinstance(models, list | tuple) else [models]
    for model in given:
        if not isinstance(model, torch.nn.Module):
            raise ElasticError(
                "BFT-1401",
                f"The model is a {type(model).__name__}, not a torch.nn.Module.",
                "Give Run the model, or a list of models that train together.",
            )
    return given[0] if len(given) == 1 else torch.nn.ModuleList(given)


def one_optimizer(optimizers: Any) -> Any:
    """Return the registered optimizer, or one that steps with all of them."""
    given = optimizers if isinstance(optimizers, list | tuple) else [optimizers]
    for one in given:
        if not all(hasattr(one, name) for name in ("param_groups", "step", "state_dict")):
            raise ElasticError(
                "BFT-1401",
                f"The optimizer is a {type(one).__name__}, not one of torch.optim.",
                "Give Run the optimizer, or a list of optimizers that step together.",
            )
        closure = inspect.signature(one.step).parameters.get("closure")
        if closure is not None and closure.default is closure.empty:
            raise ElasticError(
                "BFT-1401",
                f"The optimizer {type(one).__name__} needs a closure, which runs the model again.",
                "Use an optimizer whose step() needs none.",
            )
    if not given:
        raise ElasticError("BFT-1401", "The list of optimizers is empty.", "Give Run at least one.")
    return given[0] if len(given) == 1 else Optimizers(given)
