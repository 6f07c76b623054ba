"""The paper's own learner (sections 4.2 and 4.3): actor-critic with replay and exploration.

Two hidden layers of 256 over all rows at once; the reward of a slot is given to all its actions;
discount 0.9, Adam 0.0001, one update per slot of 256 samples of the last 8,192, entropy 0.1; in
three poor states the action is replaced with probability 0.4.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bftrainer.decide.policies.dl2_network import Array, Mask, probabilities
from bftrainer.lab.papers.dl2.cluster import Cluster, draw_trace
from bftrainer.lab.papers.dl2.setting import Setting, Speeds
from bftrainer.lab.papers.dl2.training import Acting
from bftrainer.lab.teach.learner import Adam, Batch

HIDDEN = 256
WARM_UP_RATE, WARM_UP_STEPS = 0.005, 400
RATE, DISCOUNT, ENTROPY = 0.0001, 0.9, 0.1
SAMPLE, REPLAY = 256, 8192
EXPLORATION = 0.4
POOR_RATIO = 10
TRACES = 100
LONGEST_SLOTS = 2000
TINY = 1e-12

# What was seen before and after the slot, mask, action, reward, and 1 if the trace goes on.
Experience = tuple[Array, Array, Mask, int, float, float]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Dense:
    """Three layers, ReLU between them; numpy arrays (inputs, outputs) and (outputs,)."""

    first: Array
    bias_first: Array
    second: Array
    bias_second: Array
    third: Array
    bias_third: Array

    def hidden(self, inputs: Array) -> tuple[Array, Array]:
        """Return what the hidden layers give."""
        layer_1 = np.maximum(inputs @ self.first + self.bias_first, 0.0)
        layer_2 = np.maximum(layer_1 @ self.second + self.bias_second, 0.0)
        return layer_1, layer_2

    def __call__(self, inputs: Array) -> Array:
        """Return the outputs."""
        _, layer_2 = self.hidden(inputs)
        return layer_2 @ self.third + self.bias_third

    def gradient(self, inputs: Array, by_outputs: Array) -> dict[str, Array]:
        """Return a loss's derivative by every number."""
        layer_1, layer_2 = self.hidden(inputs)
        by_layer_2 = (by_outputs @ self.third.T) * (layer_2 > 0.0)
        by_layer_1 = (by_layer_2 @ self.second.T) * (layer_1 > 0.0)
        return {
            "first": inputs.T @ by_layer_1,
            "bias_first": by_layer_1.sum(0),
            "second": layer_1.T @ by_layer_2,
            "bias_second": by_layer_2.sum(0),
            "third": layer_2.T @ by_outputs,
            "bias_third": by_outputs.sum(0),
        }


def dense(inputs: int, outputs: int, chance: np.random.Generator) -> Dense:
    """Return layers of uniform random numbers."""

    def draw(rows: int, columns: int) -> Array:
        return chance.uniform(-(rows**-0.5), rows**-0.5, (rows, columns))

    layers = {"first": (inputs, HIDDEN), "second": (HIDDEN, HIDDEN), "third": (HIDDEN, outputs)}
    numbers: dict[str, Array] = {}
    for name, shape in layers.items():
        numbers |= {name: draw(*shape), f"bias_{name}": draw(*shape)[0]}
    return Dense(**numbers)


