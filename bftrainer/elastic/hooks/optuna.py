"""An Optuna objective as a trial of a study: ``run(objective)``.

The object has what objectives use of ``optuna.trial.Trial`` (Optuna 5.0). The study has chosen
the parameters and decides who goes on, so nothing is drawn or pruned here. Optuna itself is not
imported. See docs/howto/train-pytorch.md.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bftrainer.elastic import reporting
from bftrainer.elastic.errors import ElasticError
from bftrainer.elastic.parameters import params


class Trial:
    """The trial that this process trains."""

    def __init__(self) -> None:
        self._step: int | None = None  # of the last report

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

    def suggest_float(self, name: str, *_range: object, **_options: object) -> float:
        """Return a parameter of the study as a number.

        Raises:
            ElasticError: BFT-1613 when the study does not have it.
        """
        return float(_chosen(name))

    def suggest_int(self, name: str, *_range: object, **_options: object) -> int:
        """Return a parameter of the study as a whole number; raises as ``suggest_float``."""
        return int(_chosen(name))

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        """Return a parameter of the study, as it is among the choices.

        Raises:
            ElasticError: BFT-1613 when the study does not have it, or chose something else.
        """
        chosen = _chosen(name)
        for choice in choices:
            if choice == chosen and isinstance(choice, bool) == isinstance(chosen, bool):
                return choice
        raise ElasticError(
            "BFT-1613",
            f"The study chose {chosen!r} for {name!r}, which is not among the script's choices.",
            "Give the parameter the same choices in the study and in the script.",
        )

    def report(self, value: float, step: int) -> None:
        """Report a metric; ``step`` counts only where no elastic run knows its position."""
        self._step = step
        reporting.report(value, epoch=step)

    def should_prune(self) -> bool:
        """Return False: the study parks or ends a trial that is not to go on."""
        return False


def trial() -> Trial:
    """Return this process's trial."""
    return Trial()


def run(objective: Callable[[Trial], Any]) -> None:
    """Call an objective and report what it returns, in place of what it reported last.

    If it reported nothing, the value counts at the trial's budget.

    Raises:
        ElasticError: BFT-1611 when it returns no finite number.
    """
    one = trial()
    value = objective(one)
    epochs = os.environ.get("BFT_EPOCHS")  # the budget of a program of runtime command
    step = int(epochs) if one.last_step is None and epochs else one.last_step
    reporting.report(value, epoch=step)


def _chosen(name: str) -> Any:
    try:
        return params()[name]
    except KeyError:
        raise ElasticError(
            "BFT-1613",
            f"The study has no parameter {name!r}; it has: {', '.join(params()) or 'none'}.",
            "Add it to the parameters in STUDY.yaml, or run the script by `bftrainer study run`.",
        ) from None
