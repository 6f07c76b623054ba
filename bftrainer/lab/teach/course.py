"""Trains a network from start to end: source, warm-up, rollouts, comparison with the old network.

All rollouts of an episode see the same pool and the same arrivals, so that their mean return at a
time explains what those caused. The return is minus the trainers in the system from then on,
discounted over two hours.

Validation chooses among the networks of a run. The one chosen is used only if it beats its teacher
and its predecessor on episodes that neither learning nor choosing has seen.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bftrainer.decide.policies.base import AllocationPolicy, load_policy, options_of
from bftrainer.decide.policies.dl2 import FEATURES, WINDOW, Best, Dl2Policy
from bftrainer.decide.policies.dl2_network import Array, Mask, Network, fresh, probabilities
from bftrainer.lab.teach.episodes import Episode, Played, draw, play
from bftrainer.lab.teach.learner import Adam, LearningStep, batch_of, improve, warm_up
from bftrainer.lab.teach.lessons import Watched, read
from bftrainer.model.decision import DecisionInput, DecisionRecord, Plan

ROLLOUTS = 4
MOST_STEPS = 4000
FADES_S = 7200.0
GRID = 400


class _Drawing:
    """Draws actions and notes them with the time of their decision."""

    def __init__(self, network: Network, chance: np.random.Generator) -> None:
        self._network, self._chance = network, chance
        self._open: list[LearningStep] = []
        self.steps: list[tuple[float, LearningStep]] = []

    def choose(self, rows: Array, mask: Mask) -> int:
        """Draw an action by its probability."""
        share = probabilities(self._network.scores(rows), mask)
        action = int(self._chance.choice(len(share), p=share))
        wanted = np.zeros(len(share))
        wanted[action] = 1.0
        self._open.append(LearningStep(rows=rows, mask=mask, wanted=wanted))
        return action

    def decided(self, given: DecisionInput, _: Plan) -> None:
        """Note when the steps were taken."""
        self.steps += [(given.now_s, step) for step in self._open]
        self._open = []


def returns(played: Played) -> tuple[Array, Array]:
    """Return times and the discounted return from each on."""
    at_s = np.linspace(played.begin_s, played.end_s, GRID)
    span_s = at_s[1] - at_s[0]
    fade, found = np.exp(-span_s / FADES_S), np.zeros(GRID)
    waiting = played.in_system(at_s)
    for i in reversed(range(GRID - 1)):
        found[i] = -waiting[i] * span_s + fade * found[i + 1]
    return at_s, found


def improved(
    network: Network, episode: Episode, adam: Adam, chance: np.random.Generator
) -> Network:
    """Return the network after one episode."""
    drawings = [_Drawing(network, chance) for _ in range(ROLLOUTS)]
    played = [
        play(episode, Dl2Policy(one.choose, goes_on=False), on_plan=one.decided) for one in drawings
    ]
    found = [returns(one) for one in played]
    at_s, values = found[0][0], np.array([one for _, one in found])
    better = values - values.mean(0)
    better /= better.std() + 1e-6
    steps = [
        (step, float(np.interp(now_s, at_s, better[i])))
        for i, one in enumerate(drawings)
        for now_s, step in one.steps
    ]
    if not steps:
        return network
    if len(steps) > MOST_STEPS:
        steps = [steps[i] for i in chance.choice(len(steps), MOST_STEPS, replace=False)]
    taken = batch_of([step for step, _ in steps])
    return improve(network, taken, np.array([gain for _, gain in steps]), adam, chance)


WIDTH = 48
MOST_LABELS = 20_000
SMOOTH, RATE = 0.1, 0.001
EVERY = 10  # iterations between validations


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Episodes:
    """The episodes for learning, for choosing and for judging a network."""

    learning: Sequence[Episode]
    validation: Sequence[Episode]
    judging: Sequence[Episode]


def split(episodes: Sequence[Episode]) -> Episodes:
    """Split episodes in order of time: the last are for judging, those before for choosing."""
    held = max(1, len(episodes) // 5)
    return Episodes(
        learning=episodes[: -2 * held],
        validation=episodes[-2 * held : -held],
        judging=episodes[-held:],
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Taught:
    """A network, and how it compares: mean time in the system over that of the others."""

    network: Network
    against: dict[str, float]  # teacher, predecessor -> ratio; below 1: the network is better
    curve: tuple[tuple[int, float], ...]  # iteration, validation's mean time over the teacher's

    @property
    def is_better(self) -> bool:
        """Return whether it beats all."""
        return all(ratio < 1.0 for ratio in self.against.values())


def teach(
    labels: Sequence[LearningStep],
    episodes: Episodes,
    rivals: dict[str, AllocationPolicy],
    *,
    seed: int,
    iterations: int,
    on_progress: Callable[[float], None] = lambda _: None,
) -> Taught:
    """Return what a network has learnt.

    Args:
        labels: the teacher's steps.
        episodes: to learn from and to be judged by.
        rivals: policies that it has to beat, the teacher first.
        seed: the same gives the same numbers.
        iterations: rollouts' episodes.
        on_progress: told which share is done.
    """
    chance, adam = np.random.default_rng((seed, 71)), Adam(rate=RATE)
    if len(labels) > MOST_LABELS:
        chosen = chance.choice(len(labels), MOST_LABELS, replace=False)
        labels = [labels[i] for i in chosen]
    network = fresh(FEATURES, 1, WINDOW, WIDTH, seed)
    network = best = warm_up(network, batch_of(labels), seed=seed, smooth=SMOOTH)
    teacher = next(iter(rivals.values()))
    least = ratio(policy_of(network), teacher, episodes.validation)
    curve = [(0, least)]
    for iteration in range(1, iterations + 1):
        episode = episodes.learning[int(chance.integers(len(episodes.learning)))]
        network = improved(network, episode, adam, chance)
        if iteration % EVERY == 0:
            found = ratio(policy_of(network), teacher, episodes.validation)
            curve.append((iteration, found))
            if found < least:
                least, best = found, network
        on_progress(iteration / iterations)
    return Taught(
        network=best,
        against={n: ratio(policy_of(best), one, episodes.judging) for n, one in rivals.items()},
        curve=tuple(curve),
    )


def policy_of(network: Network) -> Dl2Policy:
    """Return the policy as it decides with a network."""
    return Dl2Policy(Best(network))


def ratio(one: AllocationPolicy, other: AllocationPolicy, episodes: Sequence[Episode]) -> float:
    """Return the geometric mean over episodes of the time in the system, one over the other."""
    found = [play(episode, one).mean_s / play(episode, other).mean_s for episode in episodes]
    return float(np.exp(np.mean(np.log(found))))


LEARNING, WATCHED, VALIDATION, JUDGING = range(60), 20, range(1000, 1008), range(2000, 2012)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Source:
    """A teacher's steps, and episodes."""

    teacher: AllocationPolicy
    labels: list[LearningStep]
    episodes: Episodes


