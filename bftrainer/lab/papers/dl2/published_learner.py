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
from bftrainer.lab.papers.dl2.setting import Setting
from bftrainer.lab.papers.dl2.speeds import Speeds
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
        one = np.maximum(inputs @ self.first + self.bias_first, 0.0)
        return one, np.maximum(one @ self.second + self.bias_second, 0.0)

    def __call__(self, inputs: Array) -> Array:
        """Return the outputs."""
        return self.hidden(inputs)[1] @ self.third + self.bias_third

    def gradient(self, inputs: Array, by_outputs: Array) -> dict[str, Array]:
        """Return a loss's derivative by every number."""
        one, two = self.hidden(inputs)
        by_two = (by_outputs @ self.third.T) * (two > 0.0)
        by_one = (by_two @ self.second.T) * (one > 0.0)
        return {
            "first": inputs.T @ by_one,
            "bias_first": by_one.sum(0),
            "second": one.T @ by_two,
            "bias_second": by_two.sum(0),
            "third": two.T @ by_outputs,
            "bias_third": by_outputs.sum(0),
        }


def dense(inputs: int, outputs: int, chance: np.random.Generator) -> Dense:
    """Return layers of uniform random numbers."""

    def draw(rows: int, *columns: int) -> Array:
        return chance.uniform(-(rows**-0.5), rows**-0.5, (rows, *columns))

    return Dense(
        first=draw(inputs, HIDDEN),
        bias_first=draw(inputs, HIDDEN)[0],
        second=draw(HIDDEN, HIDDEN),
        bias_second=draw(HIDDEN, HIDDEN)[0],
        third=draw(HIDDEN, outputs),
        bias_third=draw(HIDDEN, outputs)[0],
    )


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

    def scores(self, rows: Array) -> Array:
        """Score the actions of the jobs that are there, and void."""
        flat = np.zeros(self._inputs)
        flat[: rows.size] = rows.reshape(-1)
        found = self.actor(flat)
        return np.append(found[: len(rows) * self._setting.per_job], found[-1])

    def warm_up(self, labels: Batch) -> None:
        """Imitate (section 4.2)."""
        adam = Adam(rate=WARM_UP_RATE)
        for _ in range(WARM_UP_STEPS):
            part = labels.take(self._chance.integers(0, len(labels), SAMPLE))
            flat, mask, wanted = self._flat(part)
            off = probabilities(self.actor(flat), mask) - wanted
            self.actor = adam.step(self.actor, self.actor.gradient(flat, off / SAMPLE))

    def _flat(self, part: Batch) -> tuple[Array, Mask, Array]:
        """Pad to the window's places."""
        n_steps, places, features = part.rows.shape
        flat = np.zeros((n_steps, self._inputs))
        flat[:, : places * features] = part.rows.reshape(n_steps, -1)
        mask = np.zeros((n_steps, self._actions), bool)
        wanted = np.zeros((n_steps, self._actions))
        n_actions = places * self._setting.per_job
        for target, given in ((mask, part.mask), (wanted, part.wanted)):
            target[:, :n_actions], target[:, -1] = given[:, :-1], given[:, -1]
        return flat, mask, wanted

    def learn(self, updates: int) -> None:
        """Learn from its own slots (section 4.3)."""
        memory = ReplayBuffer(self._inputs, self._actions)
        for_actor, for_critic = Adam(rate=RATE), Adam(rate=RATE)
        done, trace = 0, 0
        while done < updates:
            seed = trace % TRACES
            cluster = Cluster(
                self._setting, self._speeds, draw_trace(self._setting, seed), self._seed + trace
            )
            trace += 1
            while not cluster.has_ended and done < updates and cluster.now < LONGEST_SLOTS:
                memory.begin_slot()
                Acting(
                    scores=self.scores,
                    chance=self._chance,
                    on_action=memory.note,
                    override=self._explore,
                )(cluster)
                reward = cluster.end_slot()
                memory.end_slot(cluster.rows(), reward, is_last=cluster.has_ended)
                if len(memory) >= 2 * SAMPLE:
                    self._update(memory, for_actor, for_critic)
                    done += 1

    def _explore(self, cluster: Cluster, action: int, mask: Mask) -> int:
        """Replace the action in a poor state (section 4.3, job-aware exploration)."""
        if self._setting.has_servers and self._chance.random() < EXPLORATION:
            for i, job in enumerate(cluster.seen):
                lacks_server = job.workers > 1 and not job.servers
                lacks_worker = job.servers > 1 and not job.workers
                if lacks_server or (job.servers and job.workers > POOR_RATIO * job.servers):
                    wanted = 3 * i + 1
                elif lacks_worker or (job.workers and job.servers > POOR_RATIO * job.workers):
                    wanted = 3 * i
                else:
                    continue
                return wanted if mask[wanted] else action
        return action

    def _update(self, memory: ReplayBuffer, for_actor: Adam, for_critic: Adam) -> None:
        flat, after, mask, taken, reward, goes_on = memory.draw(self._chance, SAMPLE)
        target = reward + DISCOUNT * goes_on * self._critic(after)[:, 0]
        value = self._critic(flat)[:, 0]
        by_value = 2.0 * (value - target)[:, None] / SAMPLE
        self._critic = for_critic.step(self._critic, self._critic.gradient(flat, by_value))
        share = probabilities(self.actor(flat), mask)
        chosen = np.zeros_like(share)
        chosen[np.arange(SAMPLE), taken] = 1.0
        logs = np.log(np.maximum(share, TINY))
        disorder = -(share * logs).sum(1, keepdims=True)
        by_scores = -(target - value)[:, None] * (chosen - share)
        by_scores += ENTROPY * share * (logs + disorder)
        self.actor = for_actor.step(self.actor, self.actor.gradient(flat, by_scores / SAMPLE))


