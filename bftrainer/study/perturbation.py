"""Changed parameters for a trial that starts from another one's state. Pure.

As in population based training (Jaderberg et al. 2017, "explore"): numbers are multiplied by 0.8 or
1.2, and a categorical value is drawn anew in one of four cases.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from bftrainer.study.configurations import (
    CategoricalParameter,
    FloatParameter,
    IntParameter,
    Parameter,
)
from bftrainer.study.trials import Scalar

FACTORS = (0.8, 1.2)
DRAWN_ANEW = 0.25


def perturbed(
    values: Mapping[str, Scalar], parameters: Mapping[str, Parameter], *, seed: int, number: int
) -> dict[str, Scalar]:
    """Return parameters near ``values``; the same for the same seed and trial."""
    return {
        name: _near(values[name], one, f"{seed}:{number}:{name}")
        for name, one in parameters.items()
    }


def _near(value: Scalar, parameter: Parameter, key: str) -> Scalar:
    if isinstance(parameter, CategoricalParameter):
        if _chance(f"{key}:anew") >= DRAWN_ANEW:
            return value
        return parameter.choices[int(_chance(key) * len(parameter.choices))]
    is_up = _chance(key) >= 0.5
    # A range that reaches below zero has no scale of its own: a share of its width is added.
    if parameter.low > 0:
        wanted = float(value) * FACTORS[is_up]
    else:
        share = (FACTORS[1] - 1.0) * (parameter.high - parameter.low)
        wanted = float(value) + (share if is_up else -share)
    if isinstance(parameter, IntParameter):
        steps = round((wanted - float(value)) / parameter.step) or (1 if is_up else -1)
        return _int_within(int(value) + steps * parameter.step, parameter)
    return _float_within(wanted, parameter)


def _int_within(value: int, parameter: IntParameter) -> int:
    last = parameter.low + (parameter.high - parameter.low) // parameter.step * parameter.step
    return max(parameter.low, min(last, value))


def _float_within(value: float, parameter: FloatParameter) -> float:
    value = max(parameter.low, min(parameter.high, value))
    if parameter.step is None:
        return value
    steps = round((value - parameter.low) / parameter.step)
    last = int((parameter.high - parameter.low) / parameter.step + 1e-9)
    return min(parameter.high, parameter.low + min(steps, last) * parameter.step)


def _chance(key: str) -> float:
    """Return a number in [0, 1) that only the key decides."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:6]) / float(1 << 48)
