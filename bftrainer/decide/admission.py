"""Admits trainers to a decision within caps, fair share and turns. Pure.

The trainers that take part come first in the problem and are its P_jmax. Under caps alone these
are, in order of submission, all that have room for n_min under their caps. With fair share they
are, in its order, all that fit into the pool with n_min beside those before. The first of each user
gets that much (``must_run``); on the rest the objective decides. Called by ``policy_answer`` for
each problem that it puts to a policy, since nodes may be missing in some.

Turns: policies that maximise or order by remaining time may leave a trainer without nodes for ever.
With a bound (``max_wait_s``), a trainer that has waited so long has a turn: it keeps the nodes it
has, or gets its n_min, for as long as the bound. Turns come before the policy, the longest wait
first, at most for half of ``p_jmax`` at once. ``observe`` is an estimator (``observation``),
``allocation`` calls ``given_to``.

Caps: ``of_groups`` states them. ``within`` has any policy keep them: one that does not know of caps
is asked again with smaller bounds for trainers whose cap it exceeds. ``in_sizes`` does the same for
trainers that may have certain sizes only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from bftrainer.decide.fair_share import Line
from bftrainer.decide.policies.base import Decided, in_order
from bftrainer.decide.policies.distribution import Handing
from bftrainer.model.decision import DecisionInput, Memory, Settings
from bftrainer.model.fairness import Limits, Usage, Wait, limit_of
from bftrainer.model.trainer import TrainerRecord, TrainerSpec
from milp.problem import Cap, Problem, ProblemError, ProblemTrainer
from milp.solve import solve
from milp.worth import allocation_value

LOOKS = 0.02  # of a half-life, between two looks at whose turn it is


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """The facts by which trainers are admitted."""

    settings: Settings
    now_s: float
    records: Mapping[str, TrainerRecord]  # all trainers
    usage: Usage
    kept: tuple[str, ...] = ()  # trainers with nodes that the problem lacks

    def admit(self, problem: Problem) -> Problem:
        """Return the problem with the trainers that take part first."""
        half_life_s = self.settings.fair_share_half_life_s
        if half_life_s is None:
            return _first_to_fit(problem) if problem.caps else problem
        line = Line(
            problem.trainers,
            self.records,
            self.usage,
            half_life_s=half_life_s,
            now_s=self.now_s,
            slots=min(self.settings.p_jmax, len(problem.trainers) + len(self.kept)),
        )
        for one in self.kept:
            line.charge(one, self.records[one].spec.n_min)
        return _fairly(problem, line)

    def wake_at_s(self, admitted: Problem) -> float | None:
        """Return when the next decision is due because somebody waits for a turn."""
        half_life_s = self.settings.fair_share_half_life_s
        if half_life_s is None or admitted.p_jmax >= len(admitted.trainers):
            return None
        return self.now_s + LOOKS * half_life_s


class _Room:
    """The room that caps leave."""

    def __init__(self, problem: Problem) -> None:
        self._left = [cap.most for cap in problem.caps]
        self._caps: dict[str, list[int]] = {}
        for number, cap in enumerate(problem.caps):
            for one in cap.trainers:
                self._caps.setdefault(one, []).append(number)

    def has(self, trainer: ProblemTrainer) -> bool:
        """Return whether the trainer's caps leave room for its n_min."""
        caps = self._caps.get(trainer.trainer_id, ())
        return all(trainer.n_min <= self._left[number] for number in caps)

    def take(self, trainer: ProblemTrainer) -> None:
        """Take n_min."""
        for number in self._caps.get(trainer.trainer_id, ()):
            self._left[number] -= trainer.n_min


def _first_to_fit(problem: Problem) -> Problem:
    room, admitted = _Room(problem), list[str]()
    for trainer in problem.trainers:
        if len(admitted) == problem.p_jmax:
            break
        if room.has(trainer):
            room.take(trainer)
            admitted.append(trainer.trainer_id)
    return _with(problem, admitted)


def _fairly(problem: Problem, line: Line) -> Problem:
    room, handing = _Room(problem), Handing(problem, admits=True)
    admitted, first_of = list[str](), dict[tuple[str, str], str]()
    index = {trainer.trainer_id: j for j, trainer in enumerate(problem.trainers)}
    while len(admitted) < problem.p_jmax and (trainer := line.next()) is not None:
        j, n_min = index[trainer.trainer_id], trainer.n_min
        if room.has(trainer) and handing.settle(j, n_min) and handing.take(j, n_min):
            room.take(trainer)
            who = line.charge(trainer.trainer_id, n_min)
            first_of.setdefault(who, trainer.trainer_id)
            admitted.append(trainer.trainer_id)
    return _with(problem, admitted, must_run=frozenset(first_of.values()))


