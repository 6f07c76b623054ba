"""The options and arguments that verbs share, and how they are written."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import click

from bftrainer.cli.common import connect
from bftrainer.cli.output import AS_YAML
from bftrainer.cli.pages import with_commands
from bftrainer.ground.regular_file import ANY_OWNER
from bftrainer.model.columns import shown
from bftrainer.model.errors import BftError, UsageError
from bftrainer.model.trainer import TrainerRecord

COMPLETION_TIMEOUT_S = 0.2
_UNGROUPED = "Options"
_END = re.compile(r"\. (?=[A-Z\"'-])")  # of a sentence; not of an abbreviation before a number
_ID = re.compile(r"t[1-9][0-9]*")
_RANGE = re.compile(r"(?P<least>[^<]+)<(?P<closed>=?)x<=(?P<most>.+)")
PATH = click.Path(path_type=Path)
FILE = click.Path(path_type=Path, dir_okay=False)
EXISTING_FILE = click.Path(path_type=Path, dir_okay=False, exists=True)


class ReadableOption(click.Option):
    """An option whose help has words for what click says in the terms of a program."""

    def make_metavar(self, ctx: click.Context) -> str:
        """Return N or NUMBER for a number, as verbs write it, instead of INTEGER RANGE."""
        if self.metavar is None and isinstance(self.type, click.types.IntParamType):
            return "N"
        if self.metavar is None and isinstance(self.type, click.types.FloatParamType):
            return "NUMBER"
        return super().make_metavar(ctx)

    def get_help_extra(self, ctx: click.Context) -> Any:
        """Return defaults and the like; a range in words."""
        extra = super().get_help_extra(ctx)
        if "range" in extra:
            extra["range"] = range_in_words(extra["range"])
        return extra


def range_in_words(text: str) -> str:
    """Return what click writes as 1<=x<=9, x>=1 or 0<x<=9: 1 to 9, at least 1, above 0 to 9."""
    if match := _RANGE.fullmatch(text):
        lower = match["least"]
        if not match["closed"]:
            lower = f"above {lower}"
        return f"{_short(lower)} to {_short(match['most'])}"
    if text.startswith("x>="):
        return f"at least {_short(text.removeprefix('x>='))}"
    if text.startswith("x>"):
        return f"above {_short(text.removeprefix('x>'))}"
    return text


def _short(number: str) -> str:
    return number.removesuffix(".0")


class VerbGroup(click.Group):
    """A group that names its verbs by their first sentences, in full."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs."""
        with formatter.section("Verbs"):
            formatter.write_dl([
                (name, first_sentence(command.help or ""))
                for name in self.list_commands(ctx)
                if (command := self.get_command(ctx, name)) is not None
            ])  # fmt: skip


class GroupedCommand(click.Command):
    """A command that shows its options in groups, those of no group last."""

    def __init__(
        self, *args: Any, groups: Mapping[str, Sequence[str]] = MappingProxyType({}), **more: Any
    ) -> None:
        """``groups``: title -> the long names of its options."""
        super().__init__(*args, **more)
        self._titles: dict[str, str] = {}  # by flag
        for title, flags in groups.items():
            self._titles |= dict.fromkeys(flags, title)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one section for each group."""
        rows: dict[str, list[tuple[str, str]]] = {}
        for title in (*self._titles.values(), _UNGROUPED):
            rows[title] = []
        for parameter in self.get_params(ctx):
            row = parameter.get_help_record(ctx)
            if row is not None:
                titles = (self._titles[flag] for flag in parameter.opts if flag in self._titles)
                rows[next(titles, _UNGROUPED)].append(row)
        for title, shown_rows in rows.items():
            if shown_rows:
                with formatter.section(title):
                    formatter.write_dl(shown_rows)


def first_sentence(text: str) -> str:
    """Return a help's first sentence in one line."""
    words = " ".join(inspect.cleandoc(text).partition("\n\n")[0].split())
    return f"{_END.split(words, maxsplit=1)[0].rstrip('.')}."


def option(
    usage: str, text: str | None = None, kind: Any = None, default: Any = None, **more: Any
) -> ReadableOption:
    """Return an option as its help shows it.

    Args:
        usage: its names, then the metavar of its value: ``-d, --delay SECONDS``.
        text: its help.
        kind: type of the value. Without metavar, type and default the option is a flag.
        default: shown in the help if it is not empty.
        more: as for ``click.Option``; ``name`` is that of the parameter.
    """
    *names, last = usage.split(", ")
    last, _, metavar = last.partition(" ")
    declared = [*names, last]
    if "name" in more:
        declared.append(more.pop("name"))
    if default is not None:
        more.setdefault("default", default)
        more.setdefault("show_default", default not in ("", 0))
    elif not metavar and kind is None:
        more["is_flag"] = True
    return ReadableOption(
        declared, type=kind, metavar=metavar or None, help=with_commands(text or "") or None, **more
    )


