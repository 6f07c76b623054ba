"""Metrics that a script reports: what is kept of them, and how they are sent.

They are part of the state of the training: handed over and in the checkpoints. Rank 0 sends
them, all that are kept each time, so that the newest message is enough after a loss of the
daemon. Standard library only. Used by ``generations`` and by scripts without a run object.

A trial that starts from another one's state (population based training) keeps what is its own:
the options of its optimizers (``state_transfer``) and, in every runtime, the metrics it reported.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from math import isfinite
from types import MappingProxyType
from typing import Any

from bftrainer.elastic.process import control
from bftrainer.ground.errors import ElasticError
from bftrainer.ground.protocol import MAX_REPORTS, Report

KEY = "bft-reports"  # among the registered objects of a run
NO_REPORTS: Mapping[str, Any] = {"reports": ()}  # as ``Reports.state_dict``
PARAMETERS = "BFT_PARAMETERS"
_TRIAL = "trial"  # in headers of checkpoints


class Reports:
    """The last reports of a training, by position; registered like a script's own state."""

    def __init__(self) -> None:
        self.kept: tuple[Report, ...] = ()

    def add(self, report: Report) -> None:
        """Add a report; those that are not before it are of a future that was undone."""
        before = [earlier for earlier in self.kept if _position(earlier) < _position(report)]
        self.kept = (*before, report)[-MAX_REPORTS:]

    def state_dict(self) -> dict[str, Any]:
        """Return the reports as plain values."""
        return {"reports": list(map(asdict, self.kept))}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore them."""
        reports: Iterable[Mapping[str, Any]] = state["reports"]
        self.kept = tuple(Report(**fields) for fields in reports)


def _position(report: Report) -> tuple[int, int, int]:
    return report.samples, report.epoch, report.step


def finite(value: Any) -> float:
    """Return a reported value as a number.

    Raises:
        ElasticError: BFT-1611 when it is not one finite number.
    """
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # the last is a tensor's
        number = float("nan")
    if isfinite(number):
        return number
    raise ElasticError(
        "BFT-1611",
        f"The reported metric is not a finite number: {str(value)[:80]}.",
        "Report one number; for a training that diverged a large one, or let it fail.",
    )


def report(value: Any, *, epoch: int | None = None) -> None:
    """Report a metric where there is no run object; see ``Run.report``.

    A program of runtime ``command`` has no run that knows its position: its line is printed,
    with ``epoch`` if given, else for the position that it printed last.
    """
    through = control.current().report
    if through is not None:
        through(value)
    elif "BFT_CONTROL_FILE" in os.environ:
        place = "" if epoch is None else f"epoch={epoch} "
        sys.stdout.write(f"BFT {place}value={finite(value)!r}\n")
        sys.stdout.flush()


def params() -> Mapping[str, Any]:
    """Return the parameters of this trial; an empty mapping for a script outside of a study.

    Raises:
        ElasticError: BFT-1612 when ``BFT_PARAMETERS`` is not a JSON object.
    """
    return _parsed(os.environ.get(PARAMETERS, "{}"))


@functools.lru_cache(maxsize=1)
def _parsed(text: str) -> Mapping[str, Any]:
    try:
        parameters = json.loads(text)
    except (ValueError, RecursionError):
        parameters = None
    if not isinstance(parameters, dict):
        raise ElasticError(
            "BFT-1612",
            f"{PARAMETERS} is not a JSON object: {text[:80]!r}.",
            f"Unset it, or set it as a study does: {PARAMETERS}='{{\"lr\": 0.1}}'.",
        )
    return MappingProxyType(parameters)


def trial_mark() -> dict[str, str]:
    """Return what a checkpoint's header says of this process's trial; empty: it is none."""
    study, number = os.environ.get("BFT_STUDY"), os.environ.get("BFT_TRIAL")
    if not (study and number):
        return {}
    return {_TRIAL: f"{study}/{number}"}


def is_inherited(header: Mapping[str, Any]) -> bool:
    """Return whether this is a trial and the checkpoint is not its own."""
    mark = trial_mark()
    return bool(mark) and header.get(_TRIAL) != mark[_TRIAL]
