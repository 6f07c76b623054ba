"""The learner of our own network: warm-up, then rollouts, action by action.

The paper's learner (``published_learner``) does not improve on its teacher here: some 50 actions
share one noisy reward. This learner differs: all rollouts of a trace see the same arrivals, so that
their mean return per slot explains what the arrivals caused; the reward of a slot is minus the
number of jobs; updates are clipped; labels are smoothed; one small network serves every job.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from bftrainer.decide.policies.dl2_network import Array, Mask, Network, fresh, probabilities
from bftrainer.lab.papers.dl2.cluster import TASKS, Cluster, Dl2Job, draw_trace, play
from bftrainer.lab.papers.dl2.setting import Setting, Speeds
from bftrainer.lab.teach.learner import Adam, Batch, LearningStep, batch_of, improve, warm_up

WIDTH = 48
TRAINING = range(100)  # seeds of traces
IMITATED = TRAINING[:20]
VALIDATION = range(1000, 1004)
ROLLOUTS = 4
MOST_STEPS = 6000  # of an iteration
LONGEST_SLOTS = 400
DISCOUNT = 0.97
EVERY = 10  # iterations between validations

Scores = Callable[[Array], Array]  # (J, F) -> (J K + 1,)
OnAction = Callable[[Array, Mask, int], None]  # rows and mask before an action, and the action
Override = Callable[[Cluster, int, Mask], int]  # another action than the one chosen
Teacher = Callable[..., None]  # a rule with ``on_step``


@dataclass(slots=True, kw_only=True)
class Acting:
    """A network's rule; actions are drawn, as in the paper."""

    scores: Scores
    chance: np.random.Generator
    on_action: OnAction | None = None
    override: Override | None = None

    def __call__(self, cluster: Cluster) -> None:
        """Hand out a slot's tasks."""
        cluster.give_first_tasks()
        if not cluster.seen:
            return
        rows, mask, per_job = cluster.rows(), cluster.mask(), cluster.setting.per_job
        void = len(mask) - 1
        while mask[:-1].any():
            action = self._choose(rows, mask)
            if self.override is not None:
                action = self.override(cluster, action, mask)
            if action == void:
                if self.on_action is not None:
                    self.on_action(rows, mask, void)
                return
            place, task = divmod(action, per_job)
            job = cluster.seen[place]
            if self.on_action is not None:
                # A task that does not fit is no experience: nothing has been learnt of it.
                before = rows.copy(), mask.copy()
            if not cluster.give(job, *TASKS[task]):
                return
            if self.on_action is not None:
                self.on_action(*before, action)
            rows[place] = cluster.row(job)
            mask[per_job * place : per_job * (place + 1)] = cluster.allowed(job)

    def _choose(self, rows: Array, mask: Mask) -> int:
        sums = probabilities(self.scores(rows), mask).cumsum()
        action = int(np.searchsorted(sums, self.chance.random() * sums[-1], side="right"))
        return min(action, len(sums) - 1)


def step_of(rows: Array, mask: Mask, action: int) -> LearningStep:
    """Return a step whose wanted action is the one taken."""
    target = np.zeros(len(mask))
    target[action] = 1.0
    return LearningStep(rows=rows, mask=mask, wanted=target)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Learnt:
    """The networks and the learning curve of one run."""

    warmed_up: Network
    best: Network  # of all validations
    last: Network
    curve: tuple[tuple[int, float], ...]  # iteration, validation's mean completion time


def labels_of(setting: Setting, speeds: Speeds, teacher: Teacher) -> Batch:
    """Return the teacher's steps on the traces for imitation (section 4.2)."""
    steps: list[LearningStep] = []

    def note(job: Dl2Job, tasks: tuple[int, int]) -> None:
        """Note a step before its tasks are placed; jobs beyond the window are not seen."""
        if job in cluster.seen:
            action = cluster.seen.index(job) * setting.per_job + TASKS.index(tasks)
            steps.append(step_of(cluster.rows(), cluster.mask(), action))

    for seed in IMITATED:
        cluster = Cluster(setting, speeds, draw_trace(setting, seed))
        while not cluster.has_ended:
            teacher(cluster, on_step=note)
            if cluster.seen:  # it stops here
                mask = cluster.mask()
                steps.append(step_of(cluster.rows(), mask, len(mask) - 1))
            cluster.end_slot()
    return batch_of(steps)


