"""The graph of a plan's tasks, with drawn latencies (section 4.2 of the paper, its Algorithm 1).

A stage that needs more instances begins with SCALE and one INIT for each; then there is a TRAIN
for each trial, some after others if there are too few GPUs for all; SYNC ends it. The
critical path of each sample is its time. Its mean is what ``Costs.predict`` says in closed form;
beyond that the samples tell the spread.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np

from bftrainer.study.plan.problem import Billing
from bftrainer.study.plan.stage_cost import Costs, Floats


class Kind(enum.StrEnum):
    """What a task does."""

    SCALE = "scale"
    INIT = "init"
    TRAIN = "train"
    SYNC = "sync"


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A node of the graph; those before it have smaller numbers."""

    kind: Kind
    stage: int
    before: tuple[int, ...]
    number: int = 0  # of the instance or trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """Samples of a plan; the last axis of each array are the samples."""

    time_s: Floats
    cost: Floats
    stage_time_s: Floats  # stages x samples
    stage_cost: Floats  # without the minimum charge


def tasks_of(costs: Costs, plan: tuple[int, ...]) -> list[Task]:
    """Return the graph of a plan in topological order."""
    tasks: list[Task] = []
    frontier: tuple[int, ...] = ()
    held = 0

    def add(kind: Kind, stage: int, before: tuple[int, ...], number: int = 0) -> int:
        tasks.append(Task(kind=kind, stage=stage, before=before, number=number))
        return len(tasks) - 1

    for index, gpus in enumerate(plan):
        wanted = costs.cloud.instances(gpus)
        if wanted > held:
            scale = (add(Kind.SCALE, index, frontier),)
            frontier = tuple(add(Kind.INIT, index, scale, n) for n in range(wanted - held))
        at_once = costs.share(index, gpus)[1]
        trains: list[int] = []
        for trial in range(costs.experiment[index].trials):
            before = (trains[trial - at_once],) if trial >= at_once else frontier
            trains.append(add(Kind.TRAIN, index, before, trial))
        frontier = (add(Kind.SYNC, index, tuple(trains)),)
        held = wanted
    return tasks


def simulate(costs: Costs, plan: tuple[int, ...]) -> Drawn:
    """Draw the latency of every task and return the critical paths and what they cost."""
    tasks = tasks_of(costs, plan)
    ends = _ends(costs, plan, tasks)
    there_s = {task.stage: ends[n] for n, task in enumerate(tasks) if task.kind is Kind.SCALE}
    ended_s = [ends[n] for n, task in enumerate(tasks) if task.kind is Kind.SYNC]
    cloud, began_s, held = costs.cloud, np.zeros(ends.shape[1]), 0
    missing_s = np.zeros_like(began_s)  # of the minimum charge
    born: list[Floats] = []  # when each instance came; oldest first
    times: list[Floats] = []
    paid: list[Floats] = []
    for index, (gpus, end_s) in enumerate(zip(plan, ended_s, strict=True)):
        wanted = cloud.instances(gpus)
        new, gone = max(0, wanted - held), max(0, held - wanted)
        missing_s += _shortfall_s(born[:gone], began_s, cloud.minimum_s)
        born = [*born[gone:], *[there_s.get(index, began_s)] * new]
        if cloud.billing is Billing.FUNCTION:  # initialisations at their mean
            used_s = _used_s(costs, index, plan)
            paid_s = used_s / cloud.gpus_per_instance + new * cloud.init_s
        else:
            paid_s = (wanted - new) * (end_s - began_s)
            paid_s += new * (end_s - there_s.get(index, began_s))
        times.append(end_s - began_s)
        paid.append(np.broadcast_to(paid_s, began_s.shape) * cloud.price_s + new * cloud.data_price)
        began_s, held = end_s, wanted
    missing_s += _shortfall_s(born, began_s, cloud.minimum_s)
    cost = np.sum(paid, axis=0)
    if cloud.billing is Billing.INSTANCE:
        cost = cost + missing_s * cloud.price_s
    return Drawn(time_s=began_s, cost=cost, stage_time_s=np.array(times), stage_cost=np.array(paid))


def _ends(costs: Costs, plan: tuple[int, ...], tasks: list[Task]) -> Floats:
    """Return when each task ends: tasks x samples."""
    ends = np.zeros((len(tasks), _samples(costs)))
    ready: dict[tuple[int, ...], Floats] = {(): np.zeros(ends.shape[1])}
    trains: dict[int, Floats] = {}
    for number, task in enumerate(tasks):
        if task.before not in ready:
            ready[task.before] = ends[list(task.before)].max(0)
        ends[number] = ready[task.before]
        if task.kind is Kind.SCALE:
            ends[number] += costs.cloud.scale_s
        elif task.kind is Kind.INIT:
            ends[number] += costs.cloud.init_s
        elif task.kind is Kind.TRAIN:
            if task.stage not in trains:
                trains[task.stage] = _train_s(costs, task.stage, plan)
            ends[number] += trains[task.stage][:, task.number]
    return ends


def _samples(costs: Costs) -> int:
    return costs.samples if costs.scaling.spread > 0.0 else 1


def _train_s(costs: Costs, index: int, plan: tuple[int, ...]) -> Floats:
    return costs.tasks_s(index, costs.share(index, plan[index])[0])


def _used_s(costs: Costs, index: int, plan: tuple[int, ...]) -> Floats:
    each = costs.share(index, plan[index])[0]
    return np.asarray(each * _train_s(costs, index, plan).sum(1))


def _shortfall_s(born: list[Floats], now_s: Floats, minimum_s: float) -> Floats:
    """Return the time that instances which go now are paid for beyond their lives."""
    missing = [np.maximum(0.0, minimum_s - (now_s - one)) for one in born]
    return np.sum(missing, axis=0) if missing else np.zeros_like(now_s)