class PublishedLearner:
    """Actor and critic of the paper."""

    def __init__(self, setting: Setting, speeds: Speeds, seed: int) -> None:
        """Begin with random numbers."""
        self._setting, self._speeds, self._seed = setting, speeds, seed
        self._chance = np.random.default_rng((seed, 53))
        self._actions = setting.window * setting.per_job + 1
        self._inputs = setting.window * setting.features
        self.actor = dense(self._inputs, self._actions, self._chance)
        self._critic = dense(self._inputs, 1, self._chance)

    def _flat(self, rows: Array) -> Array:
        """Pad to the window's places; (..., J, F) -> (..., inputs)."""
        flat = rows.reshape(*rows.shape[:-2], -1)
        padding = [(0, 0)] * (flat.ndim - 1) + [(0, self._inputs - flat.shape[-1])]
        return np.pad(flat, padding)

    def _wide(self, actions: np.ndarray) -> np.ndarray:
        """Pad what is there by action; void is the last."""
        wide = np.zeros((*actions.shape[:-1], self._actions), actions.dtype)
        wide[..., : actions.shape[-1] - 1] = actions[..., :-1]
        wide[..., -1] = actions[..., -1]
        return wide

    def scores(self, rows: Array) -> Array:
        """Score the actions of the jobs that are there, and void."""
        scores = self.actor(self._flat(rows))
        return np.append(scores[: len(rows) * self._setting.per_job], scores[-1])

    def warm_up(self, labels: Batch, steps: int | None = None) -> None:
        """Imitate (section 4.2)."""
        adam = Adam(rate=WARM_UP_RATE)
        for _ in range(WARM_UP_STEPS if steps is None else steps):
            part = labels.take(self._chance.integers(0, len(labels), SAMPLE))
            flat, mask = self._flat(part.rows), self._wide(part.mask)
            errors = probabilities(self.actor(flat), mask) - self._wide(part.wanted)
            self.actor = adam.step(self.actor, self.actor.gradient(flat, errors / SAMPLE))

    def learn(self, updates: int) -> None:
        """Learn from its own slots (section 4.3)."""
        memory = ReplayBuffer()
        for_actor, for_critic = Adam(rate=RATE), Adam(rate=RATE)
        n_updates, trace = 0, 0
        while n_updates < updates:
            seed = trace % TRACES
            cluster = Cluster(
                self._setting, self._speeds, draw_trace(self._setting, seed), self._seed + trace
            )
            trace += 1
            while not cluster.has_ended and n_updates < updates and cluster.now < LONGEST_SLOTS:
                self._play_slot(cluster, memory)
                if len(memory) >= 2 * SAMPLE:
                    self._update(memory, for_actor, for_critic)
                    n_updates += 1

    def _play_slot(self, cluster: Cluster, memory: ReplayBuffer) -> None:
        """Give the slot's actions its reward, and what is seen after it."""
        actions: list[tuple[Array, Mask, int]] = []

        def note(rows: Array, mask: Mask, action: int) -> None:
            if action == len(mask) - 1:
                action = self._actions - 1  # void is the last of the padded, too
            actions.append((self._flat(rows), self._wide(mask), action))

        act = Acting(
            scores=self.scores, chance=self._chance, on_action=note, override=self._explore
        )
        act(cluster)
        reward, after = cluster.end_slot(), self._flat(cluster.rows())
        for before, mask, action in actions:
            memory.add((before, after, mask, action, reward, float(not cluster.has_ended)))

    def _explore(self, cluster: Cluster, action: int, mask: Mask) -> int:
        """Replace the action in a poor state (section 4.3, job-aware exploration)."""
        if self._setting.has_servers and self._chance.random() < EXPLORATION:
            for i, job in enumerate(cluster.seen):
                lacks_server = job.workers > 1 and not job.servers
                lacks_worker = job.servers > 1 and not job.workers
                if lacks_server or (job.servers and job.workers > POOR_RATIO * job.servers):
                    cure = 3 * i + 1  # a server
                elif lacks_worker or (job.workers and job.servers > POOR_RATIO * job.workers):
                    cure = 3 * i  # a worker
                else:
                    continue
                return cure if mask[cure] else action
        return action

    def _update(self, memory: ReplayBuffer, for_actor: Adam, for_critic: Adam) -> None:
        flat, after, mask, actions, reward, goes_on = memory.draw(self._chance, SAMPLE)
        target = reward + DISCOUNT * goes_on * self._critic(after)[:, 0]
        value = self._critic(flat)[:, 0]
        by_value = 2.0 * (value - target)[:, None] / SAMPLE
        self._critic = for_critic.step(self._critic, self._critic.gradient(flat, by_value))
        share = probabilities(self.actor(flat), mask)
        is_action = np.zeros_like(share)
        is_action[np.arange(SAMPLE), actions] = 1.0
        logs = np.log(np.maximum(share, TINY))
        disorder = -(share * logs).sum(1, keepdims=True)
        by_scores = -(target - value)[:, None] * (is_action - share)
        by_scores += ENTROPY * share * (logs + disorder)
        self.actor = for_actor.step(self.actor, self.actor.gradient(flat, by_scores / SAMPLE))


class ReplayBuffer:
    """The last actions with what they led to."""

    def __init__(self) -> None:
        """Begin empty."""
        self._memory: list[Experience] = []
        self._n_added = 0

    def __len__(self) -> int:
        """Return how many are kept."""
        return len(self._memory)

    def add(self, experience: Experience) -> None:
        """Keep an action, in the place of the oldest if there are too many."""
        if len(self) < REPLAY:
            self._memory.append(experience)
        else:
            self._memory[self._n_added % REPLAY] = experience
        self._n_added += 1

    def draw(self, chance: np.random.Generator, size: int) -> list[np.ndarray]:
        """Return each of the six of actions that are drawn."""
        sample = [self._memory[i] for i in chance.integers(0, len(self), size)]
        return list(map(np.array, zip(*sample, strict=True)))
