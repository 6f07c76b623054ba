"""An Optuna objective as a trial of a study: ``run(objective)``.

The object has what objectives use of ``optuna.trial.Trial`` (Optuna 5.0): ``suggest_*``,
``report``, ``should_prune``, ``number``, ``params``, ``datetime_start``, attributes, and of
``study`` its ``study_name``. The rest raises an ``AttributeError`` that says so. The study has
chosen the parameters and decides who goes on, so nothing is drawn or pruned here; an objective may
raise ``TrialPruned`` itself. Optuna is not imported. See docs/reference/python-api.md.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from bftrainer.elastic.process import reports
from bftrainer.elastic.process.reports import params
from bftrainer.ground.errors import ElasticError

log = logging.getLogger("bftrainer.elastic")


class _Part:
    """A part of an object of Optuna's; the rest is refused by name."""

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"The {type(self).__name__.lower()} that bftrainer gives to an Optuna objective has no"
            f" {name!r}. docs/reference/python-api.md lists what it has."
        )


class Study(_Part):
    """The part of Optuna's study that a trial has: its name."""

    @property
    def study_name(self) -> str:
        """Its id, which is its name in ``optuna.log``, too; empty outside of a study."""
        return os.environ.get("BFT_STUDY", "")


class Trial(_Part):
    """The trial that this process trains."""

    def __init__(self) -> None:
        self._step: int | None = None  # of the last report
        self.datetime_start = datetime.now()  # noqa: DTZ005 - as Optuna's: without a zone
        self._user_attrs: dict[str, Any] = {}
        self._system_attrs: dict[str, Any] = {}

    @property
    def study(self) -> Study:
        """The study of this trial, of which only the name is known."""
        return Study()

    @property
    def number(self) -> int:
        """Its number in the study; 0 outside of one."""
        return int(os.environ.get("BFT_TRIAL", "0"))

    @property
    def last_step(self) -> int | None:
        """The step of its last report; None: there was none."""
        return self._step

    @property
    def params(self) -> Mapping[str, Any]:
        """All parameters that the study chose."""
        return params()

    @property
    def user_attrs(self) -> dict[str, Any]:
        """A copy of what the objective has set since this process began."""
        return dict(self._user_attrs)

    @property
    def system_attrs(self) -> dict[str, Any]:
        """The same of what Optuna before 5.0 called so."""
        return dict(self._system_attrs)

    def set_user_attr(self, key: str, value: Any) -> None:
        """Keep something in this process; the study does not see it."""
        self._user_attrs[key] = value

    def set_system_attr(self, key: str, value: Any) -> None:
        """Keep something in this process; the study does not see it."""
        self._system_attrs[key] = value

    def suggest_float(self, name: str, *_range: object, **_options: object) -> float:
        """Return a parameter of the study as a number.

        Raises:
            ElasticError: BFT-1613 when the study does not have it.
        """
        return float(_chosen(name))

    suggest_uniform = suggest_loguniform = suggest_discrete_uniform = suggest_float

    def suggest_int(self, name: str, *_range: object, **_options: object) -> int:
        """Return a parameter of the study as a whole number; raises as ``suggest_float``."""
        return int(_chosen(name))

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        """Return a parameter of the study, as it is among the choices.

        Raises:
            ElasticError: BFT-1613 when the study does not have it, or chose something else.
        """
        value = _chosen(name)
        for choice in choices:
            if choice == value and isinstance(choice, bool) == isinstance(value, bool):
                return choice
        raise ElasticError(
            "BFT-1613",
            f"The study chose {value!r} for {name!r}, which is not among the script's choices.",
            "Give the parameter the same choices in the study and in the script.",
        )

    def report(self, value: float, step: int) -> None:
        """Report a metric; ``step`` counts only where no elastic run knows its position.

        Steps count from 0, as Optuna's pruners have it: after step 0 one epoch is complete.
        """
        self._step = int(step)
        epoch, budget = self._step + 1, _budget()
        if budget is not None:
            # Beyond it, where some count from 1, it would hide what the objective returns.
            epoch = min(epoch, budget)
        reports.report(value, epoch=epoch)

    def should_prune(self) -> bool:
        """Return False: the study parks or ends a trial that is not to go on."""
        return False


def trial() -> Trial:
    """Return this process's trial."""
    return Trial()


def run(objective: Callable[[Trial], Any]) -> None:
    """Call an objective and report what it returns, in place of what it reported last.

    Where no elastic run knows the position, the value counts at the trial's budget. After
    ``optuna.TrialPruned`` what the objective reported last is what counts.

    Raises:
        ElasticError: BFT-1611 when it returns no finite number.
    """
    own_trial = trial()
    try:
        value = objective(own_trial)
    except Exception as error:
        if not any(kind.__name__ == "TrialPruned" for kind in type(error).__mro__):
            raise
        log.warning("the objective ended its trial: TrialPruned %s", error)
        return
    epoch = _budget() or None
    if epoch is None and own_trial.last_step is not None:
        epoch = own_trial.last_step + 1
    reports.report(value, epoch=epoch)


def _budget() -> int | None:
    """Return the epochs that a program of runtime command is to train; None: not said."""
    epochs = os.environ.get("BFT_EPOCHS")
    if not epochs:
        return None
    return int(epochs)


def _chosen(name: str) -> Any:
    try:
        return params()[name]
    except KeyError:
        raise ElasticError(
            "BFT-1613",
            f"The study has no parameter {name!r}; it has: {', '.join(params()) or 'none'}.",
            "Add it to the parameters in STUDY.yaml, or run the script by `bftrainer study run`.",
        ) from None