class ReplayBuffer:
    """The last actions, with what was seen before and after their slot."""

    def __init__(self, inputs: int, actions: int) -> None:
        """Begin empty."""
        self._before = np.zeros((REPLAY, inputs))
        self._after = np.zeros((REPLAY, inputs))
        self._mask = np.zeros((REPLAY, actions), bool)
        self._taken = np.zeros(REPLAY, int)
        self._reward, self._goes_on = np.zeros(REPLAY), np.zeros(REPLAY)
        self._at, self._filled = 0, 0
        self._slot: list[int] = []

    def __len__(self) -> int:
        """Return how many are kept."""
        return self._filled

    def begin_slot(self) -> None:
        """Forget which actions were the slot's."""
        self._slot = []

    def note(self, rows: Array, mask: Mask, action: int) -> None:
        """Keep an action; void is the last."""
        at = self._at
        self._before[at], self._mask[at] = 0.0, False
        self._before[at, : rows.size] = rows.reshape(-1)
        self._mask[at, : len(mask) - 1], self._mask[at, -1] = mask[:-1], mask[-1]
        self._taken[at] = len(self._mask[at]) - 1 if action == len(mask) - 1 else action
        self._slot.append(at)
        self._at, self._filled = (at + 1) % REPLAY, min(self._filled + 1, REPLAY)

    def end_slot(self, rows: Array, reward: float, *, is_last: bool) -> None:
        """Give the slot's actions its reward, and what is seen after it."""
        after = np.zeros(self._after.shape[1])
        after[: rows.size] = rows.reshape(-1)
        self._after[self._slot] = after
        self._reward[self._slot], self._goes_on[self._slot] = reward, float(not is_last)

    def draw(
        self, chance: np.random.Generator, size: int
    ) -> tuple[Array, Array, Mask, np.ndarray, Array, Array]:
        """Return before, after, mask, action, reward and whether it goes on."""
        i = chance.integers(0, self._filled, size)
        before, after, mask = self._before[i], self._after[i], self._mask[i]
        return before, after, mask, self._taken[i], self._reward[i], self._goes_on[i]
