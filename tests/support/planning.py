"""Drawn studies, clouds and deadlines, and how planners compare on them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from _bench.waiting import BenchError

from bftrainer.study.plan.exact import exact, fastest
from bftrainer.study.plan.problem import (
    Billing,
    Cloud,
    Draw,
    Experiment,
    PlanStage,
    ScalingProfile,
    sha_stages,
)
from bftrainer.study.plan.published import Algorithm2Reading, greedy, naive, static
from bftrainer.study.plan.stage_cost import Costs, Planned, simulate

SIZES: Final = (1, 2, 4, 8, 16, 32, 64, 128)
FAST: Final = 160  # GPUs of the fastest plan
MOST: Final = 480  # of any other


def saturating(one_s: float, serial: float, across: float) -> ScalingProfile:
    """Return a profile with a serial share, and a cost between instances of 4 GPUs."""
    unit_s = (
        one_s * (1 / g + serial * (1 - 1 / g)) + (across * (1 - 4 / g) if g > 4 else 0.0)
        for g in SIZES
    )
    return ScalingProfile(gpus=SIZES, unit_s=tuple(unit_s))


def resnet50(one_s: float, efficiency: float = 0.937) -> ScalingProfile:
    """Return the paper's ResNet-50 (Table 1), and an efficiency per doubling beyond 4 GPUs."""
    speed = [1.0, 1.975, 3.70]
    while len(speed) < len(SIZES):
        speed.append(2.0 * efficiency * speed[-1])
    return ScalingProfile(gpus=SIZES, unit_s=tuple(one_s / s for s in speed))


def drawn_costs(case: int, stages: Experiment | None = None) -> Costs:
    """Draw a study, a profile and a cloud with everything that the model knows."""
    random = np.random.default_rng((11, case))
    if stages is None:
        trials, least = int(random.choice([2, 4, 8, 12])), int(random.integers(1, 5))
        stages = sha_stages(trials, least, int(random.integers(8, 60)), int(random.choice([2, 3])))
    unit_s = tuple(sorted((float(s) for s in random.uniform(1, 20, 4)), reverse=True))
    scaling = ScalingProfile(
        gpus=SIZES[:4],
        unit_s=unit_s,
        spread=float(random.choice([0.0, 0.0, 0.2, 1.5])),
        draw=list(Draw)[int(random.integers(2))],
        start_s=float(random.choice([0.0, 3.0])),
        n_min=int(random.choice([1, 1, 1, 2])),
        n_max=[None, None, 3][int(random.integers(3))],
    )
    cloud = Cloud(
        gpus_per_instance=int(random.choice([1, 2, 4])),
        price_h=10.0,
        billing=list(Billing)[int(random.integers(2))],
        scale_s=float(random.choice([0.0, 10.0])),
        init_s=float(random.choice([0.0, 7.0])),
        data_price=float(random.choice([0.0, 0.02])),
    )
    return Costs(stages, scaling, cloud, seed=case)


def drawn_plan(case: int, stages: int) -> tuple[int, ...]:
    """Draw the GPUs of each stage."""
    return tuple(int(g) for g in np.random.default_rng((13, case)).integers(2, 40, stages))


def graph_error(case: int) -> float:
    """Return how far the closed form is from the graph: the largest relative difference."""
    costs = drawn_costs(case)
    if costs.scaling.spread == 0.0:  # else the closed form of a minimum charge is that of means
        cloud = replace(costs.cloud, minimum_s=40.0 * (case % 3))
        costs = Costs(costs.experiment, costs.scaling, cloud, seed=case)
    plan = drawn_plan(case, len(costs.experiment))
    closed, drawn = costs.predict(plan), simulate(costs, plan)
    pairs = [(drawn.time_s.mean(), closed.time_s), (drawn.cost.mean(), closed.cost)]
    pairs += zip(drawn.stage_time_s.mean(1), (s.time_s for s in closed.stages), strict=True)
    pairs += zip(drawn.stage_cost.mean(1), (s.cost for s in closed.stages), strict=True)
    return max(float(abs(a - b)) / max(b, 1e-9) for a, b in pairs)


