"""Trains a network from start to end: source, warm-up, rollouts, comparison with the old network.

Episodes to learn from are stretches of a pool's history, recorded or drawn. Lessons are a teacher's
decisions as single steps. A teacher says how many nodes each trainer has, not in which order they
were handed out. So any trainer that still lacks nodes is as right as another: the label of a step
is spread over all of them, and one of them, drawn at random, is taken.

All rollouts of an episode see the same pool and the same arrivals, so that their mean return at a
time explains what those caused. The return is minus the trainers in the system from then on,
discounted over two hours.

Validation chooses among the networks of a run. The one chosen is used only if it beats its teacher
and its predecessor on episodes that neither learning nor choosing has seen.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from bftrainer.batch.traces.fragments import HOUR_S, Fragments
from bftrainer.batch.traces.generator import GeneratorParameters, generate
from bftrainer.decide.decision import decide
from bftrainer.decide.policies.base import (
    AllocationPolicy,
    Context,
    Decided,
    Traits,
    load_policy,
    options_of,
)
from bftrainer.decide.policies.distribution import Handing
from bftrainer.decide.policies.dl2 import FEATURES, WINDOW, Best, Dl2Options, Dl2Policy, Filling
from bftrainer.decide.policies.dl2_network import Array, Mask, Network, fresh, probabilities
from bftrainer.lab.simulator.paper import PaperModel
from bftrainer.lab.simulator.replay import Replay
from bftrainer.lab.simulator.session import Choices, settings_of
from bftrainer.lab.simulator.trainers import Tally
from bftrainer.lab.teach.learner import Adam, LearningStep, batch_of, improve, warm_up
from bftrainer.lab.workloads import Submission, diverse
from bftrainer.lab.yesterday import Availability
from bftrainer.model.decision import DecisionInput, DecisionRecord, Plan
from bftrainer.model.errors import UsageError
from milp.problem import Problem, names_of

# Of a journal
PARTS = 10  # that its time is cut into
LEAST_DECISIONS = 50

# Of drawn episodes
HOURS = 4.0
N_TRAINERS = 40
MEAN_ARRIVAL_S = 240.0
NODES = (8, 16, 32, 64)
HOLES_PER_NODE_H = 3.0
SPREAD = 1.0  # of the logarithm of a length
MEAN_NODE_S = 3600.0  # a trainer's length on one node
# Seeds; the first of those for learning are also played by the teacher.
LEARNING, WATCHED, VALIDATION, JUDGING = range(60), 20, range(1000, 1008), range(2000, 2012)

# Of rollouts
ROLLOUTS = 4
MOST_STEPS = 4000
FADES_S = 7200.0
GRID = 400

# Of the network and its warm-up
WIDTH = 48
MOST_LABELS = 20_000
SMOOTH, RATE = 0.1, 0.001
EVERY = 10  # iterations between validations


def steps_of(
    problem: Problem, context: Context, sizes: Mapping[str, int], chance: np.random.Generator
) -> list[LearningStep]:
    """Return the steps from an empty pool to these sizes, void at last."""
    filling = Filling(Handing(problem, admits=True), context)
    handing, steps = filling.handing, list[LearningStep]()

    def choose(rows: Array, mask: Mask) -> int:
        lacks_nodes = []
        for j in filling.seen:
            goal = sizes.get(handing.trainers[j].trainer_id, 0)
            lacks_nodes.append(goal > handing.size(j))
        is_right = np.array([*lacks_nodes, False]) & mask
        if not is_right.any():
            is_right[-1] = True
        steps.append(LearningStep(rows=rows, mask=mask, wanted=is_right / is_right.sum()))
        return int(chance.choice(np.flatnonzero(is_right)))

    filling.run(choose)
    return steps


class Watched:
    """A teacher whose decisions are noted as steps."""

    def __init__(self, teacher: AllocationPolicy, options: object, seed: int) -> None:
        """Watch a teacher.

        Args:
            teacher: that decides.
            options: its own; those of the caller are dl2's.
            seed: of the order of steps.
        """
        self._teacher, self._options = teacher, options
        self._chance = np.random.default_rng((seed, 61))
        self.steps: list[LearningStep] = []
        self.name = teacher.name
        # dl2 compares times of trainers, so their curves are comparable whoever teaches.
        self.traits: Traits = replace(teacher.traits, options=type(options), reads_rates=True)

    def allocate(self, problem: Problem, context: Context, /) -> Decided:
        """Let the teacher decide."""
        decision = self._teacher.allocate(problem, context)
        sizes = decision.allocation.sizes()
        its_context = replace(context, options=Dl2Options())
        self.steps += steps_of(problem, its_context, sizes, self._chance)
        return decision


class _Asked:
    """Notes the problem of a decision; no trainer gets a node."""

    name = "asked"
    traits = Traits(admits=True, reads_rates=True, follows_curves=False)

    def __init__(self) -> None:
        self.seen: tuple[Problem, Context] | None = None

    def allocate(self, problem: Problem, context: Context, /) -> Decided:
        """Note the first problem of a decision."""
        self.seen = self.seen or (problem, context)
        return Handing(problem, admits=True).answer(self.name, lambda _: ())


@dataclass(slots=True, kw_only=True)
class FromJournal:
    """The steps and episodes read from a journal."""

    steps: list[LearningStep] = field(default_factory=list)
    teachers: Counter[str] = field(default_factory=Counter)  # policy -> decisions
    episodes: tuple[Episode, ...] = ()


def read(records: Iterable[DecisionRecord], *, seed: int) -> FromJournal:
    """Read a journal's decisions.

    Raises:
        UsageError: BFT-4180, there are too few of them.
    """
    chance, lessons = np.random.default_rng((seed, 67)), FromJournal()
    pool, n_decisions = Availability(), 0
    trainers: dict[str, tuple[float, Submission]] = {}  # with the time of submission
    for record in records:
        settings = replace(record.input.settings, policy="asked", policy_options={})
        question = _Asked()
        decide(replace(record.input, settings=settings), question)
        if question.seen is None:
            continue
        problem, context = question.seen
        sizes = Counter(record.plan.assignment.values())
        context = replace(context, options=Dl2Options())
        lessons.steps += steps_of(problem, context, sizes, chance)
        lessons.teachers[record.input.settings.policy] += 1
        n_decisions += 1
        pool.note(record.input.now_s, frozenset(names_of(problem.nodes)))
        for trainer in problem.trainers:
            progress = context.trainers[trainer.trainer_id]
            submission = Submission(
                submit_s=0.0,
                name=trainer.trainer_id,
                n_min=trainer.n_min,
                n_max=trainer.n_max,
                samples=max(1.0, progress.done_samples + (progress.left_samples or 0.0)),
                curve=trainer.curve,
                rescale_up_s=trainer.rescale_up_s,
                rescale_down_s=trainer.rescale_down_s,
                weight=trainer.weight or 1.0,
            )
            trainers[trainer.trainer_id] = progress.submitted_s, submission
    if n_decisions < LEAST_DECISIONS:
        raise UsageError(
            "BFT-4180",
            f"The journal holds {n_decisions} decisions with nodes and trainers; to learn from it "
            f"takes {LEAST_DECISIONS}.",
            "Wait until the daemon has decided more often, or leave out --from to learn from "
            "drawn pools.",
        )
    lessons.episodes = _episodes(pool, trainers)
    return lessons


def _episodes(
    pool: Availability, trainers: Mapping[str, tuple[float, Submission]]
) -> tuple[Episode, ...]:
    """Cut the time into parts; in each those trainers take part that were submitted in it."""
    begin_s, last_s = pool.begin_s, pool.end_s + 1.0
    whole = pool.trace(last_s)
    everywhere = slice(0, len(whole.names))
    part_s, episodes = (last_s - begin_s) / PARTS, []
    for part in range(PARTS):
        from_s = begin_s + part * part_s
        trace = whole.restrict(everywhere, start_s=from_s, hours=part_s / HOUR_S)
        submissions = []
        for submitted_s, submission in trainers.values():
            if submitted_s < from_s + part_s:
                at_s = max(0.0, submitted_s - from_s)
                submissions.append(replace(submission, submit_s=at_s))
        submissions.sort(key=lambda submission: (submission.submit_s, submission.name))
        if submissions and len(trace):
            episodes.append(Episode(trace=trace, submissions=tuple(submissions)))
    return tuple(episodes)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Episode:
    """A stretch of a pool's history with submissions to play on it."""

    trace: Fragments
    submissions: tuple[Submission, ...]
    p_jmax: int = 40
    t_fwd_s: float = 120.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Played:
    """The times at which trainers entered and left the system."""

    begin_s: float
    end_s: float
    submitted_s: Array
    finished_s: Array  # the end for those that did not finish

    def in_system(self, at_s: Array) -> Array:
        """Return how many trainers were there at each time."""
        n_came = np.searchsorted(np.sort(self.submitted_s), at_s, side="right")
        n_went = np.searchsorted(np.sort(self.finished_s), at_s, side="right")
        n_there: Array = (n_came - n_went).astype(np.float64)
        return n_there

    @property
    def mean_s(self) -> float:
        """Mean time in the system, up to the end."""
        return float((self.finished_s - self.submitted_s).mean())


