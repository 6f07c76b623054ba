"""The whole way to a network: warm-up, rollouts, and whether it may replace what there is.

Validation chooses among the networks of a run. The one chosen is used only if it beats its teacher
and its predecessor on episodes that neither learning nor choosing has seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from bftrainer.decide.policies.base import AllocationPolicy
from bftrainer.decide.policies.dl2 import WINDOW, Best, Dl2Policy
from bftrainer.decide.policies.dl2_network import Network, fresh
from bftrainer.decide.policies.dl2_rows import FEATURES
from bftrainer.lab.teach.batches import Step, batch_of
from bftrainer.lab.teach.episode import Episode, play
from bftrainer.lab.teach.learner import Adam, warm_up
from bftrainer.lab.teach.rollouts import improved

WIDTH = 48
MOST_LABELS = 20_000
SMOOTH, RATE = 0.1, 0.001
EVERY = 10  # iterations between validations


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Episodes:
    """What a network learns from, is chosen by, and is judged by."""

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
        """Whether it beats all."""
        return all(ratio < 1.0 for ratio in self.against.values())


def teach(
    labels: Sequence[Step],
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
        rivals: whom it has to beat, the teacher first.
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
