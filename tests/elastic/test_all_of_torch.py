"""Every optimizer, scheduler and helper of torch goes on from a file as if nothing had happened.

All their attributes are compared, whatever ``state_dict`` says: those of one that went on, and of
one that was built anew, has already run a few steps (a rehearsal), and was given the state.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.optim import lr_scheduler, swa_utils

from bftrainer.elastic.checkpoints import checkpoint
from bftrainer.elastic.state.state import Counters, State
from bftrainer.ground import fence

STEPS = 5
Parts = tuple[Any, Any, dict[str, Any]]  # optimizer, scheduler, extra

# ---- what there is ---------------------------------------------------------------------

OPTIMIZERS: dict[str, list[dict[str, Any]]] = {
    "ASGD": [{}, {"t0": 2.0, "weight_decay": 0.1}],
    "Adadelta": [{}],
    "Adafactor": [{}],
    "Adagrad": [{"initial_accumulator_value": 0.1, "lr_decay": 0.01}],
    "Adam": [{}, {"amsgrad": True}, {"lr": torch.tensor(0.01), "capturable": False}],
    "AdamW": [{"amsgrad": True, "weight_decay": 0.1}, {"fused": True}],
    "Adamax": [{}],
    "Muon": [{}],
    "NAdam": [{}],
    "RAdam": [{}],
    "RMSprop": [{"momentum": 0.9, "centered": True}],
    "Rprop": [{}],
    "SGD": [{}, {"momentum": 0.9, "nesterov": True}, {"foreach": True, "momentum": 0.5}],
}
NO_OPTIMIZERS = {
    "Optimizer": "the base class",
    "LBFGS": "Run refuses what needs a closure: test_several",
    "SparseAdam": "Run refuses sparse gradients: test_run",
}
SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o, 0.5, 4), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, 0.5, 7),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 6, 0.001),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3, 2),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.001, 0.1, 3, mode="exp_range", gamma=0.99),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, _inverse),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, total_iters=8),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [2, 2, 6, 8]),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, _inverse),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.5, total_steps=40, three_phase=True),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 9, 2.0),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=1, cooldown=1),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o,
        [
            lr_scheduler.LinearLR(o, total_iters=3),
            lr_scheduler.CosineAnnealingWarmRestarts(o, 2),
            lr_scheduler.MultiStepLR(o, [1, 3]),
        ],
        [3, 7],
    ),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 3, 0.5),
    "SWALR": lambda o: swa_utils.SWALR(o, 0.01, anneal_epochs=7),
}
NO_SCHEDULERS = {"LRScheduler": "the base class", "_LRScheduler": "an old name of it"}
# Attributes that need not be equal, and why.
NOT_STATE = {
    ".step": "torch wraps it, to see that a scheduler follows an update",
    "._init_scale": "GradScaler's, until its first batch; its scale is compared",
    "._init_growth_tracker": "the same",
    "'differentiable'": "torch adds this default, False, when it loads",
}


def _inverse(step: int) -> float:
    return 1.0 / (1 + step)


def _names(module: Any, base: type) -> set[str]:
    classes = inspect.getmembers(module, inspect.isclass)
    return {name for name, kind in classes if issubclass(kind, base)}


def test_nothing_of_torch_is_left_out() -> None:
    assert _names(optim, optim.Optimizer) == OPTIMIZERS.keys() | NO_OPTIMIZERS.keys()
    schedulers = _names(lr_scheduler, lr_scheduler.LRScheduler)
    schedulers |= _names(swa_utils, lr_scheduler.LRScheduler)
    assert schedulers == SCHEDULERS.keys() | NO_SCHEDULERS.keys()
    helpers = {
        n for n in _names(swa_utils, object) if hasattr(getattr(swa_utils, n), "update_parameters")
    }
    assert helpers == {"AveragedModel"}


# ---- comparing -------------------------------------------------------------------------


def walked(
    thing: Any, numbers: Mapping[int, int], path: str = "", seen: Any = frozenset()
) -> dict[str, Any]:
    """Return all that is in an object, by place; parameters of the model as their numbers."""
    if isinstance(thing, torch.Tensor):
        number = numbers.get(id(thing))
        value = (str(thing.dtype), tuple(thing.shape), thing.tolist())
        return {path: value if number is None else f"parameter {number}"}
    if thing is None or isinstance(thing, bool | int | float | str):
        return {path: (type(thing).__name__, thing)}
    if isinstance(thing, functools.partial):
        thing = (thing.func, thing.args, thing.keywords)
    if inspect.isroutine(thing) or inspect.isclass(thing):
        return {path: thing.__qualname__}
    if isinstance(thing, weakref.ref) or id(thing) in seen:
        return {}
    seen = {*seen, id(thing)}  # what it is inside of; others it may share
    if isinstance(thing, Mapping):
        items = [
            (f"parameter {numbers[id(k)]}" if id(k) in numbers else repr(k), v)
            for k, v in thing.items()
        ]
    elif isinstance(thing, list | tuple | set):
        items = [(str(i), v) for i, v in enumerate(thing)]
    else:
        attributes = getattr(thing, "__dict__", {})
        items = [(f".{k}", v) for k, v in attributes.items()]
    inside = {path: type(thing).__name__}
    for name, value in items:
        if name not in NOT_STATE:
            inside |= walked(value, numbers, f"{path}/{name}", seen)
    return inside


def differences(state: State, other: State) -> list[Any]:
    """Return what differs, by place."""
    one, two = contents(state), contents(other)
    assert one
    return [
        (k, one.get(k), two.get(k)) for k in one.keys() | two.keys() if one.get(k) != two.get(k)
    ]


def contents(state: State) -> dict[str, Any]:
    numbers = {id(p): i for i, p in enumerate(state.parameters())}
    parts = {"optimizer": state.optimizer, "scheduler": state.scheduler, **state.extra}
    tensors = [t.tolist() for t in state.model_tensors()]
    return {"model": tensors, **walked(parts, numbers)}  # a dictionary's order is no state


def steps(state: State, count: int) -> None:
    averages = [t for t in state.extra.values() if hasattr(t, "update_parameters")]
    scaler = state.extra.get("scaler")
    for _ in range(count):
        for p in state.parameters():
            p.grad = None
        x = torch.linspace(-1, 1, 12).reshape(3, 4)
        loss = state.model(x).square().mean()
        if scaler is None:
            loss.backward()
            state.optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(state.optimizer)
            scaler.update()
        if isinstance(state.scheduler, lr_scheduler.ReduceLROnPlateau):
            state.scheduler.step(1.0)
        elif state.scheduler is not None:
            state.scheduler.step()
        for average in averages:
            average.update_parameters(state.model)
        if "count" in state.extra:
            state.extra["count"].next()


def restored(state: State, other: State, directory: Path) -> None:
    """Give ``other`` the state, by a file."""
    structure, rest = state.encode_rest(Counters(seed=1))
    path = fence.path_for(directory, 4, 1)
    checkpoint.write(path, {"structure": structure}, [*state.model_tensors(), *rest])
    header, tensors = checkpoint.read(path)
    own = other.model_tensors()
    with torch.no_grad():
        for target, value in zip(own, tensors[: len(own)], strict=True):
            target.copy_(value)
    other.decode_rest(header["structure"], tensors[len(own) :])


def require_equal_going_on(directory: Path, build: Callable[[nn.Module], Parts]) -> None:
    def built() -> State:
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.BatchNorm1d(4, affine=False))
        optimizer, scheduler, extra = build(model)
        return State(model, optimizer, scheduler, extra)

    state, other = built(), built()
    steps(state, STEPS)
    steps(other, 2)
    assert differences(state, other)
    restored(state, other, directory)
    for _ in range(2):
        steps(state, STEPS)
        steps(other, STEPS)
        assert differences(state, other) == []


CASES = [(name, options) for name, several in OPTIMIZERS.items() for options in several]


@pytest.mark.parametrize(("name", "options"), CASES, ids=[f"{n}-{'-'.join(o)}" for n, o in CASES])
def test_an_optimizer_goes_on(tmp_path: Path, name: str, options: dict[str, Any]) -> None:
    kind: Any = getattr(optim, name)
    require_equal_going_on(tmp_path, lambda m: (kind(m.parameters(), **options), None, {}))


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_schedule_goes_on(tmp_path: Path, name: str) -> None:
    def build(model: nn.Module) -> Parts:
        optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        return optimizer, SCHEDULERS[name](optimizer), {}

    require_equal_going_on(tmp_path, build)


class Count:
    """What users keep beside the model: numbers, and no tensors."""

    def __init__(self) -> None:
        self.calls, self.best, self.is_late, self.name = 0, 1.5, False, "a"
        self.history: list[int] = []

    def next(self) -> None:
        self.calls += 1
        self.best, self.is_late, self.name = self.best / 2, self.calls > 3, f"a{self.calls}"
        self.history.append(self.calls)

    def state_dict(self) -> dict[str, Any]:
        return vars(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


EXTRAS: dict[str, Callable[[nn.Module, Any], Any]] = {
    "average": lambda m, _: swa_utils.AveragedModel(m, use_buffers=True),
    "ema": lambda m, _: swa_utils.AveragedModel(
        m, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9)
    ),
    "swalr": lambda _, o: swa_utils.SWALR(o, 0.01),
    "scaler": lambda *_: torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=3),
    "count": lambda *_: Count(),
}


@pytest.mark.parametrize("name", EXTRAS)
def test_extra_state_goes_on(tmp_path: Path, name: str) -> None:
    def build(model: nn.Module) -> Parts:
        optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        return optimizer, None, {name: EXTRAS[name](model, optimizer)}

    require_equal_going_on(tmp_path, build)
