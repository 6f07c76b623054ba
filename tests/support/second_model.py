"""A second reading of the problem, on HiGHS, from the paper's text and the definition of worth.

Takes a problem as its JSON (a dict) and imports nothing of ``milp``, so that an error of ours is
not repeated here. Liu et al., arXiv 2106.12091, section 3: a node has one trainer (eq. 5), a size
is 0 or within bounds (eq. 3-4), who grows keeps all and who shrinks gets none (eq. 6-10). Counts of
nodes by class are enough, because any free node of a class serves. It knows caps, sets of sizes,
warm-ups, several classes and trainers that must run; not those that mix classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import highspy
import numpy as np

Row = tuple[int, str, int, float]  # trainer, class, size, worth of it


def best_worth(problem: Mapping[str, Any], *, most_s: float = 60.0) -> float:
    """Return the most that any allocation is worth; NaN: those that must run cannot."""
    may_run = problem["trainers"][: problem["p_jmax"]]
    rows = [row for j, trainer in enumerate(may_run) for row in _rows(problem, j, trainer)]
    stopped = problem["trainers"][len(may_run) :]
    beyond = sum([_worth(problem, trainer, _held(problem, trainer), 0) for trainer in stopped])
    if not rows:
        is_impossible = any(trainer["must_run"] for trainer in may_run)
        return float("nan") if is_impossible else float(beyond)
    scale = 1e4 / (max([abs(row[3]) for row in rows]) or 1.0)
    highs: Any = highspy.Highs()
    for name, value in (("output_flag", False), ("threads", 1), ("mip_rel_gap", 0.0)):
        highs.setOptionValue(name, value)
    highs.setOptionValue("mip_abs_gap", 1e-7)
    highs.setOptionValue("time_limit", most_s)
    for _, _, _, worth in rows:
        highs.addVar(0.0, 1.0)
        highs.changeColCost(highs.getNumCol() - 1, worth * scale)
    every = np.arange(len(rows), dtype=np.int32)
    highs.changeColsIntegrality(len(rows), every, np.ones(len(rows), dtype=np.uint8))
    highs.changeObjectiveSense(highspy.ObjSense.kMaximize)

    def add(low: float, high: float, factor_of: list[float]) -> None:
        used = np.flatnonzero(factor_of).astype(np.int32)
        highs.addRow(low, high, len(used), used, np.array(factor_of, dtype=np.float64)[used])

    for j in range(len(may_run)):  # one size, of which 0 is one
        add(1.0, 1.0, [float(row[0] == j) for row in rows])
    for kind in {node["eligibility"] for node in problem["nodes"]}:
        count = sum([node["eligibility"] == kind for node in problem["nodes"]])
        add(-highspy.kHighsInf, count, [row[2] * float(row[1] == kind) for row in rows])
    names = [trainer["trainer_id"] for trainer in may_run]
    for cap in problem.get("caps", ()):
        factors = [row[2] * float(names[row[0]] in cap["trainers"]) for row in rows]
        add(-highspy.kHighsInf, cap["most"], factors)
    highs.run()
    status = highs.getModelStatus()
    if status == highspy.HighsModelStatus.kInfeasible:
        return float("nan")
    assert status == highspy.HighsModelStatus.kOptimal, status
    return float(highs.getInfo().objective_function_value) / scale + beyond


def _rows(problem: Mapping[str, Any], j: int, trainer: Mapping[str, Any]) -> Iterator[Row]:
    held = _held(problem, trainer)
    if not trainer["must_run"]:
        yield j, "", 0, _worth(problem, trainer, held, 0)
    kinds = sorted({node["eligibility"] for node in problem["nodes"]})
    for kind in kinds:
        if trainer["eligible"] and kind not in trainer["eligible"]:
            continue
        of_kind = [n["name"] for n in problem["nodes"] if n["eligibility"] == kind]
        own = len(set(of_kind) & set(trainer["current"]))
        most = len(of_kind) if own == held else own  # elsewhere, too: it can only shrink
        for size in range(trainer["n_min"], min(most, trainer["n_max"]) + 1):
            if not trainer.get("sizes") or size in trainer["sizes"]:
                yield j, kind, size, _worth(problem, trainer, held, size)


def _held(problem: Mapping[str, Any], trainer: Mapping[str, Any]) -> int:
    return len({node["name"] for node in problem["nodes"]} & set(trainer["current"]))


def _worth(problem: Mapping[str, Any], trainer: Mapping[str, Any], held: int, size: int) -> float:
    """Count what it makes in t_fwd_s seconds, less what its members miss in the pause."""
    time_s = problem["t_fwd_s"]
    if size == held:
        return float(time_s * _speed(problem, trainer, size))
    if size < held:
        missed = trainer["rescale_down_s"] * _speed(problem, trainer, held)
        return float(time_s * _speed(problem, trainer, size) - missed)
    alone_s = min(time_s, trainer["warm_up_s"])  # before the new ones are warm
    missed = trainer["rescale_up_s"] * _speed(problem, trainer, held)
    together_s = time_s - alone_s
    made = alone_s * _speed(problem, trainer, held) + together_s * _speed(problem, trainer, size)
    return float(made - missed)


def _speed(problem: Mapping[str, Any], trainer: Mapping[str, Any], size: int) -> float:
    objective = problem["objective"]
    if objective == "utility":
        return _height(trainer["utility"], size)
    speed = _height(trainer["curve"], size)
    if objective == "throughput":
        return speed
    speed /= _height(trainer["curve"], 1)
    return speed * trainer["weight"] if objective == "weighted" else speed


def _height(curve: Mapping[str, Sequence[float]], size: int) -> float:
    return float(np.interp(size, [0, *curve["sizes"]], [0.0, *curve["samples_per_s"]]))