def evaluate(setting: Setting, speeds: Speeds, scores: Scores, seeds: range) -> tuple[float, ...]:
    """Return the mean completion time of each trace, in slots."""
    times = []
    for seed in seeds:
        cluster = Cluster(setting, speeds, draw_trace(setting, seed), seed)
        times.append(play(cluster, Acting(scores=scores, chance=np.random.default_rng(seed))))
    return tuple(times)


def imitate(
    setting: Setting, speeds: Speeds, teacher: Teacher, seed: int, smooth: float = 0.0
) -> Network:
    """Return a network that does what the teacher does."""
    network = fresh(setting.features, setting.per_job, setting.window, WIDTH, seed)
    return warm_up(network, labels_of(setting, speeds, teacher), seed=seed, smooth=smooth)


def learn(
    setting: Setting,
    speeds: Speeds,
    teacher: Teacher,
    *,
    seed: int,
    iterations: int,
    smooth: float = 0.2,
    rate: float = 0.002,
) -> Learnt:
    """Warm up and improve; the best validation's network is kept."""
    network = warmed_up = best = imitate(setting, speeds, teacher, seed, smooth)
    adam, chance = Adam(rate=rate), np.random.default_rng((seed, 47))
    validate = partial(evaluate, setting, speeds, seeds=VALIDATION)
    shortest = float(np.mean(validate(network.scores)))
    curve = [(0, shortest)]
    for iteration in range(1, iterations + 1):
        steps, advantages = _experience(setting, speeds, network, chance)
        network = improve(network, batch_of(steps), advantages, adam, chance)
        if iteration % EVERY == 0:
            completion = float(np.mean(validate(network.scores)))
            curve.append((iteration, completion))
            if completion < shortest:
                shortest, best = completion, network
    return Learnt(warmed_up=warmed_up, best=best, last=network, curve=tuple(curve))


def _experience(
    setting: Setting, speeds: Speeds, network: Network, chance: np.random.Generator
) -> tuple[list[LearningStep], Array]:
    """Play one trace several times; return steps with how much better than the mean they led."""
    trace = int(chance.integers(len(TRAINING)))
    rollouts = [
        _rollout(setting, speeds, network, TRAINING[trace], chance) for _ in range(ROLLOUTS)
    ]
    returns = np.zeros((ROLLOUTS, max(map(len, rollouts)) + 1))
    for i, slots in enumerate(rollouts):
        for k, (_, reward) in reversed(list(enumerate(slots))):
            returns[i, k] = reward + DISCOUNT * returns[i, k + 1]
    better = returns - returns.mean(0)
    better /= better[:, :-1].std() + 1e-6
    steps: list[LearningStep] = []
    gains: list[float] = []
    for i, slots in enumerate(rollouts):
        for k, (slot_steps, _) in enumerate(slots):
            steps += slot_steps
            gains += [better[i, k]] * len(slot_steps)
    advantages = np.array(gains)
    if len(steps) > MOST_STEPS:
        sample = chance.choice(len(steps), MOST_STEPS, replace=False)
        steps, advantages = [steps[i] for i in sample], advantages[sample]
    return steps, advantages


def _rollout(
    setting: Setting, speeds: Speeds, network: Network, trace: int, chance: np.random.Generator
) -> list[tuple[list[LearningStep], float]]:
    """Play a trace; return steps and reward of each slot."""
    cluster = Cluster(setting, speeds, draw_trace(setting, trace), trace)
    steps: list[LearningStep] = []
    act = Acting(
        scores=network.scores,
        chance=chance,
        on_action=lambda rows, mask, action: steps.append(step_of(rows, mask, action)),
    )
    slots: list[tuple[list[LearningStep], float]] = []
    while not cluster.has_ended and cluster.now < LONGEST_SLOTS:
        steps = []
        act(cluster)
        cluster.end_slot()
        slots.append((steps, -float(len(cluster.active))))
    return slots
