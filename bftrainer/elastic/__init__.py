"""What a training script imports: an elastic training loop around ordinary PyTorch.

A script's model, optimizer and loader come in through ``Run``; its loops go over
``run.epochs()`` and ``run.batches()``, its updates through ``run.step()``. Workers
join and leave between two updates. Run plainly, the same script is one worker.
Importing this package is cheap: torch is imported with ``Run``, not before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bftrainer.elastic.errors import ElasticError

if TYPE_CHECKING:
    from bftrainer.elastic.membership import GenerationInfo
    from bftrainer.elastic.run import Run

__all__ = ["ElasticError", "GenerationInfo", "Run"]


def __getattr__(name: str) -> Any:
    """Import what needs torch on its first use."""
    if name == "Run":
        from bftrainer.elastic.run import Run  # noqa: PLC0415 - imports torch

        return Run
    if name == "GenerationInfo":
        from bftrainer.elastic.membership import (  # noqa: PLC0415 - imports torch
            GenerationInfo,
        )

        return GenerationInfo
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
