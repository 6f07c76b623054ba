"""Judges problems before anything is computed, and allocations before they are used.

``validate`` takes a Problem and raises ProblemError for the first thing wrong, naming the field.
``check`` takes a Problem and an Allocation and raises CheckFailed with every rule that is broken;
it shares no code with the solvers. Called by the milp policy on each decision, by tests on every
policy's answers.
"""

from __future__ import annotations

import math
import operator
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from milp.problem import (
    Allocation,
    CheckFailed,
    Curve,
    Marginal,
    Objective,
    Problem,
    ProblemError,
    ProblemNode,
    ProblemTrainer,
    ids_of,
    lends_gpus,
    names_of,
    nodes_by_name,
)
from milp.worth import allocation_value, objective_value, terms

__all__ = ["allocation_value", "check", "find_violations", "objective_value"]

RELATIVE_TOLERANCE = 1e-9
LARGEST_NUMBER = 1e15  # beyond any rate or time; keeps every product finite
SMALLEST_RATE = 1e-9  # samples per second on one node
LARGEST_SIZE = 10**9  # nodes; as an array's index and as a float it is exact


def check(problem: Problem, allocation: Allocation) -> None:
    """Raise ``CheckFailed`` unless the allocation keeps every rule and states its worth.

    That a node has at most one trainer holds by the form of ``assignment``.
    """
    violations = find_violations(problem, allocation)
    if violations:
        raise CheckFailed(tuple(violations))


def find_violations(problem: Problem, allocation: Allocation) -> list[str]:
    """One sentence per broken rule, in a fixed order; empty when all is well."""
    pool = nodes_by_name(problem.nodes)
    in_pool = pool.keys()
    by_trainer: defaultdict[str, list[str]] = defaultdict(list)
    for name, trainer_id in allocation.assignment.items():
        by_trainer[trainer_id].append(name)
    trainer_ids = set(ids_of(problem.trainers))
    violations: list[str] = []
    units, sizes = "nodes", {trainer_id: len(names) for trainer_id, names in by_trainer.items()}
    if lends_gpus(problem):
        units = "units"
        sizes, violations = _units(problem, by_trainer, pool)
    if not (allocation.assignment.keys() <= in_pool and by_trainer.keys() <= trainer_ids):
        violations += _strangers(allocation, pool, trainer_ids)
    counts_before: list[int] = []  # C_j
    for rank, trainer in enumerate(problem.trainers):
        trainer_id = trainer.trainer_id
        names, size = by_trainer[trainer_id], sizes.get(trainer_id, 0)
        names_before: set[str] = set()
        if trainer.current:
            names_before = in_pool & trainer.current
        counts_before.append(len(names_before))
        may_run = rank < problem.p_jmax
        if names and not may_run:
            violations.append(
                f"trainer {trainer_id} runs, but {problem.p_jmax} trainers come before it"
            )
        if names and trainer.largest_of(size) != size:
            bounds = ", ".join(map(str, trainer.sizes)) or f"{trainer.n_min}..{trainer.n_max}"
            violations.append(f"trainer {trainer_id} has {size} {units}, outside {bounds}")
        # Eq. 6: nodes are only added or only taken away.
        if not (names_before.issuperset(names) or names_before.issubset(names)):
            violations.append(_migration(trainer, set(names), names_before))
        if trainer.must_run and not names and may_run:
            violations.append(f"trainer {trainer_id} must run, but has no nodes")
    violations += _broken_caps(problem, sizes, units)
    violations += _eligibility(problem, by_trainer, pool)
    violations += _worth(allocation, terms(problem, sizes, counts_before))
    violations += _numbers(allocation, trainer_ids)
    return violations


def _broken_caps(problem: Problem, sizes: Mapping[str, int], units: str) -> list[str]:
    violations: list[str] = []
    for cap in problem.caps:
        total = sum([sizes.get(name, 0) for name in set(cap.trainers)])
        if total > cap.most:
            violations.append(f"{cap.name} has {total} {units}, {cap.most} at most")
    return violations


def _units(
    problem: Problem, by_trainer: Mapping[str, Sequence[str]], pool: Mapping[str, ProblemNode]
) -> tuple[dict[str, int], list[str]]:
    """Return each trainer's size in units, and what of its nodes makes no whole unit.

    A unit is a node that is a whole host, a part with a pilot, or free GPUs of one host and class
    that are as many as a unit has.
    """
    sizes: dict[str, int] = {}
    violations: list[str] = []
    for trainer in problem.trainers:
        trainer_id, width = trainer.trainer_id, trainer.width
        nodes = [pool[name] for name in by_trainer.get(trainer_id, ()) if name in pool]
        size = 0
        free_gpus = Counter[tuple[str, str, int]]()  # by host, class and GPUs of a unit
        if width == 1 and not [node for node in nodes if not node.host or node.width != 1]:
            size, nodes = len(nodes), []  # as a rule, and quicker
        for node in nodes:
            if not node.host or node.has_pilot:
                size += 1
                if not _is_unit(node, width):
                    violations.append(
                        f"trainer {trainer_id} has {node.name}, which is no unit of {_gpus(width)}"
                    )
            elif width == 1:
                size += 1
            else:
                free_gpus[node.host, node.eligibility, width or node.host_width] += 1
        for (host, _, per_unit), count in free_gpus.items():
            size += count // per_unit
            if count % per_unit:
                violations.append(
                    f"trainer {trainer_id} has {count} free GPUs of {host},"
                    f" no multiple of {per_unit}"
                )
        if size or by_trainer.get(trainer_id):
            sizes[trainer_id] = size
    return sizes, violations