def verb(
    *params: click.Parameter,
    example: str,
    name: str | None = None,
    group: click.Group | None = None,
    **more: Any,
) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a function the command of these parameters, in a group if there is one.

    ``example``: a command line for the help.
    """
    command = click.command if group is None else group.command
    return command(name, params=_with_yaml(params), epilog=shown_example(example), **more)


def _with_yaml(params: Sequence[click.Parameter]) -> list[click.Parameter]:
    """Return the parameters of a verb, with --yaml after its --json."""
    row: list[click.Parameter] = []
    for parameter in params:
        row.append(parameter)
        if parameter.name == "as_json" and isinstance(parameter, click.Option):
            parameter.callback = _as_json
            row.append(YAML)
    return row


def _as_json(context: click.Context, _: click.Parameter, value: bool) -> bool:
    """Return whether a document is wanted: --yaml asks for the same one."""
    return value or AS_YAML in context.meta


def _as_yaml(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        context.meta[AS_YAML] = True


def shown_example(line: str) -> str:
    """Return the epilog of a help: a command line that is not wrapped."""
    return f"\b\nExample: {line}"


YAML = option(
    "--yaml",
    "Print the same document as YAML.",
    expose_value=False,
    is_eager=True,  # before --json is looked at
    callback=_as_yaml,
)
JSON = option("--json", "Print one JSON document for programs.", name="as_json")
SOCKET = option(
    "--socket PATH",
    "Socket of the daemon  [default: $BFTRAINER_SOCKET, "
    "$BFTRAINER_STATE_DIR/daemon.sock, ~/.bftrainer/daemon.sock, /run/bftrainer/daemon.sock]",
    name="socket_name",
    is_eager=True,  # names of trainers are looked up there
)


def _trust(context: click.Context, parameter: click.Parameter, value: bool) -> None:  # noqa: ARG001 - click's signature
    if value:
        os.environ[ANY_OWNER] = "1"  # heeded by all that opens files here and in what we start


ANY_OWNER_OPTION = option(
    "--any-owner",
    "Use files and directories that other users have made, too.",
    expose_value=False,
    is_eager=True,
    callback=_trust,
)
JOURNAL = option(
    "--journal",
    "Read this journal (journal.db of a state directory) instead of asking the daemon.",
    EXISTING_FILE,
)
REPLAY = option(
    "--replay JOURNAL",
    "Show this journal (journal.db of a state directory) instead of a daemon.",
    EXISTING_FILE,
)
POLICY = option("--policy", "With --journal: policy YAML.", PATH, name="policy_file")
PROCESSES = option(
    "--processes",
    "Replays at a time.",
    click.IntRange(1, 256),
    os.cpu_count() or 1,
    show_default="number of cores",
)


def argument(name: str, kind: Any = None, **more: Any) -> click.Argument:
    """Return an argument; ``more`` as for ``click.Argument``."""
    return click.Argument([name], type=kind, **more)


def trainer_ids(*, nargs: int = 1, is_required: bool = True) -> click.Argument:
    """Return the argument ID, completed from the daemon's trainers; a name will do, too."""
    name, metavar = "trainer_id", "ID"
    if nargs == -1:
        name, metavar = "trainer_ids", "ID..."
    elif not is_required:
        metavar = "[ID]"
    return click.Argument(
        [name],
        metavar=metavar,
        nargs=nargs,
        required=is_required,
        shell_complete=_complete_trainer_id,
        callback=_ids,
    )


def is_trainer_id(text: str) -> bool:
    """Return whether a text has the form of a trainer's id."""
    return bool(_ID.fullmatch(text))


def named_trainer(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Return the id of the trainer that an option names, by its id or its name."""
    trainer_id = _ids(ctx, parameter, value)
    return trainer_id if isinstance(trainer_id, str) else None


def _ids(
    ctx: click.Context, _: click.Parameter, value: str | tuple[str, ...] | None
) -> str | tuple[str, ...] | None:
    """Return ids for what may be names."""
    if not value:
        return value
    texts = value if isinstance(value, tuple) else (value,)
    if ctx.resilient_parsing or all(map(is_trainer_id, texts)):
        return value
    client = connect(ctx.params.get("socket_name"))
    try:
        records = [view.record for view in client.trainers()]
    except BftError:
        return value  # the verb says it
    ids = tuple(_id_of(text, records) for text in texts)
    return ids if isinstance(value, tuple) else ids[0]


def _id_of(name: str, records: Sequence[TrainerRecord]) -> str:
    """Return the id of the trainer with a name, of ended ones the last.

    An id, or a name that no trainer has, is returned as it is.

    Raises:
        UsageError: BFT-1333 if several that have not ended are called so.
    """
    if is_trainer_id(name):
        return name
    namesakes = [record for record in records if record.spec.name == name]
    ids = [record.trainer_id for record in namesakes if not record.state.is_final]
    if len(ids) > 1:
        raise UsageError(
            "BFT-1333",
            f"Several trainers are called {shown(name)}: {', '.join(ids)}.",
            "Name one of them by its id.",
        )
    if ids:
        return ids[0]
    if namesakes:
        return namesakes[-1].trainer_id
    return name


def _complete_trainer_id(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    client = connect(ctx.params.get("socket_name"), timeout_s=COMPLETION_TIMEOUT_S)
    try:
        views = client.trainers()
    except BftError:
        return []  # completion cannot report errors
    ids = [view.record.trainer_id for view in views]
    return [trainer_id for trainer_id in ids if trainer_id.startswith(incomplete)]