def drawn(teacher: str, seed: int) -> Source:
    """Let a policy play on drawn pools.

    Raises:
        UsageError: BFT-3050, there is no such policy.
    """
    policy = load_policy(teacher)
    watched = Watched(policy, options_of(policy, {}), seed)
    learning = [draw(number) for number in LEARNING]
    for episode in learning[:WATCHED]:
        play(episode, watched)
    episodes = Episodes(
        learning=learning,
        validation=[draw(number) for number in VALIDATION],
        judging=[draw(number) for number in JUDGING],
    )
    return Source(teacher=policy, labels=watched.steps, episodes=episodes)


def of_journal(path: Path, seed: int) -> Source:
    """Read a daemon's journal; the daemon may be running.

    Raises:
        UsageError: BFT-4180, it holds too few decisions.
    """
    found = read(_decisions(path), seed=seed)
    [(teacher, _)] = found.teachers.most_common(1)
    return Source(teacher=load_policy(teacher), labels=found.steps, episodes=split(found.episodes))


def _decisions(path: Path) -> Iterator[DecisionRecord]:
    from bftrainer.journal.journal import Journal  # noqa: PLC0415 - SQLAlchemy is slow

    with Journal.open(path, clock=time.time, is_verified=False) as journal:
        for entry in journal.entries():
            if entry.kind == "decision":
                yield entry.payload_as(DecisionRecord)
