"""Models that a script has wrapped for data-parallel training by itself.

The registered model comes in, the plain one goes out; the wrapper is made to pass its
calls through, because the script goes on calling it: gradients are averaged once, by
us. Refused where the script has built a process group of several members. Called by
``Run``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.nn.parallel import DataParallel, DistributedDataParallel

from bftrainer.elastic.errors import ElasticError

log = logging.getLogger("bftrainer.elastic")


def unwrap(
    model: torch.nn.Module, no_sync: Callable[[], AbstractContextManager[None]]
) -> torch.nn.Module:
    """Return the plain model; ``no_sync`` takes the place of the wrapper's own."""
    if isinstance(model, DataParallel):
        raise ElasticError(
            "BFT-1401",
            "The model is already wrapped in DataParallel.",
            "Give Run the plain model; it averages the gradients itself.",
        )
    if not isinstance(model, DistributedDataParallel):
        return model
    members = model.process_group.size()
    if members != 1:
        raise ElasticError(
            "BFT-1401",
            f"The model is wrapped in DistributedDataParallel over {members} processes.",
            "Leave out init_process_group and the wrapper, or start it with world_size=1:"
            " bftrainer starts the workers and averages the gradients itself.",
        )
    if model.device_ids:
        _keep_moving_inputs(model)
    else:
        # Past the wrapper: no hook of its process group is armed without its forward.
        # A bound method: a module would be registered as a child.
        _replace(model, "forward", model.module.__call__)
    _replace(model, "no_sync", no_sync)
    log.warning(
        "the model is wrapped in DistributedDataParallel: bftrainer trains the model inside"
        " and averages its gradients; the wrapper only passes calls on."
    )
    plain: torch.nn.Module = model.module
    return plain


def _keep_moving_inputs(model: DistributedDataParallel) -> None:
    """Leave the wrapper's forward, which moves inputs to its device, but not its hooks."""
    if model.static_graph:
        raise ElasticError(
            "BFT-1401",
            "The model is wrapped in DistributedDataParallel with static_graph=True.",
            "Give Run the plain model, or leave out static_graph.",
        )
    # What its own no_sync() sets for a while.
    _replace(model, "require_backward_grad_sync", False)  # noqa: FBT003 - an attribute's value
    _replace(model, "require_forward_param_sync", False)  # noqa: FBT003


def _replace(model: DistributedDataParallel, name: str, value: Any) -> None:
    setattr(model, name, value)
