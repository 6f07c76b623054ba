"""A user's own defaults of ``submit``: the file ``config.toml`` and variables ``BFT_SUBMIT_*``.

Keys of the file's table ``submit`` and the ends of variables are the long options. A variable wins
over the file, #BFT lines of a script win over both, and the command line over all.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from bftrainer.ground.regular_file import read_file, why
from bftrainer.model.columns import shown
from bftrainer.model.errors import UsageError

TABLE: Final = "submit"
PREFIX: Final = "BFT_SUBMIT_"
MOST_BYTES: Final = 64 * 1024  # of the file
_KINDS: Final = (str, int, float)
_ON: Final = frozenset({"1", "true", "yes", "on"})
_OFF: Final = frozenset({"", "0", "false", "no", "off"})
_TABLE_LINE: Final = re.compile(r"\s*\[\s*([^\]]*?)\s*\]")
_KEY_LINE: Final = re.compile(r"\s*(?:submit\s*\.\s*)?[\"']?([\w-]+)[\"']?\s*=")


class _Options:
    """The options of ``submit`` by their long names."""

    def __init__(self, options: Sequence[click.Parameter]) -> None:
        self._parameters = list(options)
        self._by_name: dict[str, click.Option] = {}
        for option in options:
            if isinstance(option, click.Option):
                names = [flag[2:] for flag in option.opts if flag.startswith("--")]
                self._by_name |= dict.fromkeys(names, option)

    def parse(self, name: str, value: object) -> dict[str, Any]:
        """Return what an option with this value sets, by parameter.

        Raises:
            ValueError: there is no such option, or its values are of another kind.
            click.UsageError: click refuses the value.
            UsageError: the option's converter does.
        """
        option = self._by_name.get(name)
        if option is None:
            raise ValueError(f"submit has no option --{shown(name[:40])}.")
        if option.is_flag:
            return {str(option.name): _is_on(name, value)}
        parts = value if isinstance(value, list) and option.multiple else [value]
        # In Python True is a number, in TOML it is none.
        if any(isinstance(part, bool) or not isinstance(part, _KINDS) for part in parts):
            raise ValueError(f"--{name} takes a text or a number.")
        parser = click.Command("defaults", params=self._parameters, add_help_option=False)
        with parser.make_context("defaults", [f"--{name}={part}" for part in parts]) as context:
            return {str(option.name): context.params[str(option.name)]}


def config_path(environ: Mapping[str, str]) -> Path:
    """Return where the file is: ``bftrainer/config.toml`` below the user's configuration."""
    root = environ.get("XDG_CONFIG_HOME", "")
    if not root.startswith("/"):
        root = f"{environ.get('HOME', '/')}/.config"
    return Path(root) / "bftrainer" / "config.toml"


def user_defaults(
    options: Sequence[click.Parameter], environ: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Return what the file and what the variables set, by parameter, the weaker first.

    Args:
        options: that may be set.
        environ: of the user.

    Raises:
        UsageError: BFT-1062 with file and line, or with the variable; a value that is wrong in
            itself keeps its own code.
    """
    parser = _Options(options)
    return [_of_file(parser, config_path(environ)), _of_variables(parser, environ)]


def _of_variables(parser: _Options, environ: Mapping[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for variable in sorted(environ):
        if variable.startswith(PREFIX):
            name = variable.removeprefix(PREFIX).lower().replace("_", "-")
            where = f"The variable {shown(variable[:60])}"
            values |= _checked(parser, name, environ[variable], where)
    return values


def _of_file(parser: _Options, path: Path) -> dict[str, Any]:
    try:
        text = read_file(path, MOST_BYTES, is_typed=True).decode()
        document = tomllib.loads(text)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as problem:
        raise _refusal(f"{why(problem)}.", path) from problem
    except ValueError as problem:  # of TOML and of UTF-8
        raise _refusal(f"{path}: {problem}.", path) from problem
    strange = [key for key in document if key != TABLE]
    if strange or not isinstance(document.get(TABLE, {}), dict):
        key = (strange or [TABLE])[0]
        where = f"{path}:{_line_of(text, key)}"
        raise _refusal(f"{where}: {shown(key[:40])} is no table [{TABLE}].", path)
    values: dict[str, Any] = {}
    for key, value in document.get(TABLE, {}).items():
        where = f"{path}:{_line_of(text, key)}"
        values |= _checked(parser, key.replace("_", "-"), value, where)
    return values


def _checked(parser: _Options, name: str, value: object, where: str) -> dict[str, Any]:
    """Return what one default sets."""
    try:
        return parser.parse(name, value)
    except ValueError as problem:
        raise _refusal(f"{where}: {problem}", None) from problem
    except click.UsageError as problem:
        raise _refusal(f"{where}: {problem.format_message()}", None) from problem
    except UsageError as problem:
        raise UsageError(problem.code, f"{where}: {problem.cause}", problem.next_step) from problem


def _line_of(text: str, key: str) -> int:
    """Return the number of the line where a key of the table, or a table, is set; 1: not seen."""
    for number, line in enumerate(text.splitlines(), start=1):
        match = _KEY_LINE.match(line) or _TABLE_LINE.match(line)
        if match is not None and match[1] == key:
            return number
    return 1


def _is_on(name: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    word = str(value).lower()
    if word not in _ON | _OFF:
        raise ValueError(f"--{name} is true or false, not {shown(str(value)[:40])}.")
    return word in _ON


def _refusal(cause: str, path: Path | None) -> UsageError:
    place = "this default" if path is None else "this file"
    return UsageError(
        "BFT-1062",
        cause,
        f"Correct {place}; 'bftrainer submit -h' lists the options that it may set.",
    )
