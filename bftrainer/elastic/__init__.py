"""The interface of a training script: an elastic training loop around ordinary PyTorch.

A script gives ``Run`` its model, optimizer and loader, iterates over ``run.epochs()`` and
``run.batches()``, and updates with ``run.step()``. Workers join and leave between two updates.
Run by hand, the same script is one worker. Importing this package is cheap: torch is imported
with ``Run``.

Its modules are in rooms, whose order pyproject.toml has. At the top is what scripts import, and
what is started by path or named by a template that went on through an upgrade in place: these
names stay.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from bftrainer.ground.errors import ElasticError

if TYPE_CHECKING:
    from bftrainer.elastic.data.loader import PerSample, Sharded
    from bftrainer.elastic.network.shards import node_mesh
    from bftrainer.elastic.process.generations import GenerationInfo
    from bftrainer.elastic.process.reports import params, report
    from bftrainer.elastic.run import Run
    from bftrainer.elastic.script.batch import GlobalBatch, LogicalWorkers, PerWorkerBatch, Terms
    from bftrainer.elastic.value import Value

__all__ = [
    "ElasticError",
    "GenerationInfo",
    "GlobalBatch",
    "LogicalWorkers",
    "PerSample",
    "PerWorkerBatch",
    "Run",
    "Sharded",
    "Terms",
    "Value",
    "node_mesh",
    "params",
    "report",
]


_HOMES = {
    "GenerationInfo": "process.generations",
    "GlobalBatch": "script.batch",
    "LogicalWorkers": "script.batch",
    "PerSample": "data.loader",
    "PerWorkerBatch": "script.batch",
    "Run": "run",
    "Sharded": "data.loader",
    "Terms": "script.batch",
    "Value": "value",
    "node_mesh": "network.shards",
    "params": "process.reports",
    "report": "process.reports",
}


def __getattr__(name: str) -> Any:
    """Import names that need torch on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
