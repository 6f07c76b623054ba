"""Goes on from a checkpoint with the arguments of this script, where they are others.

The base learning rates and all other options of the optimizers' groups are the script's. The
current rates are scaled by new over old base. A schedule goes on as it was where its settings are
the same; where they differ the user says which one counts: the old one at the script's rates, or
the script's at the position of the old one.

Without a wish to do so the state is restored as it is, and ``origin_check`` has the last word.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch.optim.lr_scheduler import LRScheduler

from bftrainer.elastic.checkpoints import checkpoint
from bftrainer.elastic.checkpoints.origin_check import (
    ARGUMENTS,
    SCHEDULE_NEW,
    SCHEDULE_OLD,
    OriginCheck,
)
from bftrainer.elastic.process import reports
from bftrainer.elastic.script import schedules
from bftrainer.elastic.script.schedules import ScheduleSettings
from bftrainer.elastic.script.torch_compat import schedules_within
from bftrainer.elastic.state.state import State
from bftrainer.ground.errors import ElasticError
from bftrainer.ground.protocol import Remarked, WorkerConfig

_RATES, _SCHEDULES = "base_rates", "schedules"  # in headers of checkpoints
_CONTINUED = "continued"  # kind of a remark
MOST_CHARACTERS = 600  # of one
_OWN = "scheduler"  # the name of that one, as in a state


class Registered(Protocol):
    """Where the optimizers and schedulers of a script are: a ``State``, or what has the same."""

    @property
    def optimizer(self) -> Any:
        """The optimizer, or several as one."""

    @property
    def scheduler(self) -> Any:
        """The one that steps with the optimizer; None: there is none."""

    @property
    def extra(self) -> Mapping[str, Any]:
        """All else, by name."""


class OwnOptions:
    """The options that this script gave to its optimizers and schedulers."""

    def __init__(self, state: Registered, groups: list[dict[str, Any]]) -> None:
        self._state = state
        self._groups = groups  # without parameters
        self._base = [list(scheduler.base_lrs) for scheduler in self._schedulers()]

    def put_back(self, bases: Sequence[float] = ()) -> None:
        """Set them again, after a checkpoint was loaded.

        ``bases``: base learning rates of the checkpoint's groups, where they are known.
        """
        groups = self._state.optimizer.param_groups
        # The checkpoint's script may have added groups.
        for number, (group, options) in enumerate(zip(groups, self._groups, strict=False)):
            base = None
            if "initial_lr" in options:
                base = group.get("initial_lr")
            if number < len(bases):
                base = bases[number]
            rate = group.get("lr")
            group.update(options)
            if base and rate is not None:
                # A schedule, or the script by itself, has got this far from the beginning.
                group["lr"] = options.get("initial_lr", options["lr"]) * (rate / base)
        for scheduler, rates in zip(self._schedulers(), self._base, strict=True):
            scheduler.base_lrs = rates

    def _schedulers(self) -> Iterator[LRScheduler]:
        return _within([self._state.scheduler, *self._state.extra.values()])


def _within(things: Iterable[Any]) -> Iterator[LRScheduler]:
    """Yield the schedulers with learning rates of their own, also those within others."""
    for thing in things:
        if isinstance(thing, LRScheduler):
            if hasattr(thing, "base_lrs"):
                yield thing
            yield from _within(schedules_within(thing))


class BuiltState:
    """The rates, options and schedules of a state as the script built it."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.options = copy.deepcopy(state.options())
        self.schedules: dict[str, Any] = {}
        self.fresh: dict[str, Any] = {}  # their states before the first update
        self.settings: dict[str, ScheduleSettings] = {}
        for name, thing in {_OWN: state.scheduler, **state.extra}.items():
            if thing is None:
                continue
            if name == _OWN or isinstance(schedules.inner(thing), LRScheduler):
                self.schedules[name] = thing
                self.fresh[name] = copy.deepcopy(thing.state_dict())
                self.settings[name] = schedules.settings_of(thing)

    def header(self) -> dict[str, Any]:
        """Return what headers of checkpoints have of it."""
        rates: list[float] = []
        for options in self.options:
            rate = options.get("initial_lr", options.get("lr"))
            rates.append(float(rate or 0.0))
        return {_RATES: rates, _SCHEDULES: self.settings}


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedSchedules:
    """The schedules of a checkpoint."""

    bases: tuple[float, ...]  # learning rates of the groups; (): not known
    settings: Mapping[str, ScheduleSettings] | None  # by name; None: not known
    positions: Mapping[str, int]  # how many times each was stepped

    @classmethod
    def read(cls, header: Mapping[str, Any], state: Mapping[str, Any]) -> SavedSchedules:
        """Return them from a verified header and the decoded state beside it."""
        light = state.get("within_epoch") or state
        saved = {_OWN: light["scheduler"], **light["extra"]}
        return cls(
            bases=tuple(header.get(_RATES, ())),
            settings=header.get(_SCHEDULES),
            positions={name: schedules.position_in(schedule) for name, schedule in saved.items()},
        )

    def differing(
        self, own: Mapping[str, ScheduleSettings]
    ) -> dict[str, tuple[ScheduleSettings, ScheduleSettings]]:
        """Return their settings and the script's by name, where they differ."""
        if self.settings is None:
            return {}
        pairs = {}
        for name in {**own, **self.settings}:
            in_checkpoint, in_script = self.settings.get(name, {}), own.get(name, {})
            if in_checkpoint != in_script:
                pairs[name] = (in_checkpoint, in_script)
        return pairs


