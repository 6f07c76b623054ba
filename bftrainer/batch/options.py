"""Checks the options of a batch system, which come from the policy file under ``batch_options``."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, TypeVar

import pydantic

from bftrainer.batch.batch_system import OptionError, OptionProblem

Variable = Annotated[str, pydantic.StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
Value = Annotated[str, pydantic.StringConstraints(pattern=r"^[^\x00]*$")]
Options = TypeVar("Options", bound=pydantic.BaseModel)


def checked(
    model: type[Options],
    options: Mapping[str, Any],
    *,
    code: str,
    name: str,
    removed: Mapping[str, str] = MappingProxyType({}),
) -> Options:
    """Return the options as the model's fields.

    Args:
        model: declares them.
        options: as given.
        code: of the error.
        name: of the batch system, for people.
        removed: options of earlier releases → why there is none any more.

    Raises:
        OptionError: some are unknown or malformed; all are named.
    """
    try:
        return model.model_validate(dict(options))
    except pydantic.ValidationError as errors:
        raise OptionError(
            code,
            [
                _problem(model, found["loc"], found["msg"], name, removed)
                for found in errors.errors(include_url=False, include_context=False)
            ],
        ) from errors


def _problem(
    model: type[pydantic.BaseModel],
    path: tuple[int | str, ...],
    what: str,
    name: str,
    removed: Mapping[str, str],
) -> OptionProblem:
    option = str(path[0]) if path else ""
    if option in removed:
        cause = f"{option} is no option of the {name} batch system any more: {removed[option]}."
        return OptionProblem(path=path, cause=cause, next_step="Delete it.")
    return OptionProblem(
        path=path,
        cause=f"Option {'.'.join(map(str, path))!r} of the {name} batch system is wrong: {what}.",
        next_step=f"Use only: {', '.join(model.model_fields)}.",
    )
