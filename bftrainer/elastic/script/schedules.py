"""What a schedule is by its settings, and the schedule of a script at a position of its run.

A schedule's state mixes settings (class, horizon, factors) with its position. As the script built
it, before the first update, the position of every schedule is the same, so what differs between two
of them then are settings. A function of the script is known by its values.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from bftrainer.elastic.script.torch_compat import (
    COUNTED_BY_SCHEDULES,
    WITHIN,
    is_a_mark,
    schedules_within,
)

# Rates, which are scaled, and what torch counts by itself.
_NO_SETTINGS = COUNTED_BY_SCHEDULES | {"base_lrs", "last_epoch", "verbose"}
_PROBES = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10_000)  # where functions are compared
_MOST = 60  # characters of a setting that are shown as they are

ScheduleSettings = dict[str, str]


def settings_of(schedule: Any) -> ScheduleSettings:
    """Return class and settings of a schedule as the script built it; empty: there is none."""
    if schedule is None:
        return {}
    return dict(_named(inner(schedule), ""))


def inner(schedule: Any) -> Any:
    """Return torch's schedule within one of Accelerate's, or the schedule itself."""
    within = getattr(schedule, "scheduler", None)
    if isinstance(within, LRScheduler):
        return within
    return schedule


def _named(schedule: Any, at: str) -> Iterator[tuple[str, str]]:
    yield f"{at}class", type(schedule).__name__
    for number, part in enumerate(schedules_within(schedule)):
        yield from _named(part, f"{at}{number}.")
    functions = getattr(schedule, "lr_lambdas", ())
    for number, function in enumerate(functions):
        yield f"{at}function {number}", _in_short(", ".join(_values(function)))
    state = schedule.state_dict()
    if not isinstance(state, Mapping):
        return
    for name, value in sorted(state.items()):
        is_elsewhere = name in _NO_SETTINGS or name in (WITHIN, "lr_lambdas")
        if not is_elsewhere and not is_a_mark(name) and _is_plain(value):
            yield f"{at}{name}", _in_short(repr(value))


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(map(_is_plain, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def _in_short(text: str) -> str:
    if len(text) <= _MOST:
        return text
    return f"{text[:_MOST]}... ({hashlib.sha256(text.encode()).hexdigest()[:8]})"


def _values(function: Any) -> Iterator[str]:
    for epoch in _PROBES:
        try:
            yield f"{float(function(epoch)):.6g}"
        except Exception:  # noqa: BLE001 - whatever the user's function raises so far away
            yield "-"


def differing(old: Mapping[str, str], new: Mapping[str, str]) -> str:
    """Return how the settings of a script's schedule differ from a checkpoint's, as words."""
    if old == new:
        return ""
    if not old or not new:
        return f"{new.get('class', 'none')} (it has {old.get('class', 'none')})"
    return ", ".join(
        f"{name} {new.get(name, 'none')} (it has {old.get(name, 'none')})"
        for name in _differing_names(old, new)
    )


def has_other_code(old: Mapping[str, str], new: Mapping[str, str]) -> bool:
    """Return whether they differ in what a state cannot bring back: classes and functions."""
    return any(name.endswith("class") or "function " in name for name in _differing_names(old, new))


def _differing_names(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    return [name for name in {**new, **old} if old.get(name) != new.get(name)]


def position_in(state: Any) -> int:
    """Return how many times the schedule was stepped whose state this is; 0: it does not say."""
    if not isinstance(state, Mapping):
        return 0
    last_epoch = state.get("last_epoch")
    if not isinstance(last_epoch, int):
        last_epoch = 0
    return max([last_epoch, *map(position_in, state.get(WITHIN, ()))])


def follows_metrics(schedule: Any) -> bool:
    """Return whether it cannot be stepped without what it follows."""
    of_torch = inner(schedule)
    return isinstance(of_torch, ReduceLROnPlateau) or not isinstance(of_torch, LRScheduler)


def advance(schedule: Any, position: int) -> None:
    """Step a schedule that is as the script built it, with its optimizer, to a position."""
    of_torch = inner(schedule)
    with _quietly():
        for _ in range(position):
            of_torch.step()


@contextmanager
def _quietly() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
