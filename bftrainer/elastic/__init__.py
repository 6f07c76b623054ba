"""The interface of a training script: an elastic training loop around ordinary PyTorch.

A script gives ``Run`` its model, optimizer and loader, iterates over ``run.epochs()`` and
``run.batches()``, and updates with ``run.step()``. Workers join and leave between two updates.
Run by hand, the same script is one worker. Importing this package is cheap: torch is imported
with ``Run``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from bftrainer.ground.errors import ElasticError

if TYPE_CHECKING:
    from bftrainer.elastic.batch import GlobalBatch, LogicalWorkers, PerWorkerBatch, Terms
    from bftrainer.elastic.generations import GenerationInfo
    from bftrainer.elastic.loader import PerSample, Sharded
    from bftrainer.elastic.reports import params, report
    from bftrainer.elastic.run import Run
    from bftrainer.elastic.shards import node_mesh
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
    "GenerationInfo": "generations",
    "GlobalBatch": "batch",
    "LogicalWorkers": "batch",
    "PerSample": "loader",
    "PerWorkerBatch": "batch",
    "Run": "run",
    "Sharded": "loader",
    "Terms": "batch",
    "Value": "value",
    "node_mesh": "shards",
    "params": "reports",
    "report": "reports",
}


def __getattr__(name: str) -> Any:
    """Import names that need torch on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