def _with(problem: Problem, admitted: list[str], must_run: frozenset[str] = frozenset()) -> Problem:
    """Return the problem with those admitted first, in order of submission."""
    chosen = frozenset(admitted)
    first = [
        replace(t, must_run=True) if t.trainer_id in must_run else t
        for t in problem.trainers
        if t.trainer_id in chosen
    ]
    rest = [t for t in problem.trainers if t.trainer_id not in chosen]
    return replace(problem, trainers=(*first, *rest), p_jmax=len(first))


def observe(memory: Memory, given: DecisionInput) -> Memory:
    """Note since when trainers wait, and whose turn lasts."""
    most_s, now_s = given.settings.max_wait_s, given.now_s
    waits = dict[str, Wait]()
    for record in given.trainers if most_s is not None else ():
        new = Wait(since_s=record.submitted_s if record.started_s is None else now_s)
        wait = memory.waits.get(record.trainer_id, new)
        if wait.turn_ends_s is not None and now_s >= wait.turn_ends_s:
            wait = Wait(since_s=now_s)  # its turn is over
        if wait.turn_ends_s is None and record.trainer_id in given.training.values():
            continue
        if wait.turn_ends_s is None and now_s - wait.since_s >= (most_s or 0.0):
            wait = replace(wait, turn_ends_s=now_s + (most_s or 0.0))
        waits[record.trainer_id] = wait
    return memory if waits == memory.waits else replace(memory, waits=waits)


