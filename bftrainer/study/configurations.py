"""The parameters of a study, configurations that no sampler draws, and changed ones for heirs.

``document`` settles listed configurations, or those of a CSV file, when it reads a study:
everything else sees a list, or a sampler.

A trial that starts from another one's state has changed parameters, as in population based training
(Jaderberg et al. 2017, "explore"): numbers are multiplied by 0.8 or 1.2, and a categorical value is
drawn anew in one of four cases.
"""

from __future__ import annotations

import csv
import hashlib
import io
import itertools
import math
import unicodedata
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from bftrainer.ground.regular_file import read_file
from bftrainer.study.trials import Scalar

MOST_INTEGER = 1 << 53  # beyond it floats, which Optuna keeps, are not exact
Integer = Annotated[int, Field(ge=-MOST_INTEGER, le=MOST_INTEGER)]

MOST = 10_000  # configurations
_ON_STEP = 1e-8  # of a step, as Optuna has it
FACTORS = (0.8, 1.2)
DRAWN_ANEW = 0.25
_RANGE = "low must not be above high"
_MOST_BYTES = 64 << 20


class StrictModel(BaseModel):
    """Frozen, with no other keys than those declared, and no conversions."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class FloatParameter(StrictModel):
    """A real number between two bounds; with a step, ``high`` becomes the last value on one."""

    type: Literal["float"]
    low: float
    high: float
    log: bool = False
    step: float | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.low > self.high:
            raise ValueError(_RANGE)
        if self.log and (self.low <= 0 or self.step is not None):
            raise ValueError("log needs low > 0 and no step")
        if not math.isfinite(self.high - self.low):
            raise ValueError("low and high are too far apart")
        if self.step is not None:
            last = _last_on_step(self.low, self.high, self.step)
            object.__setattr__(self, "high", last)  # it is frozen
        return self

    def axis(self) -> Sequence[Scalar]:
        """Return its values in a grid, at most one more than ``MOST``; none without a step."""
        if self.step is None:
            return ()
        count = int(min((self.high - self.low) / self.step + 1e-9, MOST)) + 1
        # The last sum may be beyond the bound by a rounding error.
        return [min(self.low + index * self.step, self.high) for index in range(count)]

    def has(self, value: Any) -> bool:
        """Return whether it may have a value."""
        if not (isinstance(value, int | float) and self.low <= value <= self.high):
            return False
        if self.step is None:
            return True
        steps = (value - self.low) / self.step
        return bool(abs(steps - round(steps)) < _ON_STEP)

    def near(self, value: Scalar, key: str) -> float:
        """Return a value near another one, drawn by a key."""
        moved = max(self.low, min(self.high, _moved(float(value), self, key)))
        if self.step is None:
            return moved
        return min(self.high, self.low + round((moved - self.low) / self.step) * self.step)


class IntParameter(StrictModel):
    """A whole number between two bounds; ``high`` becomes the last value on a step."""

    type: Literal["int"]
    low: Integer
    high: Integer
    log: bool = False
    step: int = Field(default=1, ge=1, le=MOST_INTEGER)

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.low > self.high:
            raise ValueError(_RANGE)
        if self.log and (self.low < 1 or self.step != 1):
            raise ValueError("log needs low >= 1 and no step")
        last = self.high - (self.high - self.low) % self.step
        object.__setattr__(self, "high", last)  # it is frozen
        return self

    def axis(self) -> Sequence[Scalar]:
        """Return its values in a grid."""
        return range(self.low, self.high + 1, self.step)

    def has(self, value: Any) -> bool:
        """Return whether it may have a value."""
        return isinstance(value, int) and value in range(self.low, self.high + 1, self.step)

    def near(self, value: Scalar, key: str) -> int:
        """Return another value near one, drawn by a key."""
        moved = _moved(float(value), self, key) - float(value)
        steps = round(moved / self.step) or (1 if moved > 0 else -1)
        return max(self.low, min(self.high, int(value) + steps * self.step))


class CategoricalParameter(StrictModel):
    """One of several values."""

    type: Literal["categorical"]
    choices: tuple[Scalar, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _are_printable(self) -> Self:
        # A daemon refuses trainers with such arguments.
        for choice in self.choices:
            if not is_plain(choice):
                raise ValueError(f"{choice!r} has a control character")
        return self

    def axis(self) -> Sequence[Scalar]:
        """Return its values in a grid."""
        return self.choices

    def has(self, value: Any) -> bool:
        """Return whether it may have a value."""
        return value in self.choices

    def near(self, value: Scalar, key: str) -> Scalar:
        """Return a value, in one of four cases drawn anew, by a key."""
        if _chance(f"{key}:anew") >= DRAWN_ANEW:
            return value
        return self.choices[int(_chance(key) * len(self.choices))]


def _moved(value: float, parameter: FloatParameter | IntParameter, key: str) -> float:
    """Return a number moved up or down, as a key decides."""
    is_up = _chance(key) >= 0.5
    # A range that reaches below zero has no scale of its own: a share of its width is added.
    if parameter.low > 0:
        return value * FACTORS[is_up]
    share = (FACTORS[1] - 1.0) * (parameter.high - parameter.low)
    return value + (share if is_up else -share)


def _chance(key: str) -> float:
    """Return a number in [0, 1) that only the key decides."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:6]) / float(1 << 48)


