"""Layers and calls that expect torch's default process group to hold all workers.

There is none in a worker, or one that the script made of this worker alone: members come and go,
and torch's group cannot. What gathers over it gets this worker's share and says nothing: negatives
of a contrastive loss, sums of a metric, statistics of ``SyncBatchNorm``. So such a layer is
refused, and so are collectives in a group of one while the run lasts. Scripts and torchmetrics
that first ask whether there is a group go on without one, which may be right; that is said once.
Used by ``run``.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any

import torch
import torch.distributed as dist

from bftrainer.ground.errors import ElasticError

COLLECTIVES = (
    *("all_gather", "all_gather_coalesced", "all_gather_into_tensor", "all_gather_object"),
    *("all_gather_single", "all_reduce", "all_reduce_coalesced", "all_to_all"),
    *("all_to_all_single", "broadcast", "broadcast_object_list", "gather", "gather_object"),
    *("reduce", "reduce_scatter", "reduce_scatter_single", "reduce_scatter_tensor"),
)  # of these a torch may lack some
_FUNCTIONAL = "torch.distributed._functional_collectives"
_FUNCTIONAL_STEMS = ("all_gather", "all_reduce", "all_to_all", "broadcast", "reduce_scatter")
_OURS = ("torch.", "bftrainer.")
_ON_BEHALF = "torch.distributed.nn."  # calls what its caller could call itself, ...
_BETWEEN = ("torch.", "typing_extensions")  # ... through these
_ASKS = "torchmetrics"
_ADVICE = "See docs/howto/train-pytorch.md, Layers and losses over all workers."
_INSTALLED = (
    os.path.dirname(os.__file__) + os.sep,  # noqa: PTH120 - as frames have it
    str(Path(os.path.abspath(__file__)).parents[2]) + os.sep,  # noqa: PTH100
    "<",
)


def refuse_layers(model: torch.nn.Module) -> None:
    """Refuse layers that would synchronise over torch's default group.

    Raises:
        ElasticError: BFT-1401, there is a ``SyncBatchNorm``, torch's or another library's.
    """
    for name, module in model.named_modules():
        kinds = [kind.__name__ for kind in type(module).__mro__]
        if any(kind.startswith(("SyncBatchNorm", "SyncBN")) for kind in kinds):
            raise ElasticError(
                "BFT-1401",
                f"The layer {name!r} is a {kinds[0]}, which would use this worker's share alone:"
                " it synchronises over torch's process group, which elastic workers do not have.",
                "Leave out convert_sync_batchnorm, or use GroupNorm or LayerNorm, which do not"
                f" depend on the batch. {_ADVICE}",
            )


def watch(tell: Callable[[str, str], object] | None = None) -> Callable[[], None]:
    """Refuse collectives of the script in a group of one; return what ends that.

    ``tell`` is called with who asks whether there is a group, and with what is to be said of it,
    once for each; by default it is written to the log.
    """
    real = {(module, name): getattr(module, name) for module, name in _collectives()}
    ours = {place: _refusing(place[1], call) for place, call in real.items()}
    asks = (dist, "is_initialized")
    real[asks], ours[asks] = dist.is_initialized, _telling(dist.is_initialized, tell or _write)

    def end() -> None:
        for (module, name), call in real.items():
            if getattr(module, name) is ours[module, name]:
                setattr(module, name, call)

    for (module, name), call in ours.items():
        setattr(module, name, call)
    return end


def _collectives() -> Iterator[tuple[Any, str]]:
    for name in COLLECTIVES:
        if hasattr(dist, name):
            yield dist, name
    functional = sys.modules.get(_FUNCTIONAL)
    if functional is None:
        return
    for name, thing in vars(functional).items():
        if name.startswith(_FUNCTIONAL_STEMS) and isinstance(thing, FunctionType):
            yield functional, name


def _refusing(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(real)
    def call(*args: Any, **kwargs: Any) -> Any:
        module, place = _caller()
        if not module.startswith(_OURS) and _is_alone():
            raise ElasticError(
                "BFT-1424",
                f"torch.distributed.{name} was called at {place} in a process group of this worker"
                " alone: it would get nothing of the others.",
                "Leave it out, or submit the script with --runtime command, which starts it anew"
                f" with a group of all workers at each size. {_ADVICE}",
            )
        return real(*args, **kwargs)

    return call


def _write(_who: str, text: str) -> None:
    sys.stderr.write(f"bftrainer: {text}\n")


def _telling(real: Callable[[], bool], tell: Callable[[str, str], object]) -> Callable[[], bool]:
    askers: set[str] = set()  # of whom it was told

    @functools.wraps(real)
    def is_initialized() -> bool:
        if is_there := real():
            return is_there
        module, place = _caller()
        package, _, _ = module.partition(".")
        asker = place
        if package == _ASKS:
            asker = package
        if asker not in askers and (package == _ASKS or _is_own(place)):
            askers.add(asker)
            tell(
                asker,
                f"{asker} asks whether torch.distributed is initialized. It is not: what is"
                f" gathered or averaged there is of this worker alone (BFT-1424). {_ADVICE}",
            )
        return False

    return is_initialized


def _is_alone() -> bool:
    group = dist.distributed_c10d.GroupMember.WORLD
    return group is not None and group.size() == 1


def _caller() -> tuple[str, str]:
    """Return module and place, "file:line", of what called the function that asks."""
    frame = sys._getframe(2)  # noqa: SLF001 - the way to it
    if _module(frame).startswith(_ON_BEHALF):
        while frame.f_back and _module(frame).startswith(_BETWEEN):
            frame = frame.f_back
    code = frame.f_code
    return _module(frame), f"{code.co_filename}:{frame.f_lineno}"


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _is_own(place: str) -> bool:
    """Return whether it is in the script's own code: not of an installed package."""
    return "-packages" + os.sep not in place and not place.startswith(_INSTALLED)
