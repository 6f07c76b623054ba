"""What a trial's trainer is: the study's, with the trial's parameters, budget and directory. Pure.

An argument ``--lr={lr}`` of the script gets the parameter's value.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from bftrainer.model.errors import UsageError
from bftrainer.model.study import TrialTag
from bftrainer.model.trainer import TrainerSpec
from bftrainer.study.directory import StudyDirectory
from bftrainer.study.trials import Scalar, StoredTrial

_PLACE = re.compile(r"\{([A-Za-z_][A-Za-z0-9_.-]*)\}")


def filled(args: Sequence[str], parameters: Mapping[str, Scalar]) -> tuple[str, ...]:
    """Return the arguments with the parameters' values; what names none stays as it is."""

    def value(found: re.Match[str]) -> str:
        name = found[1]
        return str(parameters[name]) if name in parameters else found[0]

    return tuple(_PLACE.sub(value, one) for one in args)


def check_places(args: Sequence[str], names: Sequence[str]) -> None:
    """Refuse a place that is nearly a parameter's (BFT-1627)."""
    for name in (found[1] for one in args for found in _PLACE.finditer(one)):
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
        if name not in names and near:
            raise UsageError(
                "BFT-1627",
                f"The argument {{{name}}} names no parameter of the study.",
                f"Did you mean {{{near[0]}}}?",
            )


def spec_of(
    study: StudyDirectory,
    trial: StoredTrial,
    *,
    budget: int,
    most: int,
    attempt: int = 0,
    nodes: int | None = None,
) -> TrainerSpec:
    """Return the trainer of a trial.

    Args:
        study: whose trial it is.
        trial: with all its parameters.
        budget: units that it may train now.
        most: units that it may be granted.
        attempt: how often it was tried before.
        nodes: its size; None: as the study says.
    """
    base, document = study.base, study.document
    # In the document's order, whatever order the storage has.
    parameters = {name: trial.parameters[name] for name in document.parameters}
    is_samples = document.unit == "samples"
    return replace(
        base,
        name=f"{document.name}-{trial.number}",
        args=filled(base.args, parameters),
        epochs=None if is_samples else budget,
        samples=budget if is_samples else None,
        n_min=base.n_min if nodes is None else nodes,
        n_max=base.n_max if nodes is None else nodes,
        checkpoint_dir=str(study.of_trial(trial.number)),
        trial=TrialTag(
            study=study.study_id,
            number=trial.number,
            attempt=attempt,
            most=most,
            parameters=json.dumps(parameters),
        ),
    )