def play(
    episode: Episode,
    policy: AllocationPolicy,
    on_plan: Callable[[DecisionInput, Plan], None] | None = None,
) -> Played:
    """Play an episode with the paper's cost model."""
    choices = Choices(policy=policy.name, p_jmax=episode.p_jmax, t_fwd_s=episode.t_fwd_s)
    outcome = Replay(
        episode.trace,
        episode.submissions,
        settings=settings_of(choices),
        policy=policy,
        books=PaperModel(Tally()),
        on_plan=on_plan,
    ).run()
    begin_s, end_s = episode.trace.span_s
    submitted_s, finished_s = [], []
    for trainer in outcome.trainers:
        submitted_s.append(trainer.record.submitted_s)
        finished_s.append(end_s if trainer.finished_s is None else trainer.finished_s)
    return Played(
        begin_s=begin_s,
        end_s=end_s,
        submitted_s=np.array(submitted_s),
        finished_s=np.array(finished_s),
    )


def draw(seed: int) -> Episode:
    """Draw an episode; the same seed gives the same."""
    chance = np.random.default_rng((seed, 59))
    n_nodes = int(chance.choice(NODES))
    trace = generate(
        GeneratorParameters(
            n_nodes=n_nodes,
            machine_nodes=n_nodes,
            hours=HOURS,
            holes_per_hour=HOLES_PER_NODE_H * n_nodes,
            length_scale_s=300.0,
            seed=seed,
        )
    )
    # The load follows the pool, so that there is always something to decide.
    arrivals = MEAN_ARRIVAL_S * max(NODES) / n_nodes / 4
    workload = diverse(n_trainers=N_TRAINERS, seed=seed, mean_arrival_s=arrivals)
    lengths = chance.lognormal(np.log(MEAN_NODE_S) - SPREAD**2 / 2, SPREAD, N_TRAINERS)
    submissions = []
    for submission, length in zip(workload, lengths, strict=True):
        if submission.submit_s < HOURS * 3600.0:
            samples = max(1.0, length * submission.curve.samples_per_s[0])
            submissions.append(replace(submission, samples=samples))
    return Episode(trace=trace, submissions=tuple(submissions))


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
        is_action = np.zeros(len(share))
        is_action[action] = 1.0
        self._open.append(LearningStep(rows=rows, mask=mask, wanted=is_action))
        return action

    def decided(self, question: DecisionInput, _: Plan) -> None:
        """Note when the steps were taken."""
        for step in self._open:
            self.steps.append((question.now_s, step))
        self._open = []


