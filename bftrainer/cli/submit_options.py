"""The options that describe a trainer, as they are written.

They come from the command line and from #BFT lines of the script: only lines before the first one
that is neither blank nor a comment count; an unknown option is an error.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator
from typing import Any, Final

import click
from click.core import ParameterSource

from bftrainer.cli.declared_options import declared_options
from bftrainer.cli.options import argument
from bftrainer.cli.sbatch_habits import IGNORED_OPTIONS, refusal_of
from bftrainer.cli.user_defaults import user_defaults
from bftrainer.ground.regular_file import open_stream
from bftrainer.model.declaration import Declaration, InStudy, declarations
from bftrainer.model.errors import UsageError
from bftrainer.model.trainer_spec import TrainerSpec

SPEC_OPTIONS: Final = declared_options()
# With those that are ignored, on the command line and in #BFT lines alike.
SUBMIT_OPTIONS: Final[list[click.Parameter]] = [*SPEC_OPTIONS, *IGNORED_OPTIONS]
ARGUMENTS: Final = argument("args", click.UNPROCESSED, metavar="[ARGS]...", nargs=-1)
SCRIPT: Final = (argument("script", metavar="SCRIPT"), ARGUMENTS)
PREFIX: Final = "#BFT"
SIZES: Final = frozenset({"sizes", "gpus"})  # parameters that each say all sizes
# Parameters that say the same: where one is set, what is set with less weight does not count.
_ALTERNATIVES: Final = (SIZES, frozenset({"notify", "mail_user"}))
_MAX_LINE_BYTES = 64 * 1024


def option_defaults() -> dict[str, Any]:
    """Return the values of all options that are not given."""
    return click.Command("defaults", params=list(SPEC_OPTIONS)).make_context("", []).params


def parameters_of_tries() -> frozenset[str]:
    """Return the options that say how a script runs, not where and with which priority."""
    return _parameters(lambda declaration: declaration.is_tried)


def parameters_of_no_study() -> frozenset[str]:
    """Return the options that a study decides about."""
    return _parameters(lambda declaration: declaration.in_study is InStudy.DECIDED)


def _parameters(is_meant: Callable[[Declaration], bool]) -> frozenset[str]:
    names: set[str] = set()
    for name, declaration in declarations(TrainerSpec).items():
        if is_meant(declaration):
            for part in declaration.options:
                names.add(part.parameter or name)
    return frozenset(names)


def read_directives(script: str) -> dict[str, Any]:
    """Return the options that the script's head sets, by parameter name.

    Raises:
        UsageError: BFT-1003 with file and line; a value that is wrong in itself keeps
            its own code.
    """
    parser = click.Command("directives", params=SUBMIT_OPTIONS, add_help_option=False)
    values: dict[str, Any] = {}
    for number, text in _directive_lines(script):
        where = f"{script}:{number}"
        try:
            tokens = shlex.split(text, comments=True)
            with parser.make_context(PREFIX, tokens, allow_interspersed_args=False) as ctx:
                for name, value in given(ctx).items():
                    merge(values, name, value)
        except ValueError as problem:
            raise _refusal(where, f"{problem}.") from problem
        except click.UsageError as problem:
            why, step = refusal_of(problem)
            raise _refusal(where, why or problem.format_message(), step) from problem
        except UsageError as problem:
            raise UsageError(
                problem.code, f"{where}: {problem.cause}", problem.next_step
            ) from problem
    return values


def chosen(ctx: click.Context, script: str) -> dict[str, Any]:
    """Return what a user's defaults, #BFT lines and the command line set; the last wins.

    Raises:
        UsageError: BFT-1003, of a line; BFT-1062, of a default.
    """
    layers = [*user_defaults(SUBMIT_OPTIONS, os.environ), read_directives(script), given(ctx)]
    values: dict[str, Any] = {}
    for layer in layers:
        for alternatives in _ALTERNATIVES:
            if not alternatives.isdisjoint(layer):
                for name in alternatives:
                    values.pop(name, None)
        for name, value in layer.items():
            merge(values, name, value)
    return values


def runtime_of(ctx: click.Context) -> str:
    """Return the runtime before the script is read, which is looked up as a command by it."""
    runtime = str(ctx.params["runtime"])
    for layer in (*user_defaults(SUBMIT_OPTIONS, os.environ), given(ctx)):
        runtime = layer.get("runtime", runtime)
    return runtime


def given(ctx: click.Context) -> dict[str, Any]:
    """Return the parameters given explicitly, without defaults."""
    return {
        name: value
        for name, value in ctx.params.items()
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }


def merge(values: dict[str, Any], name: str, value: Any) -> None:
    """Add a value: later values win, repeated ``--export`` options accumulate."""
    earlier = values.get(name)
    if name == "environment" and earlier:
        value = (*earlier, *value)
    if name in ("interpreter", "venv"):  # alternatives
        values.pop("interpreter", None)
        values.pop("venv", None)
    values[name] = value


def _directive_lines(script: str) -> Iterator[tuple[int, str]]:
    with open_stream(script, is_typed=True) as stream:
        number = 0
        while line := stream.readline(_MAX_LINE_BYTES):
            number += 1
            if len(line) == _MAX_LINE_BYTES:
                return  # no comment is this long
            text = os.fsdecode(line.removeprefix(b"\xef\xbb\xbf")).rstrip("\r\n")
            if text.strip() and not text.lstrip().startswith("#"):
                return
            if text == PREFIX or text.startswith((f"{PREFIX} ", f"{PREFIX}\t")):
                yield number, text.removeprefix(PREFIX)


def _refusal(where: str, problem: str, step: str = "") -> UsageError:
    return UsageError(
        "BFT-1003",
        f"{where}: {problem}",
        step or f"Correct this {PREFIX} line; 'bftrainer submit -h' lists the options.",
    )