def brute_force_error(case: int) -> float | None:
    """Return how far the exact plan is from the best of all plans; None: all of them are late.

    Raises:
        AssertionError: a plan was found though all are late, or is late itself.
    """
    random = np.random.default_rng((17, case))
    count = int(random.integers(2, 4))
    most = int(random.choice([6, 8, 12])) if count == 3 else 16
    first, units = int(random.integers(4, 10)), random.integers(1, 5, count)
    stages = tuple(
        PlanStage(trials=max(1, first // 2**i), units=int(units[i]) * 3**i) for i in range(count)
    )
    costs = drawn_costs(case, stages)
    plans = [costs.predict(p) for p in itertools.product(range(1, most + 1), repeat=count)]
    deadline_s = min(p.time_s for p in plans) * float(random.uniform(0.97, 2.5))
    in_time = [p.cost for p in plans if p.time_s <= deadline_s + 1e-9]
    found = exact(costs, deadline_s, most)
    if found is None or found.time_s > deadline_s + 1e-6 or not in_time:
        if found is not None or in_time:
            raise AssertionError(f"case {case}: {found} of {len(in_time)} in time")
        return None
    best = min(in_time)
    return max(abs(found.cost - best), abs((found.bound or 0.0) - best)) / best


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What each planner's plan costs in one case."""

    optimum: float
    bound: float
    exact_cpu_s: float
    of: dict[str, float]  # planner -> cost; infinite: it has no plan


def compared(case: int) -> Compared:
    """Compare planners on a drawn SHA study whose deadline a static plan can hold."""
    for random in _randoms(case):
        trials, eta = int(random.choice([8, 16, 32, 64])), int(random.choice([2, 3]))
        least = int(random.choice([1, 2, 4]))
        one_s = float(random.uniform(2, 60))
        serial, across = float(random.uniform(0.01, 0.12)), float(random.uniform(0, 0.05)) * one_s
        start_s = float(random.choice([0.0, 1.0, 15.0, 60.0]))
        costs = Costs(
            sha_stages(trials, least, least * int(random.choice([20, 50, 100])), eta),
            saturating(one_s, serial, across),
            Cloud(gpus_per_instance=4, price_h=12.24, init_s=start_s, scale_s=start_s),
        )
        quickest = fastest(costs, FAST).time_s
        deadline_s = quickest * float(random.uniform(1.05, 2.5))
        if static(costs, deadline_s, FAST) is not None:
            break
    began_s = time.process_time()
    best = exact(costs, deadline_s, MOST)
    took_s = time.process_time() - began_s
    optimum, bound = _bounded(best)
    return Compared(
        optimum=optimum,
        bound=bound,
        exact_cpu_s=took_s,
        of={name: _cost(plan) for name, plan in rivals(costs, deadline_s, MOST).items()},
    )


def rivals(costs: Costs, deadline_s: float, most: int) -> dict[str, Planned | None]:
    """Return the plans of the other planners."""
    return {
        "static": static(costs, deadline_s, most),
        "naive": naive(costs, deadline_s, most),
        **{r.value: greedy(costs, deadline_s, most, r) for r in Algorithm2Reading},
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Large:
    """SHA(512, 4, 4096, 2) planned once."""

    start_s: float  # initialisation of an instance, and as long until it is there
    deadline_min: int
    efficiency: float  # of doubling the GPUs beyond an instance
    spread: float
    cost: float
    gap: float
    exact_cpu_s: float
    repaired: float  # cost above the optimum, as a share
    literal: float
    greedy_cpu_s: float


def large(start_s: float, deadline_min: int, efficiency: float, spread: float = 0.0) -> Large:
    """Plan the paper's largest study (its Fig. 12)."""
    costs = Costs(
        sha_stages(512, 4, 4096, 2),
        replace(resnet50(12.0, efficiency), spread=spread),
        Cloud(gpus_per_instance=4, price_h=12.24, init_s=start_s, scale_s=start_s),
    )
    deadline_s, most = 60.0 * deadline_min, 2048
    at_s = [time.process_time()]
    best = exact(fresh(costs), deadline_s, most)
    at_s.append(time.process_time())
    repaired = greedy(fresh(costs), deadline_s, most, Algorithm2Reading.REPAIRED)
    at_s.append(time.process_time())
    literal = greedy(costs, deadline_s, most, Algorithm2Reading.LITERAL)
    optimum, bound = _bounded(best)
    return Large(
        start_s=start_s,
        deadline_min=deadline_min,
        efficiency=efficiency,
        spread=spread,
        cost=optimum,
        gap=optimum / bound - 1.0,
        exact_cpu_s=at_s[1] - at_s[0],
        repaired=_cost(repaired) / optimum - 1.0,
        literal=_cost(literal) / optimum - 1.0,
        greedy_cpu_s=at_s[2] - at_s[1],
    )


def fresh(costs: Costs) -> Costs:
    """Return the same model without what it has computed."""
    return Costs(costs.experiment, costs.scaling, costs.cloud, costs.samples, costs.seed)


def _randoms(case: int) -> Iterator[np.random.Generator]:
    for attempt in itertools.count():
        yield np.random.default_rng((7, case, attempt))


def _cost(plan: Planned | None) -> float:
    return float("inf") if plan is None else plan.cost


def _bounded(plan: Planned | None) -> tuple[float, float]:
    if plan is None or plan.bound is None:
        raise BenchError("a deadline that a static plan holds has no exact plan")
    return plan.cost, plan.bound