def returns(played: Played) -> tuple[Array, Array]:
    """Return times and the discounted return from each on."""
    at_s = np.linspace(played.begin_s, played.end_s, GRID)
    span_s = at_s[1] - at_s[0]
    fade, values = np.exp(-span_s / FADES_S), np.zeros(GRID)
    waiting = played.in_system(at_s)
    for i in reversed(range(GRID - 1)):
        values[i] = -waiting[i] * span_s + fade * values[i + 1]
    return at_s, values


def improved(
    network: Network, episode: Episode, adam: Adam, chance: np.random.Generator
) -> Network:
    """Return the network after one episode."""
    drawings = [_Drawing(network, chance) for _ in range(ROLLOUTS)]
    rows = []
    for drawing in drawings:
        policy = Dl2Policy(drawing.choose, goes_on=False)
        at_s, values = returns(play(episode, policy, on_plan=drawing.decided))
        rows.append(values)
    better = np.array(rows) - np.mean(rows, axis=0)
    better /= better.std() + 1e-6
    steps: list[LearningStep] = []
    gains: list[float] = []
    for drawing, its_better in zip(drawings, better, strict=True):
        for now_s, step in drawing.steps:
            steps.append(step)
            # All rollouts have the same times: those of the episode.
            gains.append(float(np.interp(now_s, at_s, its_better)))
    if not steps:
        return network
    advantages = np.array(gains)
    if len(steps) > MOST_STEPS:
        sample = chance.choice(len(steps), MOST_STEPS, replace=False)
        steps, advantages = [steps[i] for i in sample], advantages[sample]
    return improve(network, batch_of(steps), advantages, adam, chance)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Episodes:
    """The episodes for learning, for choosing and for judging a network."""

    learning: Sequence[Episode]
    validation: Sequence[Episode]
    judging: Sequence[Episode]


