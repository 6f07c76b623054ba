"""Parameters as Optuna's distributions and samplers.

A sampler is made anew for every trial, seeded by the study's seed and the trial's number: what a
trial gets does not depend on how often the study's process was started.
"""

from __future__ import annotations

import hashlib
import importlib.util
import warnings
from collections.abc import Mapping

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from bftrainer.errors import BftError, ExitCode
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


def sampler_of(name: str, seed: int, number: int) -> optuna.samplers.BaseSampler:
    """Return the sampler of one trial.

    Raises:
        BftError: BFT-1625, a package that it needs is missing.
    """
    own = int.from_bytes(hashlib.sha256(f"{seed}:{number}".encode()).digest()[:4]) >> 1
    if name == "random":
        return optuna.samplers.RandomSampler(seed=own)
    if name == "tpe":
        return optuna.samplers.TPESampler(seed=own, constant_liar=True)
    if importlib.util.find_spec("scipy") is None:  # Optuna would say so in the first trial only
        raise BftError(
            "BFT-1625",
            "The sampler qmc needs scipy.",
            "Run: pip install scipy",
            exit_code=ExitCode.USAGE,
        )
    # The sequence is one for all trials: it must not be seeded by the trial.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.samplers.QMCSampler(
            seed=seed, warn_asynchronous_seeding=False, warn_independent_sampling=False
        )
