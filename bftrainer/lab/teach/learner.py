"""Trains a network: by the steps of another scheduler, and by what its own lead to.

Warm-up is DL2's (arXiv 1909.06040, section 4.2), cross-entropy against another scheduler's steps;
``smooth`` mixes in a uniform share, without which the network is so sure of itself that nothing
else is ever tried. ``improve`` is the clipped policy gradient of PPO (Schulman et al., arXiv
1707.06347, eq. 7) with an entropy bonus (DL2, section 4.3). Numbers are the same for the same seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np

from bftrainer.decide.policies.dl2_network import Array, Mask, Network, probabilities

CLIP = 0.2
TINY = 1e-12
Learnable = TypeVar("Learnable", bound="Numbers")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LearningStep:
    """One step of an allocation: what was seen, and what was, or should be, done."""

    rows: Array  # (J, F)
    mask: Mask  # (J K + 1,), actions that fit
    wanted: Array  # (J K + 1,), probabilities that sum to 1; of a step taken 1 at the action


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """N steps, padded with empty places to J trainers."""

    rows: Array  # (N, J, F)
    present: Array  # (N, J), 1 or 0
    mask: Mask  # (N, J K + 1)
    wanted: Array  # (N, J K + 1)

    def __len__(self) -> int:
        """Return N."""
        return len(self.rows)

    def take(self, places: Sequence[int] | np.ndarray) -> Batch:
        """Return some of the steps."""
        return Batch(
            rows=self.rows[places],
            present=self.present[places],
            mask=self.mask[places],
            wanted=self.wanted[places],
        )


def batch_of(steps: Sequence[LearningStep]) -> Batch:
    """Pad steps to the most trainers that one of them has."""
    features = steps[0].rows.shape[1]
    places = max(1, *(len(step.rows) for step in steps))
    per_row = max((len(step.mask) - 1) // len(step.rows) for step in steps if len(step.rows))
    n_actions = places * per_row + 1
    rows = np.zeros((len(steps), places, features))
    present = np.zeros((len(steps), places))
    mask = np.zeros((len(steps), n_actions), bool)
    targets = np.zeros((len(steps), n_actions))
    for i, step in enumerate(steps):
        n_rows, n_masked = len(step.rows), len(step.mask) - 1
        rows[i, :n_rows] = step.rows
        present[i, :n_rows] = 1.0
        # Void stays the last action of every step.
        mask[i, :n_masked], mask[i, -1] = step.mask[:-1], step.mask[-1]
        targets[i, :n_masked], targets[i, -1] = step.wanted[:-1], step.wanted[-1]
    return Batch(rows=rows, present=present, mask=mask, wanted=targets)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ForwardPass:
    """A pass through the network, with what its gradient needs."""

    network: Network
    batch: Batch
    pool: Array  # (N, F + 1)
    first: Array  # (N, J, W), after the first layer
    second: Array  # (N, J, W)
    scores: Array  # (N, J K + 1)

    def gradient(self, by_scores: Array) -> dict[str, Array]:
        """Return the loss's derivative by every number.

        Args:
            by_scores: (N, J K + 1), its derivative by each score.
        """
        net, rows = self.network, self.batch.rows
        n_steps, places, features = rows.shape
        width = len(net.bias_in)
        by_out = by_scores[:, :-1].reshape(n_steps * places, net.actions)
        by_void = by_scores[:, -1]
        by_second = (by_out @ net.out.T) * (self.second.reshape(-1, width) > 0.0)
        by_first = (by_second @ net.inner.T) * (self.first.reshape(-1, width) > 0.0)
        by_pool = by_first.reshape(n_steps, places, width).sum(1)
        return {
            "row_in": rows.reshape(-1, features).T @ by_first,
            "pool_in": self.pool.T @ by_pool,
            "bias_in": by_first.sum(0),
            "inner": self.first.reshape(-1, width).T @ by_second,
            "bias_inner": by_second.sum(0),
            "out": self.second.reshape(-1, width).T @ by_out,
            "bias_out": by_out.sum(0),
            "void": self.pool.T @ by_void,
            "bias_void": by_void.sum(keepdims=True),
        }


def forward(network: Network, batch: Batch) -> ForwardPass:
    """Score the actions of every step."""
    rows = batch.rows
    n_steps, places, features = rows.shape
    width = len(network.bias_in)
    pool = np.concatenate([rows.sum(1), batch.present.sum(1, keepdims=True)], 1) / network.window
    shared = pool @ network.pool_in + network.bias_in
    first = (rows.reshape(-1, features) @ network.row_in).reshape(n_steps, places, width)
    first = np.maximum(first + shared[:, None], 0.0)
    second = np.maximum(first.reshape(-1, width) @ network.inner + network.bias_inner, 0.0)
    scores = np.empty((n_steps, places * network.actions + 1))
    scores[:, :-1] = (second @ network.out + network.bias_out).reshape(n_steps, -1)
    scores[:, -1] = pool @ network.void + network.bias_void[0]
    return ForwardPass(
        network=network,
        batch=batch,
        pool=pool,
        first=first,
        second=second.reshape(n_steps, places, width),
        scores=scores,
    )


class Numbers(Protocol):
    """A dataclass whose fields are arrays, and others that are not learnt."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


