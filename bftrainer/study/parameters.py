"""The parameters of a study as a user declares them: type and bounds, or a list of values."""

from __future__ import annotations

import math
import unicodedata
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from bftrainer.study.trials import Scalar

MOST_INTEGER = 1 << 53  # beyond it floats, which Optuna keeps, are not exact
Integer = Annotated[int, Field(ge=-MOST_INTEGER, le=MOST_INTEGER)]

_RANGE = "low must not be above high"


class Strict(BaseModel):
    """Frozen, with no other keys than those declared, and no conversions."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class FloatParameter(Strict):
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


class IntParameter(Strict):
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


class CategoricalParameter(Strict):
    """One of several values."""

    type: Literal["categorical"]
    choices: tuple[Scalar, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _are_printable(self) -> Self:
        # A daemon refuses trainers with such arguments.
        if bad := next((c for c in self.choices if not is_plain(c)), None):
            raise ValueError(f"{bad!r} has a control character")
        return self


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
    """Whether a value has no control characters and is valid text."""
    return not isinstance(value, str) or not any(
        unicodedata.category(char) in ("Cc", "Cs") for char in value
    )


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