def split(episodes: Sequence[Episode]) -> Episodes:
    """Split episodes in order of time: the last are for judging, those before for choosing."""
    fifth = max(1, len(episodes) // 5)
    return Episodes(
        learning=episodes[: -2 * fifth],
        validation=episodes[-2 * fifth : -fifth],
        judging=episodes[-fifth:],
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
        sample = chance.choice(len(labels), MOST_LABELS, replace=False)
        labels = [labels[i] for i in sample]
    network = fresh(FEATURES, 1, WINDOW, WIDTH, seed)
    network = best = warm_up(network, batch_of(labels), seed=seed, smooth=SMOOTH)
    teacher = next(iter(rivals.values()))
    lowest = ratio(policy_of(network), teacher, episodes.validation)
    curve = [(0, lowest)]
    for iteration in range(1, iterations + 1):
        episode = episodes.learning[int(chance.integers(len(episodes.learning)))]
        network = improved(network, episode, adam, chance)
        if iteration % EVERY == 0:
            time_ratio = ratio(policy_of(network), teacher, episodes.validation)
            curve.append((iteration, time_ratio))
            if time_ratio < lowest:
                lowest, best = time_ratio, network
        on_progress(iteration / iterations)
    against = {}
    for name, rival in rivals.items():
        against[name] = ratio(policy_of(best), rival, episodes.judging)
    return Taught(network=best, against=against, curve=tuple(curve))


def policy_of(network: Network) -> Dl2Policy:
    """Return the policy as it decides with a network."""
    return Dl2Policy(Best(network))


def ratio(ours: AllocationPolicy, rival: AllocationPolicy, episodes: Sequence[Episode]) -> float:
    """Return the geometric mean over episodes of the time in the system, ours over the rival's."""
    ratios = [play(episode, ours).mean_s / play(episode, rival).mean_s for episode in episodes]
    return float(np.exp(np.mean(np.log(ratios))))


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
    learning = list(map(draw, LEARNING))
    for episode in learning[:WATCHED]:
        play(episode, watched)
    episodes = Episodes(
        learning=learning,
        validation=list(map(draw, VALIDATION)),
        judging=list(map(draw, JUDGING)),
    )
    return Source(teacher=policy, labels=watched.steps, episodes=episodes)


def of_journal(path: Path, seed: int) -> Source:
    """Read a daemon's journal; the daemon may be running.

    Raises:
        UsageError: BFT-4180, it holds too few decisions.
    """
    from bftrainer.journal.decisions import DecisionReader  # noqa: PLC0415 - SQLAlchemy is slow
    from bftrainer.journal.journal import Journal  # noqa: PLC0415

    with Journal.open(path, clock=time.time, is_verified=False) as journal:
        decisions = journal.entries("decision")
        lessons = read(map(DecisionReader().read, decisions), seed=seed)
    [(teacher, _)] = lessons.teachers.most_common(1)
    episodes = split(lessons.episodes)
    return Source(teacher=load_policy(teacher), labels=lessons.steps, episodes=episodes)
