"""The options of ``submit``, made of the declarations of a trainer's fields."""

from __future__ import annotations

import itertools
import types
import typing
from typing import Any, Final

import click

from bftrainer.cli.option_values import converter
from bftrainer.cli.options import option
from bftrainer.model.declaration import SubmitOption, declarations, defaults
from bftrainer.model.trainer_spec import IN_HELP, BatchRange, CheckpointContract, TrainerSpec

FLAG: Final = "flag"  # the converter of an option without a value, whatever its field's type
PARTS: Final = (BatchRange, CheckpointContract)  # fields of a trainer that have fields themselves


def declared_options() -> list[click.Option]:
    """Return the options of all declared fields, in the order of the help."""
    options: dict[str, click.Option] = {}
    for cls in (TrainerSpec, *PARTS):
        hints = typing.get_type_hints(cls)
        for name, declaration in declarations(cls).items():
            for part in declaration.options:
                usual = part.unset
                # What a batch or contract lacks is known only when the trainer is made.
                if part.is_value and cls not in PARTS:
                    usual = defaults(cls).get(name)
                options[part.flag] = _option(name, part, hints[name], usual)
    for flag in reversed(IN_HELP):
        options = {flag: options[flag], **options}
    return list(options.values())


def _option(field: str, part: SubmitOption, hint: Any, usual: Any) -> click.Option:
    """Return the option of a field with this type and default; None: it has none."""
    name = part.parameter or field
    kind = _value_type(hint)
    if part.takes == FLAG or kind is bool:
        return option(part.usage, part.help, name=name)
    if part.choices:
        kind = click.Choice(part.choices)
    elif part.takes:
        kind = converter(part.takes)
    elif kind not in (int, float):
        kind = None  # text
    settings: dict[str, Any] = {}
    if part.unset is not None:
        settings["show_default"] = False  # its text says what it is
    if part.repeats:  # each may have several values
        settings |= {"multiple": True, "callback": _all_values}
    return option(part.usage, part.help, kind, usual, name=name, **settings)


def _all_values(
    ctx: click.Context,  # noqa: ARG001 - click's signature
    parameter: click.Parameter,  # noqa: ARG001
    values: tuple[tuple[Any, ...], ...],
) -> tuple[Any, ...]:
    """Return the values of an option that was repeated, in one row."""
    return tuple(itertools.chain.from_iterable(values))


def _value_type(hint: Any) -> Any:
    """Return the type of a field's values other than None."""
    if isinstance(hint, types.UnionType):
        first, *_ = typing.get_args(hint)
        return first
    return hint