def _is_unit(node: ProblemNode, width: int) -> bool:
    """Return whether a node that is no free GPU is a unit of a trainer with this width."""
    if not node.host:
        return width == 0
    if width == 0:
        return node.width == node.host_width
    return node.width == width


def _gpus(width: int) -> str:
    return f"{width} GPUs" if width else "a whole host"


def _strangers(
    allocation: Allocation, pool: Mapping[str, ProblemNode], trainer_ids: set[str]
) -> list[str]:
    violations: list[str] = []
    for name, trainer_id in sorted(allocation.assignment.items()):
        if name not in pool:
            violations.append(f"node {name} of trainer {trainer_id} is not in the pool")
        if trainer_id not in trainer_ids:
            violations.append(f"node {name} goes to {trainer_id}, which is no trainer")
    return violations


def _migration(trainer: ProblemTrainer, after: set[str], before: set[str]) -> str:
    names_gone, names_new = sorted(before - after), sorted(after - before)
    return (
        f"trainer {trainer.trainer_id} migrates: it loses {', '.join(names_gone)}"
        f" and receives {', '.join(names_new)}"
    )


def _eligibility(
    problem: Problem, by_trainer: Mapping[str, Sequence[str]], pool: Mapping[str, ProblemNode]
) -> list[str]:
    """Nodes of accepted classes only; all of one class unless the trainer mixes them."""
    may_run = problem.trainers[: problem.p_jmax]
    classes_of_pool = {node.eligibility for node in problem.nodes}
    if len(classes_of_pool) == 1 and not any(trainer.eligible for trainer in may_run):
        return []
    violations: list[str] = []
    for trainer in may_run:
        trainer_id, classes = trainer.trainer_id, set[str]()
        for name in by_trainer[trainer_id]:
            if name not in pool:
                continue
            eligibility = pool[name].eligibility
            classes.add(eligibility)
            if trainer.eligible and eligibility not in trainer.eligible:
                violations.append(
                    f"trainer {trainer_id} does not accept class {eligibility} of node {name}"
                )
        if len(classes) > 1 and not trainer.mixes_classes:
            violations.append(f"trainer {trainer_id} has nodes of {len(classes)} classes")
    violations.sort()
    return violations


def _worth(allocation: Allocation, parts: Sequence[float]) -> list[str]:
    """The stated objective is what the map is worth: the sum of its parts."""
    value = math.fsum(parts)
    # Relative to the parts: a sum near 0 keeps only their rounding.
    tolerance = RELATIVE_TOLERANCE * max(math.fsum(map(abs, parts)), 1e-300)
    if not abs(allocation.objective - value) <= tolerance:  # also true for NaN
        return [f"the objective is {value!r}, not {allocation.objective!r}"]
    return []


def _numbers(allocation: Allocation, trainer_ids: set[str]) -> list[str]:
    """Price, gap and marginal values are numbers that can be what they claim to be."""
    violations: list[str] = []
    if not 0 <= allocation.node_price < math.inf:
        violations.append(f"the node price is {allocation.node_price!r}")
    if not 0 <= allocation.gap < math.inf:
        violations.append(f"the gap is {allocation.gap!r}")
    violations += [
        f"marginal values are given for {name}, which is no trainer"
        for name in sorted(allocation.marginals.keys() - trainer_ids)
    ]
    for name, marginal in allocation.marginals.items():
        if not _is_finite(marginal):
            violations.append(f"the marginal values of {name} are {marginal}")
    return violations


def _is_finite(marginal: Marginal) -> bool:
    gain, loss = marginal.gain_of_one_more, marginal.loss_of_one_fewer
    return (gain is None or math.isfinite(gain)) and (loss is None or math.isfinite(loss))


def validate(problem: Problem) -> None:
    """Raise ``ProblemError`` unless every field makes sense.

    A trainer's current node that is not in the pool is no error: it has left.
    """
    if lends_gpus(problem):
        _validate_hosts(problem)
    if not _is_plainly_sound(problem):
        _look_closely(problem)


