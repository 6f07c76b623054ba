"""Trains a network: by the steps of another scheduler, and by what its own steps led to.

Warm-up is DL2's (arXiv 1909.06040, section 4.2), cross-entropy against another scheduler's steps;
``smooth`` mixes in a uniform share, without which the network is so sure of itself that nothing
else is ever tried. ``improve`` is the clipped policy gradient of PPO (Schulman et al., arXiv
1707.06347, eq. 7) with an entropy bonus (DL2, section 4.3). Numbers are the same for the same seed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np

from bftrainer.decide.policies.dl2_network import Array, Network, probabilities
from bftrainer.lab.teach.batches import Batch
from bftrainer.lab.teach.gradient import forward

CLIP = 0.2
TINY = 1e-12


class Numbers(Protocol):
    """A dataclass whose fields are arrays, and others that are not learnt."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


N = TypeVar("N", bound=Numbers)


@dataclass(slots=True, kw_only=True)
class Adam:
    """The optimizer Adam (Kingma and Ba, arXiv 1412.6980) of one network."""

    rate: float
    _steps: int = 0
    _means: dict[str, Array] = field(default_factory=dict)
    _squares: dict[str, Array] = field(default_factory=dict)

    def step(self, network: N, gradient: dict[str, Array]) -> N:
        """Return the network one step further down."""
        self._steps += 1
        first, second = 1.0 - 0.9**self._steps, 1.0 - 0.999**self._steps
        found = {}
        for name, by_number in gradient.items():
            mean = 0.9 * self._means.get(name, 0.0) + 0.1 * by_number
            square = 0.999 * self._squares.get(name, 0.0) + 0.001 * by_number**2
            self._means[name], self._squares[name] = mean, square
            moved = self.rate * (mean / first) / (np.sqrt(square / second) + 1e-8)
            found[name] = getattr(network, name) - moved
        return replace(network, **found)


def warm_up(
    network: Network,
    labels: Batch,
    *,
    seed: int,
    steps: int = 500,
    rate: float = 0.003,
    smooth: float = 0.0,
    size: int = 256,
) -> Network:
    """Imitate: cross-entropy of ``labels.wanted``, each label smoothed over what fits."""
    chance, adam = np.random.default_rng((seed, 43)), Adam(rate=rate)
    for _ in range(steps):
        part = labels.take(chance.integers(0, len(labels), size))
        uniform = part.mask / part.mask.sum(1, keepdims=True)
        wanted = (1.0 - smooth) * part.wanted + smooth * uniform
        done = forward(network, part)
        off = probabilities(done.scores, part.mask) - wanted
        network = adam.step(network, done.gradient(off / size))
    return network


def improve(
    network: Network,
    taken: Batch,
    advantages: Array,
    adam: Adam,
    chance: np.random.Generator,
    *,
    entropy: float = 0.01,
    epochs: int = 2,
    size: int = 512,
) -> Network:
    """Make steps with a positive advantage likelier, the others less likely.

    Args:
        network: that took the steps.
        taken: the steps, ``wanted`` 1 at the action.
        advantages: (N,), how much better than expected it went.
        adam: of this network.
        chance: orders the steps.
        entropy: weight of the bonus for being unsure.
        epochs: how often each step is used.
        size: of a minibatch, in steps.
    """
    before = _chances(network, taken)
    for _ in range(epochs):
        order = chance.permutation(len(taken))
        for begin in range(0, len(taken), size):
            chosen = order[begin : begin + size]
            part, gain = taken.take(chosen), advantages[chosen]
            done = forward(network, part)
            share = probabilities(done.scores, part.mask)
            ratio = (share * part.wanted).sum(1) / before[chosen]
            is_clipped = np.where(gain > 0.0, ratio > 1.0 + CLIP, ratio < 1.0 - CLIP)
            pull = np.where(is_clipped, 0.0, -gain * ratio)
            by_scores = pull[:, None] * (part.wanted - share)
            logs = np.log(np.maximum(share, TINY))
            disorder = -(share * logs).sum(1, keepdims=True)
            by_scores += entropy * share * (logs + disorder)
            network = adam.step(network, done.gradient(by_scores / len(part)))
    return network


def _chances(network: Network, taken: Batch) -> Array:
    """Probability of each step taken."""
    share = probabilities(forward(network, taken).scores, taken.mask)
    found: Array = np.maximum((share * taken.wanted).sum(1), TINY)
    return found
