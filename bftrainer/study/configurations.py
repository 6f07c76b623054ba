"""Configurations that are not drawn by a sampler: listed, from a CSV file, or a grid.

``document`` settles them when it reads a study: everything else sees a list, or a sampler.
"""

from __future__ import annotations

import csv
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bftrainer.study.parameters import (
    CategoricalParameter,
    FloatParameter,
    IntParameter,
    Parameter,
    is_plain,
)
from bftrainer.study.trials import Scalar

MOST = 10_000
_ON_STEP = 1e-8  # of a step, as Optuna has it
Configuration = Mapping[str, Scalar]


class ConfigurationError(Exception):
    """Configurations that cannot be used; ``where`` is the key that is to blame."""

    def __init__(self, where: Sequence[str | int], cause: str, next_step: str) -> None:
        super().__init__(cause)
        self.where, self.cause, self.next_step = where, cause, next_step


def settled(
    listed: Sequence[Configuration] | str | None,
    parameters: Mapping[str, Parameter],
    folder: Path,
    *,
    is_grid: bool,
) -> tuple[tuple[Configuration, ...] | None, Mapping[str, Parameter]]:
    """Return configurations as a list, None if a sampler draws them, and all parameters.

    Args:
        listed: the list, or the name of a CSV file.
        parameters: that are declared; none: those of the list.
        folder: of the CSV file.
        is_grid: every combination, if nothing is listed.

    Raises:
        ConfigurationError: they do not fit, or there is nothing to search.
    """
    found = listed
    if isinstance(found, str):
        found = _read_csv(folder / found, parameters)
    elif found is None and is_grid:
        found = grid(parameters)
    if found is None and parameters:
        return None, parameters
    if found is None:
        raise ConfigurationError(
            ("parameters",), "There is nothing to search.", "List parameters or configurations."
        )
    if not found:
        raise ConfigurationError(
            ("configurations",), "There is no configuration.", "List at least one."
        )
    names = list(parameters) or list(found[0])
    for index, one in enumerate(found):
        if set(one) != set(names):
            raise ConfigurationError(
                ("configurations", index),
                f"Configuration {index} has {', '.join(one) or 'nothing'}.",
                f"Give each of: {', '.join(names)}.",
            )
        if bad := next((name for name in names if not is_plain(one[name])), None):
            raise ConfigurationError(
                ("configurations", index, bad),
                f"Configuration {index} has {bad} = {one[bad]!r}, with a control character.",
                "Remove it.",
            )
    declared = parameters or {name: _declared([one[name] for one in found]) for name in names}
    _check(found, declared)
    return tuple(found), declared


def grid(parameters: Mapping[str, Parameter]) -> tuple[Configuration, ...]:
    """Return every combination, the last parameter changing fastest."""
    size = 1
    for name, one in parameters.items():
        size *= _count(name, one)
        if size > MOST:
            raise ConfigurationError(
                ("sampler",), f"The grid has more than {MOST} configurations.", "Make it coarser."
            )
    axes = [_axis(one) for one in parameters.values()]
    return tuple(dict(zip(parameters, values, strict=True)) for values in itertools.product(*axes))


def _count(name: str, one: Parameter) -> int:
    """Return how many values a parameter has in a grid; more than ``MOST`` are not counted."""
    if isinstance(one, CategoricalParameter):
        return len(one.choices)
    if one.step is None:
        raise ConfigurationError(
            ("parameters", name), f"A grid needs a step of {name}.", "Add step, or list values."
        )
    return int(min((one.high - one.low) / one.step + 1e-9, MOST)) + 1


def _axis(one: Parameter) -> list[Scalar]:
    if isinstance(one, CategoricalParameter):
        return list(one.choices)
    count = _count("", one)
    if isinstance(one, IntParameter):
        return [one.low + index * one.step for index in range(count)]
    # The last sum may be beyond the bound by a rounding error.
    return [min(one.low + index * (one.step or 0.0), one.high) for index in range(count)]


def _declared(values: Sequence[Scalar]) -> Parameter:
    """Return the parameter that has these values."""
    if all(type(v) is int for v in values):
        numbers = [int(v) for v in values]
        return IntParameter(type="int", low=min(numbers), high=max(numbers))
    if all(type(v) in (int, float) for v in values):
        reals = [float(v) for v in values]
        return FloatParameter(type="float", low=min(reals), high=max(reals))
    return CategoricalParameter(type="categorical", choices=tuple(dict.fromkeys(values)))


def _check(found: Sequence[Configuration], declared: Mapping[str, Parameter]) -> None:
    for index, one in enumerate(found):
        for name, parameter in declared.items():
            if not _is_within(one[name], parameter):
                raise ConfigurationError(
                    ("configurations", index, name),
                    f"Configuration {index} has {name} = {one[name]!r}, which is no value of it.",
                    "Correct it, or the parameter.",
                )


def _is_within(value: Any, parameter: Parameter) -> bool:
    if isinstance(parameter, CategoricalParameter):
        return value in parameter.choices
    if isinstance(parameter, IntParameter):
        on_step = isinstance(value, int) and (value - parameter.low) % parameter.step == 0
        return on_step and parameter.low <= value <= parameter.high
    if not (isinstance(value, int | float) and parameter.low <= value <= parameter.high):
        return False
    steps = 0.0 if parameter.step is None else (value - parameter.low) / parameter.step
    return abs(steps - round(steps)) < _ON_STEP


def _read_csv(path: Path, parameters: Mapping[str, Parameter]) -> tuple[Configuration, ...]:
    try:
        rows = _rows(path)
    except (OSError, ValueError, csv.Error) as problem:  # a name with NUL, too
        raise ConfigurationError(
            ("configurations",), f"{path} cannot be read: {problem}.", "Name a CSV file."
        ) from problem
    if len(rows) > MOST or any(None in row or None in row.values() for row in rows):
        raise ConfigurationError(
            ("configurations",),
            f"{path} has rows that are too long or short, or more than {MOST}.",
            "Write the names in the first row and one configuration in each other.",
        )
    return tuple(
        {name: _typed(text, parameters.get(name)) for name, text in r.items()} for r in rows
    )


def _rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a file, at most one too many."""
    if path.exists() and not path.is_file():  # a pipe would hold us
        raise OSError("it is not a regular file")
    with path.open(newline="", encoding="utf-8") as stream:
        return list(itertools.islice(csv.DictReader(stream), MOST + 1))


def _typed(text: str, parameter: Parameter | None) -> Scalar:
    if isinstance(parameter, CategoricalParameter):
        return next((choice for choice in parameter.choices if str(choice) == text), text)
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return text
