"""The network plays an episode several times and learns which steps led to fewer trainers waiting.

All rollouts of an episode see the same pool and the same arrivals, so that their mean return at a
time explains what those caused. The return is minus the trainers in the system from then on,
discounted over two hours.
"""

from __future__ import annotations

import numpy as np

from bftrainer.decide.policies.dl2 import Dl2Policy
from bftrainer.decide.policies.dl2_network import Array, Mask, Network, probabilities
from bftrainer.lab.teach.batches import Step, batch_of
from bftrainer.lab.teach.episode import Episode, Played, play
from bftrainer.lab.teach.learner import Adam, improve
from bftrainer.model.decision import DecisionInput, Plan

ROLLOUTS = 4
MOST_STEPS = 4000
FADES_S = 7200.0
GRID = 400


class _Drawing:
    """Draws actions and notes them with the time of their decision."""

    def __init__(self, network: Network, chance: np.random.Generator) -> None:
        self._network, self._chance = network, chance
        self._open: list[Step] = []
        self.steps: list[tuple[float, Step]] = []

    def choose(self, rows: Array, mask: Mask) -> int:
        """Draw an action by its probability."""
        share = probabilities(self._network.scores(rows), mask)
        action = int(self._chance.choice(len(share), p=share))
        wanted = np.zeros(len(share))
        wanted[action] = 1.0
        self._open.append(Step(rows=rows, mask=mask, wanted=wanted))
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