def _is_plainly_sound(problem: Problem) -> bool:
    """Return whether a quick look finds nothing wrong; what it doubts need not be wrong.

    Every decision pays for it, so that it looks at many numbers at once: a sum of numbers
    is no number when one of them is not.
    """
    nodes, trainers = problem.nodes, problem.trainers
    ends = {node.expected_remaining_s for node in nodes}
    if not (
        0 <= problem.t_fwd_s <= LARGEST_NUMBER
        and problem.p_jmax >= 0
        and problem.objective is not Objective.UTILITY
        and len(set(names_of(nodes))) == len(nodes)
        and len(set(ids_of(trainers))) == len(trainers)
        and not math.isnan(sum([end for end in ends if end is not None]))
        and all(0 <= cap.most <= LARGEST_SIZE for cap in problem.caps)
    ):
        return False
    current: set[str] = set()
    current.update(*[trainer.current for trainer in trainers])
    return len(current) == sum([len(trainer.current) for trainer in trainers]) and all(
        map(_is_plain, trainers)
    )


def _is_plain(trainer: ProblemTrainer) -> bool:
    sizes, rates = trainer.curve.sizes, trainer.curve.samples_per_s
    numbers = (trainer.rescale_up_s, trainer.rescale_down_s, trainer.warm_up_s, trainer.weight)
    return (
        1 <= trainer.n_min <= trainer.n_max <= LARGEST_SIZE
        and _are_plain(numbers)
        and 0 < len(sizes) == len(rates)
        and sizes[0] >= 1
        and sizes[-1] <= LARGEST_SIZE
        and all(map(operator.lt, sizes, sizes[1:]))
        and _are_plain(rates)
        and rates[0] >= SMALLEST_RATE * sizes[0]
        and trainer.utility is None
        and not trainer.sizes
    )


def _are_plain(numbers: Sequence[float]) -> bool:
    return not numbers or (min(numbers) >= 0 and sum(numbers) <= LARGEST_NUMBER)


def _look_closely(problem: Problem) -> None:
    _require_number("t_fwd_s", problem.t_fwd_s)
    at_least = "Give 0 or a positive number of trainers."
    _require(problem.p_jmax >= 0, "BFT-3001", f"p_jmax is {problem.p_jmax}.", at_least)
    counts = Counter(names_of(problem.nodes))
    for name, count in counts.items():
        if count > 1:
            cause = f"Node {name} is listed twice in nodes."
            raise ProblemError("BFT-3004", cause, "List each node once.", node=name)
    for node in problem.nodes:
        if math.isnan(node.expected_remaining_s or 0.0):
            cause = f"Node {node.name}: expected_remaining_s is not a number."
            next_step = "Give seconds, or None when no end is in sight."
            raise ProblemError("BFT-3005", cause, next_step, node=node.name)
    for cap in problem.caps:
        _require(
            0 <= cap.most <= LARGEST_SIZE,
            "BFT-1541",
            f"The cap of {cap.name} is {_written(cap.most)} nodes.",
            f"Give a whole number of nodes from 0 to {LARGEST_SIZE}.",
        )
    owners: dict[str, str] = {}
    trainer_ids: set[str] = set()
    for trainer in problem.trainers:
        trainer_id = trainer.trainer_id
        try:
            _require(
                trainer_id not in trainer_ids,
                "BFT-3002",
                f"Trainer {trainer_id} is listed twice.",
                "Give every trainer its own trainer_id.",
            )
            trainer_ids.add(trainer_id)
            _validate_trainer(trainer, problem.objective)
            for name in trainer.current:
                owner = owners.setdefault(name, trainer_id)
                cause = f"Node {name} is current of two trainers, {owner} and {trainer_id}."
                next_step = "List each node in the current of one trainer only."
                _require(owner == trainer_id, "BFT-3003", cause, next_step)
        except ProblemError as error:
            error.trainer_id = trainer_id
            raise


