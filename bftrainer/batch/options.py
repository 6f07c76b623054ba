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
        problems = []
        for error in errors.errors(include_url=False, include_context=False):
            path = error["loc"]
            option = str(path[0]) if path else ""
            cause = f"{option} is no option of the {name} batch system any more"
            if option in removed:
                cause, next_step = f"{cause}: {removed[option]}.", "Delete it."
            else:
                where = repr(".".join(map(str, path)))
                cause = f"Option {where} of the {name} batch system is wrong: {error['msg']}."
                next_step = f"Use only: {', '.join(model.model_fields)}."
            problems.append(OptionProblem(path=path, cause=cause, next_step=next_step))
        raise OptionError(code, problems) from errors
