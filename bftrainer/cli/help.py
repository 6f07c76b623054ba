"""``bftrainer help``: the help of a verb, or what the code of an error means."""

from __future__ import annotations

import re

import click

from bftrainer.cli.main import VERBS
from bftrainer.cli.options import argument, verb
from bftrainer.cli.output import print_lines

_CODE = re.compile(r"(?:BFT-?)?(\d{4})", re.IGNORECASE)


def _verbs(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in VERBS if name.startswith(incomplete)]


@verb(
    argument("words", metavar="[VERB | BFT-NNNN]", nargs=-1, shell_complete=_verbs),
    name="help", example="bftrainer help BFT-1310",
)  # fmt: skip
@click.pass_context
def explain_word(context: click.Context, words: tuple[str, ...]) -> None:
    """Show the help of a verb, or what the code of an error means and what to do then."""
    if len(words) == 1 and (code := _CODE.fullmatch(words[0])):
        _explain(f"BFT-{code[1]}")
        return
    here = context.find_root()
    for word in words:
        if not isinstance(here.command, click.Group):
            here.fail(f"{here.command_path} has no verbs.")
        name, command, _ = here.command.resolve_command(here, [word])
        if command is not None:
            here = click.Context(command, info_name=name, parent=here, **command.context_settings)
    print_lines(*here.get_help().splitlines())


def _explain(code: str) -> None:
    from bftrainer.cli.codes import meaning_of  # noqa: PLC0415 - the help of verbs needs none

    meaning = meaning_of(code)
    print_lines(f"{meaning.code}: {meaning.area}")
    for next_step, causes in meaning.causes.items():
        print_lines("", *causes, f"next: {next_step}")
    print_lines("", f"Words in capitals differ each time. More: {meaning.page}")