class Continuing(OriginCheck):
    """Decides how this run goes on from a checkpoint."""

    def __init__(self, config: WorkerConfig, state: State) -> None:
        super().__init__(config)
        self._built: BuiltState | None = None
        if config.checkpoint_dir:
            self._built = BuiltState(state)

    def header(self) -> dict[str, Any]:
        """Return what headers of checkpoints have of it."""
        header = {**super().header()}
        if self._built is not None:
            header.update(self._built.header())
        return header

    def continuation(
        self, header: Mapping[str, Any], source: str, tensors: Sequence[Any]
    ) -> Continuation | None:
        """Return how to go on from a verified checkpoint; None: with its state as it is.

        ``tensors``: those of the state without the model.

        Raises:
            ElasticError: BFT-1450, it was trained with other arguments; BFT-1451, with another
                schedule.
        """
        is_own_way = self.admit(header, source)
        if self._built is None or reports.trial_mark():
            return None
        state = checkpoint.decode(header["structure"], tensors)
        saved = SavedSchedules.read(header, state)
        pairs = saved.differing(self._built.settings)
        words = "; ".join(schedules.differing(*pair) for pair in pairs.values())
        has_other_code = any(schedules.has_other_code(*pair) for pair in pairs.values())
        if not is_own_way:
            if pairs:
                _tell(f"the schedule stays the checkpoint's; the script's is {words}")
            return None
        if pairs and (self.way == ARGUMENTS or (has_other_code and self.way == SCHEDULE_OLD)):
            raise _unclear(words, has_other_code=has_other_code)
        if pairs:
            _tell(f"{self.way}: the script's schedule is {words}")
        is_new = self.way == SCHEDULE_NEW and (bool(pairs) or saved.settings is None)
        return Continuation(self._built, saved, is_new=is_new)


def _unclear(words: str, *, has_other_code: bool) -> ElasticError:
    other_way = "" if has_other_code else " or --continue=schedule-old to keep the checkpoint's,"
    return ElasticError(
        "BFT-1451",
        f"The checkpoint was trained with another schedule of learning rates: {words}.",
        "Submit it with --continue=schedule-new to take the script's at the same"
        f" position,{other_way} or with --fresh.",
    )


class Continuation:
    """One restoration of a checkpoint's state under the arguments of this script."""

    def __init__(self, built: BuiltState, saved: SavedSchedules, *, is_new: bool) -> None:
        self._built, self._saved, self._is_new = built, saved, is_new
        self._pairs = saved.differing(built.settings)
        self._own = OwnOptions(built.state, copy.deepcopy(built.options))
        self._follows = any(map(schedules.follows_metrics, built.schedules.values()))

    @property
    def unloaded(self) -> frozenset[str]:
        """The schedules that are not to take over the checkpoint's state."""
        if not self._is_new:
            return frozenset()
        if not self._follows:  # they are stepped from their beginning
            return frozenset(self._built.schedules)
        of_other_class: set[str] = set()
        for name, (in_checkpoint, in_script) in self._pairs.items():
            if in_checkpoint.get("class") != in_script.get("class"):
                of_other_class.add(name)
        return frozenset(of_other_class)

    def apply(self) -> str:
        """Change the state, which the checkpoint's was loaded into; say and return what changed."""
        state = self._built.state
        state.resume_epoch()  # it would bring the checkpoint's options later
        before = copy.deepcopy(state.options())
        if not self._is_new:
            self._own.put_back(self._saved.bases)
        elif self._follows:
            self._own.put_back(self._saved.bases)
            self._set_anew()
        else:
            self._step_anew()
        return tell_changes(before, state.options())

    def _step_anew(self) -> None:
        """Take the script's schedules to where the checkpoint's were."""
        original = self._built
        groups = original.state.optimizer.param_groups
        for group, options in zip(groups, copy.deepcopy(original.options), strict=False):
            group.update(options)
        for name, schedule in original.schedules.items():
            schedule.load_state_dict(copy.deepcopy(original.fresh[name]))
            schedules.advance(schedule, self._saved.positions.get(name, 0))

    def _set_anew(self) -> None:
        """Give schedules that follow a metric the script's settings; what they saw stays."""
        original = self._built
        for name, (in_checkpoint, in_script) in self._pairs.items():
            if name not in original.schedules or name in self.unloaded:
                continue
            differing = {key for key in in_script if in_script[key] != in_checkpoint.get(key)}
            fresh = {key: v for key, v in original.fresh[name].items() if key in differing}
            schedule = original.schedules[name]
            schedule.load_state_dict({**schedule.state_dict(), **copy.deepcopy(fresh)})


def tell_changes(before: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]) -> str:
    """Say and return which options the optimizer's groups have now, and which they had."""
    changes: list[str] = []
    for number, (options_before, options) in enumerate(zip(before, now, strict=True)):
        phrases: list[str] = []
        for name, value in options.items():
            text, text_before = _written(value), _written(options_before.get(name))
            if text != text_before:
                phrases.append(f"{name} {text} (it had {text_before})")
        if phrases:
            change = f"group {number} of the optimizer has {', '.join(phrases)}"
            changes.append(change)
            _tell(change)
    return "; ".join(changes)


def remark_of(changes: str, step: int) -> Remarked:
    """Return what the daemon is told of a run that goes on in its own way.

    Args:
        changes: of the optimizer's groups; "" says that there is none.
        step: of the checkpoint.
    """
    rates = f": {changes}" if changes else " and the same rates"
    cause = f"It went on from step {step} with other arguments{rates}."
    return Remarked(kind=_CONTINUED, step=step, cause=cause[:MOST_CHARACTERS])


def _written(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _tell(text: str) -> None:
    sys.stderr.write(f"bftrainer: {text}\n")
