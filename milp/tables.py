"""Value tables: what each size of a trainer is worth in the objective of eq. 16.

v_j(n) = t_fwd O_j(n) - O_j(C_j) R, with R = R_up for n > C_j, R_dw for n < C_j, 0 at
C_j; C_j counts the current nodes still in the pool. Unit: that of O_j times seconds.
A parked trainer has O_j(0) = 0, so starting costs nothing. Read by the solvers.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from milp.problem import Objective, ProblemTrainer

FloatArray: TypeAlias = NDArray[np.float64]
IntArray: TypeAlias = NDArray[np.int64]
BoolArray: TypeAlias = NDArray[np.bool_]


def value_table(
    trainer: ProblemTrainer,
    n_present: int,
    largest: int,
    *,
    t_fwd_s: float,
    objective: Objective,
) -> FloatArray:
    """Values of sizes 0..largest (bounds not applied), for a trainer with C_j present."""
    curve = trainer.curve
    xs = (0, *curve.sizes)
    ys = (0.0, *curve.samples_per_s)
    sizes = np.arange(max(largest, n_present) + 1)
    rate = np.interp(sizes, xs, ys) * _scale(trainer, objective)
    held = rate[n_present]
    values = t_fwd_s * rate
    values[:n_present] -= held * trainer.rescale_down_s
    values[n_present + 1 :] -= held * trainer.rescale_up_s
    return values[: largest + 1]


def _scale(trainer: ProblemTrainer, objective: Objective) -> float:
    """Factor that turns samples per second into the objective's unit."""
    if objective is Objective.THROUGHPUT:
        return 1.0
    first_size, first_value = trainer.curve.sizes[0], trainer.curve.samples_per_s[0]
    single = first_value / first_size  # O(1): the line from (0, 0) to the first breakpoint
    return (trainer.weight if objective is Objective.WEIGHTED else 1.0) / single
