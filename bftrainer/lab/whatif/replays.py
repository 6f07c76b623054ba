"""Replays stretches of a trace with given settings, each only once, side by side.

Returns the result of a setting for each stretch, in the same order, so that ``study`` can compare
settings stretch by stretch. How many processes play makes no difference to it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from bftrainer.batch.traces.fragments import Fragments
from bftrainer.batch.traces.idle import held_down
from bftrainer.lab.parallel import play_each
from bftrainer.lab.simulator.costs import PhysicalCosts
from bftrainer.lab.simulator.session import Choices, play
from bftrainer.lab.whatif.assumptions import Assumptions
from bftrainer.lab.whatif.samples import Stretch
from bftrainer.lab.workloads.builders import hpo
from bftrainer.lab.workloads.submission import TrainerWorkload


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySetting:
    """The settings of a replay."""

    policy: str
    t_fwd_s: float
    p_jmax: int
    hold_down_s: float
    costs: PhysicalCosts


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """The outcome of one stretch."""

    seconds: float
    offered_node_s: float  # idle, before any hold-down time
    harvested_node_s: float  # of members that trained
    samples: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Task:
    """A stretch to replay."""

    part: Fragments  # after the hold-down time
    offered_node_s: float
    setting: ReplaySetting
    given: Assumptions


class Replays:
    """Replays of stretches; each setting is played once."""

    def __init__(
        self,
        trace: Fragments,
        stretches: Sequence[Stretch],
        given: Assumptions,
        on_played: Callable[[], None],
        *,
        processes: int = 1,
    ) -> None:
        self._trace = trace
        self._stretches = tuple(stretches)
        self._given = given
        self._on_played = on_played
        self._processes = processes
        self._offered_node_s = [s.of(trace).node_seconds() for s in self._stretches]
        self._held: dict[float, Fragments] = {}
        self._known: dict[ReplaySetting, tuple[Played, ...]] = {}

    def __len__(self) -> int:
        """Return the number of stretches."""
        return len(self._stretches)

    @property
    def hours(self) -> float:
        """The total time of the stretches, s."""
        return sum(s.of(self._trace).duration_s for s in self._stretches) / 3600.0

    def of(self, setting: ReplaySetting) -> tuple[Played, ...]:
        """Return the outcome of each stretch."""
        self.play([setting])
        return self._known[setting]

    def play(self, settings: Iterable[ReplaySetting]) -> None:
        """Play these settings side by side, so that ``of`` knows them."""
        todo = {s: self._tasks(s) for s in dict.fromkeys(settings) if s not in self._known}
        found = play_each(
            _play,
            [task for tasks in todo.values() for task in tasks],
            processes=self._processes,
            on_progress=lambda _: self._on_played(),
        )
        for setting, tasks in todo.items():
            self._known[setting] = tuple(found[task] for task in tasks)

    def _tasks(self, setting: ReplaySetting) -> list[_Task]:
        trace = self._after(setting.hold_down_s)
        return [
            _Task(
                part=stretch.of(trace),
                offered_node_s=offered_node_s,
                setting=setting,
                given=self._given,
            )
            for stretch, offered_node_s in zip(self._stretches, self._offered_node_s, strict=True)
        ]

    def _after(self, hold_s: float) -> Fragments:
        # Computed on the whole trace, because a stretch may begin within an idle time.
        if hold_s not in self._held:
            self._held[hold_s] = held_down(self._trace, hold_s)
        return self._held[hold_s]


def _play(task: _Task) -> Played:
    setting = task.setting
    choices = Choices(
        policy=setting.policy,
        t_fwd_s=setting.t_fwd_s,
        p_jmax=setting.p_jmax,
        costs=setting.costs,
        seed=task.given.seed,
    )
    outcome, found = play(task.part, endless(task.part, setting, task.given), choices)
    return Played(
        seconds=task.part.duration_s,
        offered_node_s=task.offered_node_s,
        harvested_node_s=outcome.tally.node_s_used,
        samples=found.a_e,
    )


def endless(trace: Fragments, setting: ReplaySetting, given: Assumptions) -> TrainerWorkload:
    """Return more trainers than the trace can complete."""
    curve = given.network.curve
    best = max(v / n for n, v in zip(curve.sizes, curve.samples_per_s, strict=True))
    most = trace.node_seconds() * best / given.samples
    made = hpo(
        given.network,
        n_trainers=math.ceil(most) + setting.p_jmax + 1,
        samples=given.samples,
        rescale_up_s=setting.costs.pause_up.mean_s,
        rescale_down_s=setting.costs.pause_down.mean_s,
        n_max=given.n_max,
    )
    if given.n_min == 1:
        return made
    return dataclasses.replace(
        made,
        submissions=tuple(dataclasses.replace(s, n_min=given.n_min) for s in made.submissions),
    )
