"""The registered objects besides optimizer and scheduler that members must have alike.

A loss scaler and schedulers among ``extra`` steer the training: they are compared strictly, as the
run's own scheduler is. So is what a framework counts (``Counted.in_common``). Other small objects
are the script's: a difference is told, and they count no more in this generation. Used by
``comparison``.

The scale of a loss scaler on a GPU is copied to the host when a batch is handed out, behind what
the script did after the update before, so that the vote of this batch need not wait for the batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import torch

from bftrainer.elastic.data.loader import PerSample
from bftrainer.elastic.gradients import light
from bftrainer.elastic.script import torch_compat

MOST_LEAVES: Final = 32  # of an object that is only told of; a larger one counts in no vote
OWN_EXTRA: Final = ("bft-", "framework")  # prefixes of objects that are not the script's
_EXTRA: Final = "extra."
_SCALER: Final = "scaler"
_BEST: Final = "best"  # of a schedule that follows a metric, which each worker may measure itself
# Callbacks that show what they have loaded only when they act: a joiner has other counts.
_BEGIN_ANEW: Final = ("StochasticWeightAveraging",)


# An object or a part of one: name, whether a difference is an error, values. Made in every vote.
Part: TypeAlias = tuple[str, bool, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class InCommon:
    """What a framework and its callbacks have that all members must have alike."""

    steering: Mapping[str, Any] = field(default_factory=dict)  # decides what is trained
    measured: Mapping[str, Any] = field(default_factory=dict)  # a difference is told


def of_callbacks(
    callbacks: Iterable[tuple[Any, Mapping[str, Any]]], libraries: Container[str]
) -> InCommon:
    """Return what callbacks with these states have that members must have alike.

    What a callback of the library counts decides when it acts, such as the epochs without an
    improvement. What it has measured may differ where running averages are each worker's own, and
    states of the script's own callbacks are its business.

    Args:
        callbacks: with their states.
        libraries: names of its packages.
    """
    n_alike: Counter[str] = Counter()  # callbacks so far, by the names of their classes
    steering: dict[str, Any] = {}
    values: dict[str, Any] = {}
    for callback, state in callbacks:
        kind = type(callback)
        n_alike[kind.__name__] += 1
        name = kind.__name__
        if n_alike[name] > 1:
            name = f"{name} {n_alike[name]}"
        values[name] = state
        library, _, _ = kind.__module__.partition(".")
        if library in libraries:
            counts = {key: value for key, value in state.items() if isinstance(value, int)}
            values[name] = {key: value for key, value in state.items() if _is_measured(value)}
            if kind.__name__ in _BEGIN_ANEW:
                values[name] |= counts
            else:
                steering[name] = counts
    return InCommon(steering=steering, measured=values)


def _is_measured(value: Any) -> bool:
    is_small_tensor = isinstance(value, torch.Tensor) and value.numel() == 1
    return isinstance(value, float) or (is_small_tensor and value.device.type == "cpu")


def may_differ(path: str) -> bool:
    """Return whether a value with this path is only told of."""
    return path.startswith(_EXTRA)


def name_in(path: str) -> str:
    """Return the name of the object in the path of a value that is only told of."""
    return path.removeprefix(_EXTRA).partition(".")[0].partition("[")[0]


class ScalerCopy:
    """Scale and growth tracker of a loss scaler on a GPU, on their way to the host."""

    def __init__(self) -> None:
        self._numbers = torch.empty(2, dtype=torch.float32, pin_memory=True)
        self._is_copied = torch.cuda.Event()

    def begin(self, scale: torch.Tensor, growth: torch.Tensor) -> None:
        """Copy them behind the work that the GPU has by now."""
        numbers = torch.stack([scale.detach().float(), growth.detach().float()])
        self._numbers.copy_(numbers, non_blocking=True)
        self._is_copied.record(torch.cuda.current_stream(scale.device))

    def numbers(self) -> tuple[float, int]:
        """Return them; waits until they are there."""
        self._is_copied.synchronize()
        scale, growth = self._numbers.tolist()
        return scale, int(growth)


class ExtraComparison:
    """The registered objects that members compare."""

    new_copy: type[Any] = ScalerCopy

    def __init__(self, extra: Mapping[str, Any]) -> None:
        self._extra = extra
        self._left_out: set[str] = set()  # objects that are large, or were told of
        self._copies: dict[str, Any] = {}  # of scalers on GPUs
        self._begun_copies: set[str] = set()  # copies that are of this batch
        self.begin()

    def begin(self) -> None:
        """Begin a generation, whose members have just been given one state."""
        self._left_out.clear()
        self._begun_copies.clear()
        self._readers: dict[str, Callable[[str, Any], Sequence[Part]]] = {}
        for name, thing in self._extra.items():
            reader = self._reader(name, thing)
            if reader is not None:
                self._readers[name] = reader

    def leave_out(self, name: str) -> None:
        """Compare an object no more in this generation."""
        self._left_out.add(name)

    def schedulers(self) -> dict[str, Any]:
        """Return the schedulers among the objects, by name."""
        return {name: thing for name, thing in self._extra.items() if _is_scheduler(thing)}

    def ask(self) -> None:
        """Begin to copy what is on a GPU."""
        self._begun_copies.clear()
        for name, thing in self._extra.items():
            if _is_on_device(thing):
                copy = self._copies.get(name)
                if copy is None:
                    copy = self._copies[name] = self.new_copy()
                copy.begin(torch_compat.scale_of(thing), torch_compat.growth_of(thing))
                self._begun_copies.add(name)

    def in_votes(self) -> list[Any]:
        """Return what counts in a vote."""
        trees: list[Any] = []
        for name, is_strict, tree in self._parts():
            if is_strict or light.count(tree, MOST_LEAVES) <= MOST_LEAVES:
                trees.append(tree)
            else:
                self._left_out.add(name)
        return trees

    def leaves(self) -> dict[str, Any]:
        """Return the values that count in votes, by their paths."""
        table: dict[str, Any] = {}
        for name, is_strict, tree in self._parts():
            table |= light.leaves(tree, name if is_strict else f"{_EXTRA}{name}")
        return table

    def _parts(self) -> Iterator[Part]:
        for name, read in self._readers.items():
            for part in read(name, self._extra[name]):
                part_name, is_strict, _ = part
                if is_strict or part_name not in self._left_out:
                    yield part

    def _reader(self, name: str, thing: Any) -> Callable[[str, Any], Sequence[Part]] | None:
        if hasattr(thing, "in_common"):
            return _of_framework
        if name.startswith(OWN_EXTRA) or isinstance(thing, PerSample):
            return None
        if isinstance(thing, torch.amp.GradScaler):
            return self._of_scaler
        if _is_scheduler(thing):
            return _of_scheduler
        return self._of_script

    def _of_script(self, name: str, thing: Any) -> Sequence[Part]:
        if name in self._left_out:
            return ()
        return ((name, False, thing.state_dict()),)

    def _of_scaler(self, name: str, thing: Any) -> Sequence[Part]:
        return ((_SCALER, True, self._scaler(name, thing)),)

    def _scaler(self, name: str, scaler: Any) -> Mapping[str, Any]:
        """Return a scaler's state without waiting for what the GPU does in this batch."""
        if not _is_on_device(scaler):
            return scaler.state_dict()  # type: ignore[no-any-return]
        if name in self._begun_copies:
            scale, growth = self._copies[name].numbers()
        else:  # it has only begun to scale, in this batch
            scale, growth = torch_compat.first_scale(scaler)
        return torch_compat.scaler_state(scaler, scale, growth)


def _of_framework(_name: str, thing: Any) -> Sequence[Part]:
    common: InCommon = thing.in_common()
    return (
        *((name, True, tree) for name, tree in common.steering.items()),
        *((name, False, tree) for name, tree in common.measured.items()),
    )


def _of_scheduler(name: str, thing: Any) -> Sequence[Part]:
    tree = dict(thing.state_dict())
    best: dict[str, Any] = {}
    if _BEST in tree:
        best[_BEST] = tree.pop(_BEST)
    return ((name, True, tree), (name, False, best))


def _is_scheduler(thing: Any) -> bool:
    return isinstance(thing, torch.optim.lr_scheduler.LRScheduler)


def _is_on_device(thing: Any) -> bool:
    """Return whether it is a loss scaler whose scale is in a GPU's memory."""
    if not (isinstance(thing, torch.amp.GradScaler) and thing.is_enabled()):
        return False
    scale = torch_compat.scale_of(thing)
    return scale is not None and scale.device.type != "cpu"
