"""Unwraps models that a script has wrapped for data-parallel training.

The run trains the plain model. The wrapper, which the script still calls, is changed to pass
calls through, so that gradients are averaged only once. Refused if the script has built a
process group of several members, and where the model is sharded. Called by ``Run``.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.nn.parallel import DataParallel, DistributedDataParallel

from bftrainer.elastic.errors import ElasticError, sharded

log = logging.getLogger("bftrainer.elastic")


def unwrap(
    model: torch.nn.Module, no_sync: Callable[[], AbstractContextManager[None]]
) -> torch.nn.Module:
    """Return the plain model; ``no_sync`` replaces the wrapper's own."""
    if how := _sharding(model):
        raise sharded(how)
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
        # Bypasses the wrapper, whose hooks are armed only in its own forward. A bound method,
        # because a module would be registered as a child.
        _replace(model, "forward", model.module.__call__)
    _replace(model, "no_sync", no_sync)
    log.warning(
        "the model is wrapped in DistributedDataParallel: bftrainer trains the inner model"
        " and averages its gradients; the wrapper only forwards calls."
    )
    plain: torch.nn.Module = model.module
    return plain


def _sharding(model: torch.nn.Module) -> str:
    """Return how the model is sharded; "": it is not, or by modules that are not imported."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    tensor = sys.modules.get("torch.distributed.tensor")
    if fsdp is not None:
        for module in model.modules():
            if isinstance(module, fsdp.FullyShardedDataParallel):
                return "by FSDP: FullyShardedDataParallel"
            if isinstance(module, getattr(fsdp, "FSDPModule", ())):  # from torch 2.6 on
                return "by FSDP: fully_shard"
    if any(isinstance(p, getattr(tensor, "DTensor", ())) for p in model.parameters()):
        return "its parameters are DTensors"
    return ""


def _keep_moving_inputs(model: DistributedDataParallel) -> None:
    """Disable the wrapper's hooks but keep its forward, which moves inputs to its device."""
    if model.static_graph:
        raise ElasticError(
            "BFT-1401",
            "The model is wrapped in DistributedDataParallel with static_graph=True.",
            "Give Run the plain model, or remove static_graph.",
        )
    # What its own no_sync() sets temporarily.
    _replace(model, "require_backward_grad_sync", False)  # noqa: FBT003 - an attribute's value
    _replace(model, "require_forward_param_sync", False)  # noqa: FBT003


def _replace(model: DistributedDataParallel, name: str, value: Any) -> None:
    setattr(model, name, value)