def _last_on_step(low: float, high: float, step: float) -> float:
    """Return the greatest value up to ``high``, rounded as Optuna (5.0) does with a warning."""
    first, width = Decimal(str(low)), Decimal(str(step))
    try:
        last = float((Decimal(str(high)) - first) // width * width + first)
        is_on_step = (Decimal(str(last)) - first) % width == 0
    except InvalidOperation:  # more steps than it has digits
        is_on_step = False
    if not is_on_step:
        raise ValueError("step and the bounds have too many digits between them")
    return last


def is_plain(value: Scalar) -> bool:
    """Return whether a value has no control characters and is valid text."""
    if not isinstance(value, str):
        return True
    return not any(unicodedata.category(character) in ("Cc", "Cs") for character in value)


def _long(value: Any) -> Any:
    """Return ``[a, b]`` as a categorical parameter, and lists as tuples."""
    if isinstance(value, list | tuple):
        return {"type": "categorical", "choices": tuple(value)}
    if isinstance(value, dict) and isinstance(value.get("choices"), list):
        return {**value, "choices": tuple(value["choices"])}
    return value


Parameter = FloatParameter | IntParameter | CategoricalParameter
DeclaredParameter = Annotated[
    Annotated[Parameter, Field(discriminator="type")],
    BeforeValidator(_long, json_schema_input_type=Parameter | list[Scalar]),
]


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
    configurations = listed
    if isinstance(configurations, str):
        configurations = _read_csv(folder / configurations, parameters)
    elif configurations is None and is_grid:
        configurations = grid(parameters)
    if configurations is None and parameters:
        return None, parameters
    if configurations is None:
        raise ConfigurationError(
            ("parameters",), "There is nothing to search.", "List parameters or configurations."
        )
    if not configurations:
        raise ConfigurationError(
            ("configurations",), "There is no configuration.", "List at least one."
        )
    names = list(parameters) or list(configurations[0])
    for index, configuration in enumerate(configurations):
        _check_form(index, configuration, names)
    if not parameters:
        parameters = _parameters_of(names, configurations)
    for index, configuration in enumerate(configurations):
        _check_values(index, configuration, parameters)
    return tuple(configurations), parameters


def _check_form(index: int, configuration: Configuration, names: Sequence[str]) -> None:
    """Refuse a configuration that has other names, or a value that is no plain text."""
    if set(configuration) != set(names):
        raise ConfigurationError(
            ("configurations", index),
            f"Configuration {index} has {', '.join(configuration) or 'nothing'}.",
            f"Give each of: {', '.join(names)}.",
        )
    for name in names:
        value = configuration[name]
        if not is_plain(value):
            raise ConfigurationError(
                ("configurations", index, name),
                f"Configuration {index} has {name} = {value!r}, with a control character.",
                "Remove it.",
            )


def _check_values(
    index: int, configuration: Configuration, parameters: Mapping[str, Parameter]
) -> None:
    """Refuse a configuration with a value that its parameter cannot have."""
    for name, parameter in parameters.items():
        value = configuration[name]
        if not parameter.has(value):
            raise ConfigurationError(
                ("configurations", index, name),
                f"Configuration {index} has {name} = {value!r}, which is no value of it.",
                "Correct it, or the parameter.",
            )


def grid(parameters: Mapping[str, Parameter]) -> tuple[Configuration, ...]:
    """Return every combination, the last parameter changing fastest."""
    axes = {name: parameter.axis() for name, parameter in parameters.items()}
    for name, axis in axes.items():
        if not axis:
            raise ConfigurationError(
                ("parameters", name), f"A grid needs a step of {name}.", "Add step, or list values."
            )
    if math.prod(map(len, axes.values())) > MOST:
        raise ConfigurationError(
            ("sampler",), f"The grid has more than {MOST} configurations.", "Make it coarser."
        )
    combinations = itertools.product(*axes.values())
    return tuple(dict(zip(axes, values, strict=True)) for values in combinations)


def _parameters_of(
    names: Sequence[str], configurations: Sequence[Configuration]
) -> dict[str, Parameter]:
    """Return the parameters that have the values of some configurations."""
    parameters: dict[str, Parameter] = {}
    for name in names:
        parameters[name] = _parameter_of([configuration[name] for configuration in configurations])
    return parameters


def _parameter_of(values: Sequence[Scalar]) -> Parameter:
    """Return the parameter that has these values."""
    types = set(map(type, values))  # a bool is no number here
    if types == {int}:
        integers = list(map(int, values))
        return IntParameter(type="int", low=min(integers), high=max(integers))
    if types <= {int, float}:
        numbers = list(map(float, values))
        return FloatParameter(type="float", low=min(numbers), high=max(numbers))
    return CategoricalParameter(type="categorical", choices=tuple(dict.fromkeys(values)))


def _read_csv(path: Path, parameters: Mapping[str, Parameter]) -> tuple[Configuration, ...]:
    try:
        rows = _rows(path)
    except (OSError, ValueError, csv.Error) as problem:  # a name with NUL, too
        why = getattr(problem, "strerror", None) or problem
        raise ConfigurationError(
            ("configurations",), f"{path} cannot be read: {why}.", "Name a CSV file."
        ) from problem
    # ``DictReader`` puts what is too much under None, and None for what is missing.
    if len(rows) > MOST or any(None in row or None in row.values() for row in rows):
        raise ConfigurationError(
            ("configurations",),
            f"{path} has rows that are too long or short, or more than {MOST}.",
            "Write the names in the first row and one configuration in each other.",
        )
    configurations: list[Configuration] = []
    for row in rows:
        values = {name: _scalar_of(text, parameters.get(name)) for name, text in row.items()}
        configurations.append(values)
    return tuple(configurations)


def _rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a file, at most one too many."""
    stream = io.StringIO(read_file(path, _MOST_BYTES, is_typed=True).decode(), newline="")
    return list(itertools.islice(csv.DictReader(stream), MOST + 1))


def _scalar_of(text: str, parameter: Parameter | None) -> Scalar:
    if isinstance(parameter, CategoricalParameter):
        for choice in parameter.choices:
            if str(choice) == text:
                return choice
        return text
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return text


def perturbed(
    values: Mapping[str, Scalar], parameters: Mapping[str, Parameter], *, seed: int, number: int
) -> dict[str, Scalar]:
    """Return parameters near ``values``; the same for the same seed and trial."""
    near_values: dict[str, Scalar] = {}
    for name, parameter in parameters.items():
        near_values[name] = parameter.near(values[name], f"{seed}:{number}:{name}")
    return near_values