def _validate_hosts(problem: Problem) -> None:
    """Raise ``ProblemError`` unless hosts, parts and widths fit together."""
    host_widths: dict[str, int] = {}
    gpus_listed: dict[str, int] = {}  # by host
    free_gpus: set[str] = set()
    for node in problem.nodes:
        host, width, host_width = node.host, node.width, node.host_width
        if not host:
            continue
        n_listed = gpus_listed.get(host, 0) + width
        gpus_listed[host] = n_listed
        if not node.has_pilot:
            free_gpus.add(node.name)
        if not 1 <= width <= host_width <= LARGEST_SIZE:
            cause = f"Node {node.name}: width {_written(width)} is not from 1 to its host_width"
            cause += f" {_written(host_width)}."
            raise ProblemError("BFT-3013", cause, "Correct width or host_width.", node=node.name)
        if width > 1 and not node.has_pilot:
            cause = f"Node {node.name} has no pilot, but a width of {width}."
            next_step = "List free GPUs one by one, each with width 1."
            raise ProblemError("BFT-3014", cause, next_step, node=node.name)
        if host_widths.setdefault(host, host_width) != host_width:
            cause = f"Host {host} has host_width {host_widths[host]} and {host_width}."
            next_step = "Give all nodes of a host the same host_width."
            raise ProblemError("BFT-3015", cause, next_step, node=node.name)
        if n_listed > host_width:
            cause = f"The nodes of host {host} are {n_listed} GPUs, and it has {host_width}."
            next_step = "List each GPU of a host once, free or in a part."
            raise ProblemError("BFT-3016", cause, next_step, node=node.name)
    for trainer in problem.trainers:
        trainer_id = trainer.trainer_id
        if not 0 <= trainer.width <= LARGEST_SIZE:
            cause = f"Trainer {trainer_id}: width is {_written(trainer.width)}."
            next_step = f"Give 0 for whole hosts, or a number of GPUs up to {LARGEST_SIZE}."
            raise ProblemError("BFT-3017", cause, next_step, trainer_id=trainer_id)
        for name in free_gpus.intersection(trainer.current):
            cause = f"Trainer {trainer_id}: its current names {name}, a GPU that no pilot holds."
            next_step = "Name parts with pilots only."
            raise ProblemError("BFT-3018", cause, next_step, trainer_id=trainer_id, node=name)


def _validate_trainer(trainer: ProblemTrainer, objective: Objective) -> None:
    where = f"Trainer {trainer.trainer_id}"
    low, high = _written(trainer.n_min), _written(trainer.n_max)
    _require(
        1 <= trainer.n_min <= trainer.n_max,
        "BFT-3006",
        f"{where}: n_min {low} and n_max {high} leave no size.",
        "Choose 1 <= n_min <= n_max.",
    )
    _require_number(f"{where}: n_max", trainer.n_max, most=LARGEST_SIZE)
    _require(
        all(map(operator.lt, (0, *trainer.sizes), trainer.sizes)),
        "BFT-3009",
        f"{where}: its sizes are not strictly increasing from 1.",
        "Sort the sizes, and leave out repetitions and size 0.",
    )
    is_once = len(set(trainer.current)) == len(trainer.current)
    twice = f"{where}: current names a node twice."
    _require(is_once, "BFT-3007", twice, "List each node once.")
    for field in ("rescale_up_s", "rescale_down_s", "warm_up_s", "weight"):
        _require_number(f"{where}: {field}", getattr(trainer, field))
    _require(
        objective is not Objective.UTILITY or trainer.utility is not None,
        "BFT-3012",
        f"{where}: the objective utility needs the trainer's utility, and it has none.",
        "Give the trainer a utility curve, or use another objective.",
    )
    _validate_curve(where, "curve", trainer.curve)
    if trainer.utility is not None:
        _validate_curve(where, "utility", trainer.utility)
    if objective in {Objective.SCALING_EFFICIENCY, Objective.WEIGHTED}:
        _require(
            trainer.curve.samples_per_s[0] >= SMALLEST_RATE * trainer.curve.sizes[0],
            "BFT-3010",
            f"{where}: the objective {objective.value} divides by O(1), which is below"
            f" {SMALLEST_RATE:g}.",
            "Give a curve that is positive at its first size, or use the objective throughput.",
        )


def _validate_curve(where: str, name: str, curve: Curve) -> None:
    sizes = curve.sizes
    _require(
        0 < len(sizes) == len(curve.samples_per_s),
        "BFT-3008",
        f"{where}: {name} has {len(sizes)} sizes and {len(curve.samples_per_s)} values.",
        "Give at least one size and as many values as sizes.",
    )
    _require(
        sizes[0] >= 1 and all(map(operator.lt, sizes, sizes[1:])),
        "BFT-3009",
        f"{where}: {name} sizes are not strictly increasing from 1.",
        "Sort the sizes, remove repetitions and leave out size 0.",
    )
    _require_number(f"{where}: the last of the {name} sizes", sizes[-1], most=LARGEST_SIZE)
    for value in curve.samples_per_s:
        _require_number(f"{where}: {name} samples_per_s", value)


def _require_number(field: str, value: float, *, most: float = LARGEST_NUMBER) -> None:
    if not 0 <= value <= most:  # also true for NaN
        cause, next_step = f"{field} is {_written(value)}.", f"Give a number from 0 to {most:g}."
        raise ProblemError("BFT-3011", cause, next_step)


def _require(is_right: bool, code: str, cause: str, next_step: str) -> None:
    if not is_right:
        raise ProblemError(code, cause, next_step)


def _written(number: float) -> str:
    """Write a number out, unless that would take hundreds of digits."""
    if isinstance(number, int) and abs(number) >= 1 << 63:
        return "beyond 2 to the 63"
    return str(number)