@dataclass(slots=True, kw_only=True)
class Adam:
    """The optimizer Adam (Kingma and Ba, arXiv 1412.6980) of one network."""

    rate: float
    _steps: int = 0
    _means: dict[str, Array] = field(default_factory=dict)
    _squares: dict[str, Array] = field(default_factory=dict)

    def step(self, network: Learnable, gradient: dict[str, Array]) -> Learnable:
        """Return the network one step further down."""
        self._steps += 1
        # Both sums begin at 0: what they lack of a mean.
        of_mean, of_square = 1.0 - 0.9**self._steps, 1.0 - 0.999**self._steps
        numbers = {}
        for name, by_number in gradient.items():
            mean = 0.9 * self._means.get(name, 0.0) + 0.1 * by_number
            square = 0.999 * self._squares.get(name, 0.0) + 0.001 * by_number**2
            self._means[name], self._squares[name] = mean, square
            change = self.rate * (mean / of_mean) / (np.sqrt(square / of_square) + 1e-8)
            numbers[name] = getattr(network, name) - change
        return replace(network, **numbers)


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
        targets = (1.0 - smooth) * part.wanted + smooth * uniform
        forward_pass = forward(network, part)
        errors = probabilities(forward_pass.scores, part.mask) - targets
        network = adam.step(network, forward_pass.gradient(errors / size))
    return network


def improve(
    network: Network,
    steps_taken: Batch,
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
        steps_taken: the steps, ``wanted`` 1 at the action.
        advantages: (N,), how much better than expected it went.
        adam: of this network.
        chance: orders the steps.
        entropy: weight of the bonus for being unsure.
        epochs: how often each step is used.
        size: of a minibatch, in steps.
    """
    before = _chances(network, steps_taken)
    for _ in range(epochs):
        order = chance.permutation(len(steps_taken))
        for begin in range(0, len(steps_taken), size):
            places = order[begin : begin + size]
            part, gain = steps_taken.take(places), advantages[places]
            forward_pass = forward(network, part)
            share = probabilities(forward_pass.scores, part.mask)
            ratio = (share * part.wanted).sum(1) / before[places]
            is_clipped = np.where(gain > 0.0, ratio > 1.0 + CLIP, ratio < 1.0 - CLIP)
            pull = np.where(is_clipped, 0.0, -gain * ratio)
            by_scores = pull[:, None] * (part.wanted - share)
            logs = np.log(np.maximum(share, TINY))
            disorder = -(share * logs).sum(1, keepdims=True)
            by_scores += entropy * share * (logs + disorder)
            network = adam.step(network, forward_pass.gradient(by_scores / len(part)))
    return network


def _chances(network: Network, steps_taken: Batch) -> Array:
    """Probability of each step that was taken."""
    share = probabilities(forward(network, steps_taken).scores, steps_taken.mask)
    chances: Array = np.maximum((share * steps_taken.wanted).sum(1), TINY)
    return chances