def in_turn(memory: Memory, given: DecisionInput) -> list[str]:
    """Return the trainers whose turn it is, the longest wait first."""
    ours = {record.trainer_id for record in given.trainers}
    turns = [i for i, wait in memory.waits.items() if wait.turn_ends_s is not None and i in ours]
    turns.sort(key=lambda one: (memory.waits[one].since_s, one))
    return turns[: (given.settings.p_jmax + 1) // 2]


def given_to(trainer_id: str, problem: Problem, taken: Iterable[str]) -> Mapping[str, str]:
    """Return the nodes that a trainer gets for its turn: n_min of them, or none if it cannot start.

    Free ones first, then those of the trainer that has most.

    Args:
        trainer_id: whose turn it is.
        problem: of all trainers.
        taken: nodes that are given away.
    """
    one = next((t for t in problem.trainers if t.trainer_id == trainer_id), None)
    if one is None:
        return {}
    alone = replace(one, n_max=one.n_min, must_run=True)
    out = set(taken)
    owner = {n: t.trainer_id for t in problem.trainers for n in t.current if t is not one}
    sizes = Counter(owner.values())
    nodes = [node for node in problem.nodes if node.name not in out | owner.keys()]
    for loser in ("", *sorted(sizes, key=lambda other: (-sizes[other], other))):
        nodes += [n for n in problem.nodes if owner.get(n.name) == loser and n.name not in out]
        if len(nodes) < one.n_min:
            continue
        try:
            found = solve(
                replace(problem, nodes=tuple(nodes), trainers=(alone,), p_jmax=1, caps=())
            )
        except ProblemError:
            continue
        return found.assignment
    return {}


def of_groups(
    records: Iterable[TrainerRecord], limits: Limits, kept: Mapping[str, int]
) -> tuple[Cap, ...]:
    """Return the caps of a decision.

    Args:
        records: all trainers.
        limits: of the site.
        kept: nodes of trainers that are not allocated; they count.
    """
    if not limits.is_of_groups:
        return ()
    members: dict[tuple[str, int], list[str]] = {}
    for record in records:
        for name, most, _ in limits_on(record.spec, limits):
            members.setdefault((name, most), []).append(record.trainer_id)
    return tuple(
        [
            Cap(
                name=name,
                trainers=tuple(own),
                most=max(0, most - sum([kept.get(one, 0) for one in own])),
            )
            for (name, most), own in members.items()
        ]
    )


def limits_on(spec: TrainerSpec, limits: Limits) -> list[tuple[str, int, str]]:
    """Return whose limits a trainer shares: a name, the nodes, the policy's key."""
    account = f"account {spec.account}" if spec.account else "the default account"
    found = []
    for name, most, key in (
        (f"user {spec.user}", limit_of(limits.by_user, spec.user), "max_nodes_by_user"),
        (account, limit_of(limits.by_account, spec.account), "max_nodes_by_account"),
    ):
        if most is not None:
            found.append((name, most, key))
    return found


def within(problem: Problem, ask: Callable[[Problem], Decided]) -> Decided:
    """Return the answer of a policy that knows nothing of caps, within them.

    Members of an exceeded cap are bound to their sizes in the answer, the last admitted ones to
    less; what that leaves is offered to the others. So a cap is exceeded once, unless the policy
    lets no running trainer shrink: then whole trainers get nothing.
    """
    bounds = dict[str, int]()
    for _ in range(len(problem.caps) + 1):
        decided = ask(_offered(problem, bounds))
        sizes = decided.allocation.sizes()
        order = in_order([t.trainer_id for t in problem.trainers], decided.order)
        exceeded = [cap for cap in problem.caps if _held(cap, sizes) > cap.most]
        if not exceeded:
            return _stated(problem, decided, decided.allocation.assignment)
        for cap in exceeded:
            bounds |= _cut(problem, cap, {**sizes, **bounds}, order)
    assignment = dict(decided.allocation.assignment)
    for cap in problem.caps:
        for last in reversed([one for one in order if one in cap.trainers]):
            if _held(cap, Counter(assignment.values())) > cap.most:
                assignment = {n: t for n, t in assignment.items() if t != last}
    return _stated(problem, decided, assignment)


ROUNDS = 8  # in which a policy is asked again; then what is too much stays unused


def in_sizes(problem: Problem, ask: Callable[[Problem], Decided]) -> Decided:
    """Return the answer of a policy that knows nothing of sets of sizes, within them.

    A trainer with a size between two of its set is bound to the smaller one, and all are asked for
    again: others may use what it leaves.
    """
    trainers = {trainer.trainer_id: trainer for trainer in problem.trainers}
    bounds = {one: t.largest_of(t.n_max) for one, t in trainers.items() if t.sizes}
    for _ in range(ROUNDS):
        decided = ask(_without_sets(problem, bounds))
        sizes = decided.allocation.sizes()
        fitting = {one: trainers[one].largest_of(sizes.get(one, 0)) for one in bounds}
        lower = {one: size for one, size in fitting.items() if size < sizes.get(one, 0)}
        if not lower:
            break
        bounds |= lower
    assignment = dict(decided.allocation.assignment)
    for one, size in lower.items():
        first = [*trainers[one].settled, *trainers[one].current]
        own = sorted([name for name, owner in assignment.items() if owner == one])
        for name in [n for n in dict.fromkeys([*first, *own]) if n in own][size:]:
            del assignment[name]
    return _stated(problem, decided, assignment)


def _without_sets(problem: Problem, bounds: Mapping[str, int]) -> Problem:
    """Return the problem without sets of sizes; 0: a trainer may have no nodes."""
    never = len(problem.nodes) + 1  # a size that nobody can have

    def bound(trainer: ProblemTrainer) -> ProblemTrainer:
        most = bounds.get(trainer.trainer_id)
        if most is None:
            return trainer
        low = trainer.n_min if most else never
        return replace(trainer, n_min=low, n_max=max(low, most), sizes=())

    return replace(problem, trainers=tuple(map(bound, problem.trainers)))


def _held(cap: Cap, sizes: Mapping[str, int]) -> int:
    return sum([sizes.get(one, 0) for one in cap.trainers])


def _cut(problem: Problem, cap: Cap, sizes: Mapping[str, int], order: list[str]) -> dict[str, int]:
    """Return the sizes of the members with the last admitted ones cut."""
    n_min = {t.trainer_id: t.n_min for t in problem.trainers}
    left, bounds = cap.most, dict[str, int]()
    for one in order:
        if one in cap.trainers:
            size = min(sizes.get(one, 0), left)
            bounds[one] = size if size >= n_min[one] else 0
            left -= bounds[one]
    return bounds


def _offered(problem: Problem, bounds: Mapping[str, int]) -> Problem:
    """Return the problem with nothing in it that policies need not know."""
    never = len(problem.nodes) + 1  # a size that nobody can have

    def bound(trainer: ProblemTrainer, rank: int) -> ProblemTrainer:
        most = bounds.get(trainer.trainer_id, trainer.n_max) if rank < problem.p_jmax else 0
        low, high = (trainer.n_min, min(most, trainer.n_max)) if most else (never, never)
        return replace(trainer, n_min=low, n_max=high, must_run=False)

    trainers = tuple([bound(trainer, rank) for rank, trainer in enumerate(problem.trainers)])
    return replace(problem, trainers=trainers, caps=())


def _stated(problem: Problem, decided: Decided, assignment: Mapping[str, str]) -> Decided:
    """Return the answer with this assignment and what it is worth."""
    worth = allocation_value(problem, assignment)
    allocation = replace(decided.allocation, assignment=assignment, objective=worth)
    return replace(decided, allocation=allocation)
