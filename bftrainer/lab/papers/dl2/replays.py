"""One play or one learner: its setting and its record. Both are plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from bftrainer.decide.policies.dl2_network import Network
from bftrainer.lab.papers.dl2 import training
from bftrainer.lab.papers.dl2.cluster import Cluster, Rule, draw_trace
from bftrainer.lab.papers.dl2.cluster import play as play_trace
from bftrainer.lab.papers.dl2.published_learner import PublishedLearner
from bftrainer.lab.papers.dl2.rules import (
    best_equal_sizes,
    drf,
    fitted,
    greedy,
    optimus,
    srtf,
    tetris,
)
from bftrainer.lab.papers.dl2.setting import (
    ALL_REDUCE,
    RECORDS,
    SETTINGS,
    TESTBED,
    Setting,
    Speeds,
    read_speeds,
)
from bftrainer.lab.papers.paper import Scenario, drawn_scenario

FITTED_SIZES = 30
ABSENT = 0.4  # of the nodes, in the test of shrinking pools
ERROR = 0.2  # of stated epochs, in Fig. 14
Times = tuple[float, ...]  # mean completion time of each trace, in slots
TEACHERS: dict[str, training.Teacher] = {"drf": drf, "greedy": greedy}
RULES: dict[str, Rule] = {
    "drf": drf,
    "optimus": optimus,
    "greedy": greedy,
    "srtf": srtf,
    "tetris": tetris,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ByRule:
    """A trace under a rule."""

    setting: str
    rule: str  # of RULES; "capped", "capped tetris", "fitted"
    trace: int
    absent: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Imitated:
    """A network that imitates, tried on traces."""

    teacher: str
    seed: int
    traces: range
    is_papers: bool = False  # the paper's network
    steps: int | None = None  # of its warm-up; None: as in the paper
    updates: int = 0  # and then its learner


@dataclass(frozen=True, slots=True, kw_only=True)
class Improved:
    """A network that went on learning, tried on traces."""

    setting: str
    seed: int
    iterations: int
    traces: range
    is_offline: bool = False  # it learns from speeds of Optimus' model


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """Mean completion time of each trace, in slots."""

    best: Times
    last: Times
    absent: Times  # with nodes away
    wrong: Times  # with stated epochs that are wrong
    curve: tuple[tuple[int, float], ...]  # iteration, of the validation


def play(folder: Path | None, run: ByRule | Imitated | Improved) -> float | Times | Tried:
    """Play one."""
    setting = TESTBED if isinstance(run, Imitated) else SETTINGS[run.setting]
    speeds, _ = read_speeds(folder, setting)
    if isinstance(run, ByRule):
        setting = replace(setting, absent=run.absent)
        cluster = Cluster(setting, speeds, draw_trace(setting, run.trace), run.trace)
        return play_trace(cluster, _rule(run.rule, speeds))
    if isinstance(run, Improved):
        return _improved(setting, speeds, run)
    teacher = TEACHERS[run.teacher]
    if run.is_papers:
        learner = PublishedLearner(setting, speeds, run.seed)
        learner.warm_up(training.labels_of(setting, speeds, teacher), run.steps)
        learner.learn(run.updates)
        scores = learner.scores
    else:
        scores = training.imitate(setting, speeds, teacher, run.seed).scores
    return training.evaluate(setting, speeds, scores, run.traces)


def choose_scenario(_: object, folder: Path | None, __: object) -> Scenario:
    """Return the clusters, and where their speeds come from.

    Raises:
        UsageError: BFT-4171, the file of speeds is not one.
    """
    _speeds, is_measured = read_speeds(folder, TESTBED)
    remark = (
        "Speeds are synthetic, so no published value can be expected: the measured ones "
        f"carry no licence, and BFTRAINER_DATA has no {RECORDS}."
    )
    if is_measured:
        remark = "Speeds are those that the authors measured."
    return drawn_scenario(
        __package__,
        remarks=[remark],
        settings={"measured_speeds": is_measured},
        is_papers=is_measured,
        content=folder,
    )


def _rule(name: str, speeds: Speeds) -> Rule:
    if name == "capped":
        return partial(drf, most=best_equal_sizes(speeds))
    if name == "capped tetris":
        return partial(tetris, most=best_equal_sizes(speeds))
    if name == "fitted":
        return partial(optimus, believed=_modelled(speeds))
    return RULES[name]


def _modelled(speeds: Speeds) -> Speeds:
    return fitted(speeds, FITTED_SIZES, seed=0)


def _improved(setting: Setting, speeds: Speeds, run: Improved) -> Tried:
    # Without servers a smoothed warm-up never stops growing a job: its labels stay as they are.
    smooth = 0.0 if setting is ALL_REDUCE else 0.2
    lesson_speeds = _modelled(speeds) if run.is_offline else speeds
    learnt = training.learn(
        setting, lesson_speeds, drf, seed=run.seed, iterations=run.iterations, smooth=smooth
    )

    def times(network: Network, **changes: float) -> Times:
        its_setting = replace(setting, **changes)  # type: ignore[arg-type]
        return training.evaluate(its_setting, speeds, network.scores, run.traces)

    return Tried(
        best=times(learnt.best),
        last=times(learnt.last),
        absent=times(learnt.best, absent=ABSENT),
        wrong=times(learnt.best, error=ERROR),
        curve=learnt.curve,
    )


def against(ours: Sequence[float], rivals: Sequence[float]) -> float:
    """Return how much longer ours take, %, mean of the traces."""
    return float(100.0 * np.mean(np.array(ours) / np.array(rivals) - 1.0))
