"""Rules for T_fwd and for what nodes are expected to stay, and policies that follow them.

A ``Rule`` takes a problem and what was seen so far, returns the problem as the solver is
to see it. ``Foresight`` is a policy that keeps the history of the nodes it is shown,
applies a rule and solves exactly. The replay tells it the time through its books: no rule
but the oracles knows the future. Called by ``bench_t_fwd``.
"""

from __future__ import annotations

import dataclasses
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from _bench.joins import Joins, look, until_next_join_s
from _bench.lengths import Lengths, observe
from _bench.survival import Survival, fit
from bftrainer.decide.policies.base import AllocationPolicy, Context, Decided, Traits
from bftrainer.decide.policies.milp import MilpPolicy
from bftrainer.simulate.paper import PaperModel
from bftrainer.simulate.physical import PhysicalModel
from bftrainer.simulate.replay import Outcome, Replay
from bftrainer.simulate.session import Choices, settings_of
from bftrainer.simulate.tally import Tally
from bftrainer.simulate.traces.fragments import Fragments
from bftrainer.simulate.workloads.submission import Submission
from milp.problem import Problem, ProblemNode
from milp.worth import allocation_value

FAR_S = 3600.0  # nobody plans further ahead than that
DAY_S = 86400.0
GRID_S = tuple(10.0 * 1.3**k for k in range(24))  # up to about FAR_S, for integrals


class Clock:
    """What time it is in the replay."""

    now_s = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What a rule may know."""

    now_s: float
    seen: Lengths
    survival: Survival
    joins_per_s: float  # nodes
    join_gap_s: float  # between two events at which nodes join
    truth: Truth  # for oracles only

    def age_s(self, name: str) -> float:
        """How long a node has been in the pool."""
        return self.now_s - self.seen.since_s[name]

    def stays_s(self, names: Iterable[str], within_s: float) -> dict[str, float]:
        """Expected remaining time of nodes; those that came together are asked for once."""
        by_age: dict[float, float] = {}
        found: dict[str, float] = {}
        for name in names:
            age_s = self.age_s(name)
            if age_s not in by_age:
                by_age[age_s] = self.survival.expected_s(age_s, within_s)
            found[name] = by_age[age_s]
        return found


Rule = Callable[[Problem, View], Problem]


class Truth:
    """When each node really leaves."""

    def __init__(self, trace: Fragments) -> None:
        self._starts: dict[str, list[float]] = {}
        self._ends: dict[str, list[float]] = {}
        names = trace.names
        rows = zip(trace.node.tolist(), trace.start_s.tolist(), trace.end_s.tolist(), strict=True)
        for node, start_s, end_s in rows:
            name = names[node]
            if self._ends.get(name, [-math.inf])[-1] == start_s:
                self._ends[name][-1] = end_s  # one idle time in two parts
                continue
            self._starts.setdefault(name, []).append(start_s)
            self._ends.setdefault(name, []).append(end_s)

    def stays_s(self, name: str, now_s: float) -> float:
        """How long the node stays from now on."""
        return self._ends[name][bisect_right(self._starts[name], now_s) - 1] - now_s


class Foresight:
    """The exact policy on the problem as a rule puts it."""

    name = "milp"
    traits = Traits()

    def __init__(self, rule: Rule, clock: Clock, truth: Truth) -> None:
        self._rule, self._clock, self._truth = rule, clock, truth
        self._solver: AllocationPolicy = MilpPolicy()
        self._seen = Lengths()
        self._survival = fit(self._seen, 0.0)
        self._joins = Joins()
        self._n_joined, self._time_s = 0, 0.0  # nodes, and in what time
        self.t_fwd_s: list[float] = []  # what was chosen, decision by decision

    def allocate(self, problem: Problem, context: Context, /) -> Decided:
        """Look, learn, decide."""
        now_s, present = self._clock.now_s, {n.name for n in problem.nodes}
        if self._joins.seen_s is not None:
            self._n_joined += len(present - self._joins.present)
            self._time_s += now_s - self._joins.seen_s
        self._joins = look(self._joins, present, now_s)
        seen = observe(self._seen, present, now_s)
        if seen is not self._seen:
            self._seen, self._survival = seen, fit(seen, now_s)
        view = View(
            now_s=now_s,
            seen=seen,
            survival=self._survival,
            join_gap_s=until_next_join_s(self._joins),
            joins_per_s=self._n_joined / max(600.0, self._time_s),
            truth=self._truth,
        )
        put = self._rule(problem, view)
        self.t_fwd_s.append(put.t_fwd_s)
        found = self._solver.allocate(put, context).allocation
        value = allocation_value(problem, found.assignment)  # of the problem that was asked
        return Decided(allocation=dataclasses.replace(found, objective=value))


class ClockedPaperModel(PaperModel):
    """Paper books that tell the time."""

    clock: Clock

    def advance(self, now_s: float) -> None:
        """Train up to ``now_s``."""
        self.clock.now_s = now_s
        super().advance(now_s)


class ClockedPhysicalModel(PhysicalModel):
    """Physical books that tell the time."""

    clock: Clock

    def advance(self, now_s: float) -> None:
        """Train up to ``now_s``."""
        self.clock.now_s = now_s
        super().advance(now_s)


def replay_with(
    rule: Rule, trace: Fragments, workload: Iterable[Submission], choices: Choices
) -> tuple[Outcome, Foresight]:
    """Replay a trace with the exact policy under a rule; ``choices.t_fwd_s`` is not used."""
    books: ClockedPaperModel | ClockedPhysicalModel
    if choices.costs is None:
        books = ClockedPaperModel(Tally())
    else:
        books = ClockedPhysicalModel(Tally(), choices.costs, seed=choices.seed)
    books.clock = Clock()
    policy = Foresight(rule, books.clock, Truth(trace))
    settings = settings_of(choices)
    return Replay(trace, workload, settings=settings, policy=policy, books=books).run(), policy


# ---- rules for T_fwd: sizes only -------------------------------------------------------------


def fixed(t_fwd_s: float) -> Rule:
    """The paper's: always the same."""
    return lambda problem, _: replace(problem, t_fwd_s=t_fwd_s)


