"""Draws the parameters of new trials with Optuna's samplers.

``Study.ask`` on the study's own storage would create the trial first and then store one parameter
after the other: a killed process leaves half a trial. So samplers draw from a study in memory. What
a trial gets depends on the seed, its number and, with tpe, on what others had reported by then;
not on how often the study's process was started.
"""

from __future__ import annotations

import hashlib
import importlib.util
import warnings
from collections.abc import Mapping, Sequence

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers import QMCSampler, RandomSampler, TPESampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from bftrainer.model.errors import BftError, ExitCode
from bftrainer.study.configurations import FloatParameter, IntParameter, Parameter
from bftrainer.study.trials import Scalar

_Seen = list[tuple[TrialState, tuple[float, ...]]]


class Drawer:
    """Draws for one study."""

    def __init__(
        self,
        sampler: str,
        seed: int,
        space: Mapping[str, BaseDistribution],
        direction: StudyDirection,
    ) -> None:
        """Draw from a space by ``tpe``, ``random`` or ``qmc``."""
        self._name, self._seed, self._space = sampler, seed, dict(space)
        self._direction = direction
        self._memory = optuna.create_study(direction=direction)
        self._seen: _Seen = []  # states and reports of the trials in memory
        self._points: list[dict[str, Scalar]] = []  # of qmc, by number

    def draw(self, number: int, past: Sequence[FrozenTrial]) -> dict[str, Scalar]:
        """Return parameters for the trial of a number.

        Args:
            number: of the new trial.
            past: all trials of the study that there are; what scripts have added is not.

        Raises:
            BftError: BFT-1625, a package that the sampler needs is missing.
        """
        own = int.from_bytes(hashlib.sha256(f"{self._seed}:{number}".encode()).digest()[:4]) >> 1
        if self._name == "tpe":
            self._remember(past)
            self._memory.sampler = TPESampler(seed=own)
            self._seen.append((TrialState.RUNNING, ()))
            return self._memory.ask(self._space).params
        if self._name == "qmc":
            return self._point(number)
        sampler, trial = RandomSampler(seed=own), create_trial(state=TrialState.RUNNING)
        return {
            name: sampler.sample_independent(self._memory, trial, name, one)
            for name, one in self._space.items()
        }

    def _remember(self, past: Sequence[FrozenTrial]) -> None:
        """Put all trials into memory, unless they are there."""
        seen = [(one.state, tuple(one.intermediate_values.values())) for one in past]
        if seen == self._seen:
            return
        self._memory, self._seen = optuna.create_study(direction=self._direction), seen
        self._memory.add_trials([_told(one) for one in past])

    def _point(self, number: int) -> dict[str, Scalar]:
        """Return the point of the sequence with a number."""
        if importlib.util.find_spec("scipy") is None:  # Optuna would say so in the first trial only
            raise BftError(
                "BFT-1625",
                "The sampler qmc needs scipy.",
                "Run: pip install scipy",
                exit_code=ExitCode.USAGE,
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler = QMCSampler(scramble=True, seed=self._seed)
        trial = create_trial(state=TrialState.RUNNING)
        while len(self._points) <= number:  # the study in memory counts them
            self._points.append(sampler.sample_relative(self._memory, trial, self._space))
        return dict(self._points[number])


def _told(trial: FrozenTrial) -> FrozenTrial:
    """Return a trial as tpe is to see it: one that has reported counts by its newest value.

    Trials that wait at a rung are RUNNING in the storage, and tpe takes those for bad ones.
    """
    if trial.state is not TrialState.RUNNING or not trial.intermediate_values:
        return trial
    return create_trial(
        state=TrialState.PRUNED,
        params=trial.params,
        distributions=trial.distributions,
        intermediate_values=trial.intermediate_values,
    )


def distributions_of(parameters: Mapping[str, Parameter]) -> dict[str, BaseDistribution]:
    """Return Optuna's distribution of each parameter."""
    return {name: _distribution(one) for name, one in parameters.items()}


def _distribution(one: Parameter) -> BaseDistribution:
    if isinstance(one, FloatParameter):
        return FloatDistribution(one.low, one.high, log=one.log, step=one.step)
    if isinstance(one, IntParameter):
        return IntDistribution(one.low, one.high, log=one.log, step=one.step)
    return CategoricalDistribution(one.choices)
