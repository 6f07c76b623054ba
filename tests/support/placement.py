"""How far placement is from the optimum of its own rule, by a node-level MILP on HiGHS.

Takes a Problem and the map that ``milp.placement.place`` made for some sizes, returns for each
part of the rule what the map has and the least possible. The parts are minimised one after the
other: each under the condition that the earlier ones are no worse than in the map.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import astuple, dataclass, fields, replace
from typing import Any

import highspy

from milp.highs import new_highs
from milp.placement.place import PlacementCost, leave_weight, placement_cost
from milp.pool import view_pool
from milp.problem import Curve, Problem, ProblemNode, ProblemTrainer

PARTS = tuple(part.name for part in fields(PlacementCost))
_CURVE = Curve(sizes=(1, 1000), samples_per_s=(1.0, 1000.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementGap:
    """What the map costs and what it could cost; parts in the order of ``PARTS``."""

    found: tuple[float, ...]
    least: tuple[float, ...]  # each given what was found for the parts before it
    is_proven: bool  # whether every part was minimised to the end

    def excess(self) -> tuple[float, ...]:
        """By how much each part is above the least."""
        pairs = zip(self.found, self.least, strict=True)
        return tuple(max(found - least, 0.0) for found, least in pairs)

    def is_optimal(self) -> bool:
        """Whether no map with these sizes costs less."""
        return self.is_proven and all(one <= 2e-6 for one in self.excess())


def placement_gap(
    problem: Problem, assignment: Mapping[str, str], *, time_limit_s: float = 60.0
) -> PlacementGap:
    """Compare a map with the best one that has the same sizes by trainer and class."""
    found = tuple(float(part) for part in astuple(placement_cost(problem, assignment)))
    model = _Model(problem, assignment)
    least: list[float] = []
    is_proven = True
    for part, value in zip(model.parts, found, strict=True):
        bound, is_done = model.minimise(part, time_limit_s)
        least.append(bound)
        is_proven &= is_done
        model.limit(part, value)
    return PlacementGap(found=found, least=tuple(least), is_proven=is_proven)


class _Model:
    """Which node goes where as binaries, and the parts of the rule as expressions."""

    def __init__(self, problem: Problem, assignment: Mapping[str, str]) -> None:
        highs = new_highs()
        for option, value in (("output_flag", False), ("threads", 1), ("mip_rel_gap", 0.0)):
            highs.setOptionValue(option, value)
        self.highs = highs
        self.problem = problem
        self.parts: list[Any] = [highs.expr() for _ in PARTS]
        self.x: dict[tuple[str, str], Any] = {}  # (trainer_id, node name) -> binary
        pool = view_pool(problem)
        nodes = {node.name: node for node in problem.nodes}
        takers: dict[str, list[Any]] = {name: [] for name in nodes}
        for trainer in pool.trainers:
            got = {n for n, trainer_id in assignment.items() if trainer_id == trainer.trainer_id}
            present = [name for name in trainer.current if name in nodes]
            grows = len(got) >= len(present)
            fixed = set(present) if grows else set()
            may_have = set(nodes) if grows else set(present)
            x = {name: highs.addBinary() for name in sorted(may_have)}
            self.x |= {(trainer.trainer_id, name): column for name, column in x.items()}
            for name, column in x.items():
                takers[name].append(column)
                if name in fixed:
                    highs.addConstr(column == 1)
            for k in (None, *range(len(pool.names))):
                members = [x[name] for name in x if pool.class_of.get(name) == k]
                count = sum(pool.class_of.get(name) == k for name in got)
                if members:
                    highs.addConstr(highs.qsum(members) == count)
            self._add_costs(trainer, {name: nodes[name] for name in x}, x)
        for columns in takers.values():
            if len(columns) > 1:
                highs.addConstr(highs.qsum(columns) <= 1)

    def _add_costs(
        self, trainer: ProblemTrainer, nodes: Mapping[str, ProblemNode], x: Mapping[str, Any]
    ) -> None:
        highs, t_fwd_s = self.highs, self.problem.t_fwd_s
        settled = [x[name] for name in trainer.settled if name in x]
        self.parts[0] += len(settled) - highs.qsum(settled)
        by_end: dict[float | None, list[str]] = {}
        by_switch: dict[str, list[str]] = {}
        for name, node in nodes.items():
            by_end.setdefault(node.expected_remaining_s, []).append(name)
            by_switch.setdefault(node.switch, []).append(name)
            self.parts[2] += leave_weight(node.expected_remaining_s, t_fwd_s) * x[name]
            self.parts[4] += float(not node.has_pilot) * x[name]
        for end, names in by_end.items():
            weight = leave_weight(end, t_fwd_s)
            if weight > 0:
                self.parts[1] += weight * self._any_of([x[name] for name in names])
        for names in by_switch.values():
            self.parts[3] += self._any_of([x[name] for name in names])

    def _any_of(self, columns: list[Any]) -> Any:
        used = self.highs.addVariable(0.0, 1.0)
        for column in columns:
            self.highs.addConstr(used - column >= 0)
        return used

    def minimise(self, part: Any, time_limit_s: float) -> tuple[float, bool]:
        """Least value of one part (a lower bound when time runs out), and whether proven."""
        self.highs.setOptionValue("time_limit", self.highs.getRunTime() + time_limit_s)
        self.highs.minimize(part)
        status = self.highs.getModelStatus()
        if status == highspy.HighsModelStatus.kOptimal:
            return float(self.highs.getInfo().objective_function_value), True
        if status == highspy.HighsModelStatus.kTimeLimit:
            return float(self.highs.getInfo().mip_dual_bound), False
        raise RuntimeError(f"HiGHS ended with {self.highs.modelStatusToString(status)}")

    def limit(self, part: Any, value: float) -> None:
        """From now on this part is no worse than ``value``."""
        self.highs.addConstr(part <= value + 1e-6)


def draw_placement(seed: int) -> tuple[Problem, list[int]]:
    """A random problem of one class and sizes that fit it, of 8 to 48 nodes."""
    chance = random.Random(f"placement {seed}")  # noqa: S311 - a benchmark
    n_nodes, n_trainers = chance.randint(8, 48), chance.randint(2, 7)
    per_switch = chance.choice([3, 4, 6, 9])
    ends = [round(chance.uniform(0, 1800), 3) for _ in range(n_nodes)]
    kind = chance.choice(["none", "few", "few", "blocks", "blocks", "alone"])
    few = chance.sample(ends, chance.randint(1, 6))
    blocks = [chance.choice([None, end]) for end in ends for _ in range(chance.randint(1, 6))]
    drawn: dict[str, list[float | None]] = {
        "none": [None] * n_nodes,
        "few": [chance.choice([None, *few]) for _ in range(n_nodes)],
        "blocks": blocks[:n_nodes],
        "alone": [chance.choice([None, end, end]) for end in ends],
    }
    nodes = [
        ProblemNode(
            name=f"n{i:02}",
            expected_remaining_s=end,
            switch=f"s{i // per_switch}",
            has_pilot=chance.choice([False, True, True, False]),
        )
        for i, end in enumerate(drawn[kind])
    ]
    idle = [node.name for node in nodes]
    chance.shuffle(idle)
    trainers: list[ProblemTrainer] = []
    for j in range(n_trainers):
        n_current = chance.choice([0, chance.randint(0, 2 * n_nodes // n_trainers)])
        current, idle = idle[:n_current], idle[n_current:]
        settled = [name for name in current if chance.random() < 0.8]
        trainers.append(_draw_trainer(f"t{j}", current, settled))
    problem = Problem(nodes=tuple(nodes), trainers=tuple(trainers), t_fwd_s=120.0, p_jmax=9)
    left = math.floor(n_nodes * chance.choice([0.6, 0.9, 1.0]))
    sizes: list[int] = []
    for j in range(n_trainers):
        sizes.append(min(left, chance.randint(0, math.ceil(2 * n_nodes / n_trainers))))
        left -= sizes[j]
    return problem, sizes


def _draw_trainer(name: str, current: list[str], settled: list[str]) -> ProblemTrainer:
    plain = ProblemTrainer(
        trainer_id=name,
        n_min=1,
        n_max=1000,
        curve=_CURVE,
        rescale_up_s=1.0,
        rescale_down_s=1.0,
    )
    return replace(plain, current=tuple(current), settled=tuple(settled))