def life(problem: Problem, view: View) -> Problem:
    """As long as the nodes that are to be handed out are expected to stay."""
    return replace(problem, t_fwd_s=_life_s(problem, view))


def first_loss(problem: Problem, view: View) -> Problem:
    """Until a trainer that has nodes loses one: then it is resized anyhow."""
    times_s = [
        _until_first_loss_s(trainer.current, view)
        for trainer in problem.trainers
        if trainer.current
    ]
    if not times_s:
        return life(problem, view)
    return replace(problem, t_fwd_s=max(1.0, sum(times_s) / len(times_s)))


def next_join(problem: Problem, view: View) -> Problem:
    """Until nodes join again: then the question is put anew, and one rescale serves both."""
    return replace(problem, t_fwd_s=view.join_gap_s)


def rhythm(problem: Problem, view: View) -> Problem:
    """Grow in the cheapest rhythm: at every n-th event at which nodes join.

    Nodes join every g seconds, b at a time. Growing a trainer of size C costs R_up C
    node-seconds, a node that lies idle costs one per second. Growing at every n-th join
    costs (R_up C + b g n (n - 1) / 2) / (n g) per second; the best n is an economic order
    quantity. Letting k nodes lie pays while k is below the least cost per second; eq. 16
    lets them lie while T k < R_up C. Both are the same for T = R_up C / least cost. Where
    nodes seldom join n is 1, and T is g: the next join would pay the rescale anyhow.
    """
    if not problem.trainers:
        return problem
    gap_s, batch = view.join_gap_s, max(1e-9, view.joins_per_s * view.join_gap_s)
    size = len(problem.nodes) / min(problem.p_jmax, len(problem.trainers))
    cost = max(1e-9, size * problem.trainers[0].rescale_up_s)
    best = math.sqrt(2.0 * cost / (batch * gap_s))
    per_s = min(
        (cost + batch * gap_s * n * (n - 1) / 2.0) / (n * gap_s)
        for n in {max(1, math.floor(best)), max(1, math.ceil(best))}
    )
    return replace(problem, t_fwd_s=min(max(1.0, cost / per_s), FAR_S))


def both_ends(rule: Rule) -> Rule:
    """Charge a grow with the loss that ends it: what grows will be shrunk by force."""

    def put(problem: Problem, view: View) -> Problem:
        problem = rule(problem, view)
        return replace(
            problem,
            trainers=tuple(
                replace(t, rescale_up_s=t.rescale_up_s + t.rescale_down_s) for t in problem.trainers
            ),
        )

    return put


# ---- rules for nodes -------------------------------------------------------------------------


def with_ends(rule: Rule) -> Rule:
    """Choose nodes by when they are expected to leave; sizes as ``rule`` has them."""

    def put(problem: Problem, view: View) -> Problem:
        stays_s = view.stays_s([n.name for n in problem.nodes], DAY_S)
        return _with_stays(rule(problem, view), stays_s)

    return put


# ---- oracles: they know when each node leaves ------------------------------------------------


def oracle_ends(rule: Rule) -> Rule:
    """Choose nodes by when they do leave; sizes as ``rule`` has them."""

    def put(problem: Problem, view: View) -> Problem:
        stays_s = {n.name: view.truth.stays_s(n.name, view.now_s) for n in problem.nodes}
        return _with_stays(rule(problem, view), stays_s)

    return put


# ---- what they share -------------------------------------------------------------------------


def _life_s(problem: Problem, view: View) -> float:
    held = {name for trainer in problem.trainers for name in trainer.current}
    free = [n.name for n in problem.nodes if n.name not in held]
    stays_s = view.stays_s(free or [n.name for n in problem.nodes], FAR_S)
    return max(1.0, sum(stays_s.values()) / len(stays_s)) if stays_s else problem.t_fwd_s


def _until_first_loss_s(names: Iterable[str], view: View) -> float:
    """Expected time until the first group of nodes that came together loses one."""
    ages_s = Counter(view.age_s(name) for name in names)
    at_s, expected_s, before = 0.0, 0.0, 1.0
    for until_s in GRID_S:
        stays = math.prod(view.survival.chance_to_stay(a, until_s) for a in ages_s)
        expected_s += (until_s - at_s) * (before + stays) / 2.0
        at_s, before = until_s, stays
        if stays < 1e-3:
            break
    return expected_s


def _with_stays(problem: Problem, stays_s: dict[str, float]) -> Problem:
    return replace(problem, nodes=tuple(_with_stay(n, stays_s[n.name]) for n in problem.nodes))


def _with_stay(node: ProblemNode, stays_s: float) -> ProblemNode:
    return ProblemNode(
        name=node.name,
        eligibility=node.eligibility,
        gpus=node.gpus,
        expected_remaining_s=stays_s,
        switch=node.switch,
        has_pilot=node.has_pilot,
    )
