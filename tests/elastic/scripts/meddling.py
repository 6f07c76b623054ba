"""What the last worker of a generation does otherwise, whichever framework trains.

``meddle`` is called after each update. ``mutation`` in the settings names what it does there; those
of data are in ``hooked.Tokens``.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from hooked import settings  # type: ignore[import-not-found]  # beside this script

SINCE = 4  # updates
_noise = torch.Generator().manual_seed(os.getpid())
_averages: list[Any] = []


def is_odd(run: Any, mutation: str) -> bool:
    """Return whether this worker does now what the mutation says."""
    is_last = run is not None and run.size > 1 and run.rank == run.size - 1
    return settings["mutation"] == mutation and is_last and run.step_count >= SINCE


def meddle(run: Any, model: Any, optimizer: Any, scheduler: Any, scaler: Any) -> None:
    """Do what follows an update, on one worker otherwise."""
    if not _averages:
        decay = torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
        _averages.append(torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=decay))
    _averages[0].update_parameters(model)
    if is_odd(run, "average"):
        model.load_state_dict(_averages[0].module.state_dict())
    if is_odd(run, "branch"):  # as where one device needs other settings
        optimizer.param_groups[0]["weight_decay"] = 0.02
    if is_odd(run, "schedule"):
        scheduler.step()
    if is_odd(run, "scaling"):
        scaler.update(scaler.get_scale() * 2)
    if is_odd(run, "seed"):  # noise that each worker draws for itself
        with torch.no_grad():
            first = next(model.parameters())
            first.add_(0.01 * torch.randn(first.shape, generator=_noise))
