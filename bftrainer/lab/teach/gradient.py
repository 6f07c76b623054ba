"""The network on many steps at once, and the gradient of a loss by its scores."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bftrainer.decide.policies.dl2_network import Array, Network
from bftrainer.lab.teach.batches import Batch


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pass:
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


def forward(network: Network, batch: Batch) -> Pass:
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
    return Pass(
        network=network,
        batch=batch,
        pool=pool,
        first=first,
        second=second.reshape(n_steps, places, width),
        scores=scores,
    )
