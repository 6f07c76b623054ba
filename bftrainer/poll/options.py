"""Checks the options of a batch system, which come from the policy file under ``batch_options``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import pydantic

from bftrainer.poll.batch_system import OptionError, OptionProblem

Variable = Annotated[str, pydantic.StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
Value = Annotated[str, pydantic.StringConstraints(pattern=r"^[^\x00]*$")]
Options = TypeVar("Options", bound=pydantic.BaseModel)


def checked(model: type[Options], options: Mapping[str, Any], *, code: str, name: str) -> Options:
    """Return the options as the model's fields.

    Args:
        model: declares them.
        options: as given.
        code: of the error.
        name: of the batch system, for people.

    Raises:
        OptionError: some are unknown or malformed; all are named.
    """
    try:
        return model.model_validate(dict(options))
    except pydantic.ValidationError as errors:
        raise OptionError(
            code,
            [
                OptionProblem(
                    path=found["loc"],
                    cause=f"Option {'.'.join(map(str, found['loc']))!r} of the {name} batch system "
                    f"is wrong: {found['msg']}.",
                    next_step=f"Use only: {', '.join(model.model_fields)}.",
                )
                for found in errors.errors(include_url=False, include_context=False)
            ],
        ) from errors
