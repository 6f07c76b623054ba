"""Parameters as Optuna's distributions."""

from __future__ import annotations

from collections.abc import Mapping

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from bftrainer.study.parameters import FloatParameter, IntParameter, Parameter


def distributions_of(parameters: Mapping[str, Parameter]) -> dict[str, BaseDistribution]:
    """Return Optuna's distribution of each parameter."""
    return {name: _distribution(one) for name, one in parameters.items()}


def _distribution(one: Parameter) -> BaseDistribution:
    if isinstance(one, FloatParameter):
        return FloatDistribution(one.low, one.high, log=one.log, step=one.step)
    if isinstance(one, IntParameter):
        return IntDistribution(one.low, one.high, log=one.log, step=one.step)
    return CategoricalDistribution(one.choices)
