"""The models and optimizers that a script registers: combined, unwrapped, watched for updates.

Used by ``run``; all other modules then handle one model and one optimizer.

The run trains the plain model. A wrapper such as DistributedDataParallel, which the script still
calls, is changed to pass calls through, so that gradients are averaged only once. Refused if the
script has built a process group of several members, and where the model is sharded by FSDP1.

While a run lasts, a torch hook sees every optimizer step of the training thread and raises if
the script made it itself. Optimizers that are created and discarded within one batch (to perturb
an input, say) are allowed. Seen is also one that is built over the model's parameters and kept:
the script believes that the run uses it.
"""

from __future__ import annotations

import inspect
import logging
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_pre_hook

from bftrainer.elastic.script.own_sharding import refuse_accelerate
from bftrainer.ground.errors import ElasticError, sharded

log = logging.getLogger("bftrainer.elastic")
_unfit = partial(ElasticError, "BFT-1401")


class Optimizers:
    """Several optimizers that update together, with the interface that a run needs."""

    def __init__(self, parts: Sequence[torch.optim.Optimizer]) -> None:
        self.parts = tuple(parts)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The parameter groups of all optimizers."""
        return list(chain.from_iterable(part.param_groups for part in self.parts))

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
        for part, part_state in zip(self.parts, states, strict=True):
            part.load_state_dict(part_state)


def parts_of(optimizer: Any) -> tuple[Any, ...]:
    """Return the single optimizers of a registered one."""
    if isinstance(optimizer, Optimizers):
        return optimizer.parts
    return (optimizer,)


def _listed(registered: Any) -> list[Any] | tuple[Any, ...]:
    """Return what a script registers, one object or several, as several."""
    if isinstance(registered, list | tuple):
        return registered
    return [registered]


def one_model(models: Any) -> torch.nn.Module:
    """Return the registered model, or one that holds all of them."""
    parts = _listed(models)
    for part in parts:
        if not isinstance(part, torch.nn.Module):
            raise _unfit(
                f"The model is a {type(part).__name__}, not a torch.nn.Module.",
                "Give Run the model, or a list of models that train together.",
            )
    if len(parts) == 1:
        model: torch.nn.Module = parts[0]
        return model
    return torch.nn.ModuleList(parts)


def plain_model(
    models: Any, no_sync: Callable[[], AbstractContextManager[None]]
) -> torch.nn.Module:
    """Return what ``one_model`` does, without the wrappers of ``unwrap``."""
    if isinstance(models, list | tuple):
        models = [unwrap(part, no_sync) for part in models]
    return unwrap(one_model(models), no_sync)


def one_optimizer(optimizers: Any) -> Any:
    """Return the registered optimizer, or one that steps with all of them."""
    parts = _listed(optimizers)
    for part in parts:
        name = type(part).__name__
        if not all(hasattr(part, method) for method in ("param_groups", "step", "state_dict")):
            raise _unfit(
                f"The optimizer is a {name}, not one of torch.optim.",
                "Give Run the optimizer, or a list of optimizers that step together.",
            )
        closure = inspect.signature(part.step).parameters.get("closure")
        if closure is not None and closure.default is closure.empty:
            raise _unfit(
                f"The optimizer {name} needs a closure, which runs the model again.",
                "Use an optimizer whose step() needs none.",
            )
    if not parts:
        raise _unfit("The list of optimizers is empty.", "Give Run at least one.")
    if len(parts) == 1:
        return parts[0]
    return Optimizers(parts)


def unwrap(
    model: torch.nn.Module, no_sync: Callable[[], AbstractContextManager[None]]
) -> torch.nn.Module:
    """Return the plain model; ``no_sync`` replaces the wrapper's own."""
    refuse_accelerate()
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is not None and any(
        isinstance(module, fsdp.FullyShardedDataParallel) for module in model.modules()
    ):
        raise sharded("FullyShardedDataParallel")
    if isinstance(model, DataParallel):
        raise _unfit(
            "The model is already wrapped in DataParallel.",
            "Give Run the plain model; it averages the gradients itself.",
        )
    if not isinstance(model, DistributedDataParallel):
        return model
    members = model.process_group.size()
    if members != 1:
        raise _unfit(
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


def _keep_moving_inputs(model: DistributedDataParallel) -> None:
    """Disable the wrapper's hooks but keep its forward, which moves inputs to its device."""
    if model.static_graph:
        raise _unfit(
            "The model is wrapped in DistributedDataParallel with static_graph=True.",
            "Give Run the plain model, or remove static_graph.",
        )
    # What its own no_sync() sets temporarily.
    _replace(model, "require_backward_grad_sync", False)  # noqa: FBT003 - an attribute's value
    _replace(model, "require_forward_param_sync", False)  # noqa: FBT003


def _replace(model: DistributedDataParallel, name: str, value: Any) -> None:
    setattr(model, name, value)


_watching: list[Callable[[], None]] = []  # removes the hook of the latest run


class StrayUpdates:
    """Watches optimizer steps from the first batch of a run to its end."""

    def __init__(
        self,
        registered: tuple[Any, ...],
        parameters: Iterable[Any] = (),
        watches: Sequence[Callable[[], Callable[[], None]]] = (),
    ) -> None:
        """Watch the steps of these; ``watches`` begin then, too, and return what ends them."""
        # By id, because the hook sees the wrapped optimizer, not a wrapper.
        self._registered = set(map(id, registered))
        self._parameters = set(map(id, parameters))  # of the model, which lives as long
        self._watches = watches
        self._thread = 0
        self._batch = 0
        self._is_in_hand = self._is_ours = False
        self._first_batches: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        # Built since, and in the step of which batch they must be gone.
        self._built: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def enter_loops(self, begin: Callable[[], Callable[[], None]]) -> None:
        """Watch something from the beginning of the loops on; ``begin`` returns what ends that."""
        end_watch()  # of a run that this one replaces
        _watching.append(begin())

    def next_batch(self) -> None:
        """Count the batch that the script gets; watch from the first one on."""
        self._batch += 1
        self._is_in_hand = True
        if self._batch > 1:
            return
        self._thread = threading.get_ident()
        _watching.append(register_optimizer_step_pre_hook(self._see).remove)
        _watching.append(_watch_building(self._see_built))
        _watching.extend(begin() for begin in self._watches)

    def require_no_other(self) -> None:
        """Require that the script has not put another optimizer in the place of a registered one.

        Raises:
            ElasticError: BFT-1422.
        """
        self._is_in_hand = False
        for optimizer, last in self._built.items():
            if self._batch < last or optimizer in self._first_batches:
                continue  # it may yet be gone, or steps itself, see ``_see``
            raise ElasticError(
                "BFT-1422",
                f"The script has built another {type(optimizer).__name__} over the model's"
                " parameters since Run, and run.step() goes on with the one that Run was given.",
                "Change the options of that one's param_groups, or add groups to it.",
            )

    @contextmanager
    def updating(self) -> Iterator[None]:
        """Allow optimizer steps in here: they are the run's."""
        self._is_ours = True
        try:
            yield
        finally:
            self._is_ours = False

    def _see_built(self, optimizer: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        if self._parameters.isdisjoint(map(id, _parameters_of(optimizer))):
            return
        # One that each batch builds anew lives until the next one has built its own.
        self._built[optimizer] = self._batch + 2 if self._is_in_hand else 0

    def _see(self, optimizer: Any, _args: object, _kwargs: object) -> None:
        if self._is_ours or threading.get_ident() != self._thread:
            return
        name = type(optimizer).__name__
        if id(optimizer) in self._registered:
            raise ElasticError(
                "BFT-1422",
                f"The script calls step() of its {name}, which run.step() does.",
                "Remove the call; with mixed precision it is scaler.step(optimizer), and"
                " scaler.update() goes with it, see docs/howto/train-pytorch.md, Mixed precision.",
            )
        if self._first_batches.setdefault(optimizer, self._batch) == self._batch:
            return
        count = sum(p.numel() for p in _parameters_of(optimizer))
        raise ElasticError(
            "BFT-1422",
            f"A second optimizer ({name}, {count} parameters) steps outside run.step(): its"
            " parameters would differ between workers and not be in checkpoints.",
            "Register it with its model and remove its step():"
            " elastic.Run([model_a, model_b], [opt_a, opt_b], ...); see"
            " docs/howto/train-pytorch.md, Several models.",
        )


def _parameters_of(optimizer: Any) -> Iterator[Any]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _watch_building(tell: Callable[[Any], None]) -> Callable[[], None]:
    """Have ``tell`` told each optimizer that is built; return what ends that."""
    real = torch.optim.Optimizer.__init__

    def build(self: Any, *args: Any, **kwargs: Any) -> None:
        real(self, *args, **kwargs)
        tell(self)

    def end() -> None:
        if torch.optim.Optimizer.__init__ is build:
            torch.optim.Optimizer.__init__ = real  # type: ignore[method-assign]

    torch.optim.Optimizer.__init__ = build  # type: ignore[method-assign]
    return end


def end_watch() -> None:
    """Stop watching: the run is over."""
    while _watching:
        _watching.pop()()


@contextmanager
def quiet_schedulers() -> Iterator[None]:
    """Silence torch's warning that ``lr_scheduler.step()`` came before an update."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
        yield
