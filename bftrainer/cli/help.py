"""``bftrainer help``: the help of a verb, what the code of an error means, or a page."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path

import click

from bftrainer.cli.habits import verb_meant
from bftrainer.cli.main import all_verbs
from bftrainer.cli.options import argument, option, verb
from bftrainer.cli.output import is_terminal, print_as_it_is, print_lines, terminal_width
from bftrainer.cli.pages import command_of, name_of, names_meant, pages
from bftrainer.ground.regular_file import read_file
from bftrainer.model.errors import ExitCode, UsageError

MOST_BYTES = 1024 * 1024  # of a page
_CODE = re.compile(r"(?:BFT-?)?(\d{4})", re.IGNORECASE)


def _verbs(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in all_verbs() if name.startswith(incomplete)]


@verb(
    argument("words", metavar="[VERB | BFT-NNNN | PAGE]", nargs=-1, shell_complete=_verbs),
    option("--pages", "List the pages of the documentation.", name="lists_pages"),
    name="help", example="bftrainer help BFT-1310",
)  # fmt: skip
@click.pass_context
def explain_word(context: click.Context, words: tuple[str, ...], *, lists_pages: bool) -> None:
    """Show the help of a verb, what the code of an error means, or a page of the documentation."""
    if lists_pages:
        print_as_it_is(*pages())
        return
    if len(words) == 1 and (code := _CODE.fullmatch(words[0])):
        _explain(f"BFT-{code[1]}")
        return
    if len(words) == 1 and words[0] not in all_verbs() and _shows(words[0]):
        return
    current = context.find_root()
    for word in words:
        if not isinstance(current.command, click.Group):
            current.fail(f"{current.command_path} has no verbs.")
        name, command, _ = current.command.resolve_command(current, [word])
        if command is not None:
            settings = command.context_settings
            current = click.Context(command, info_name=name, parent=current, **settings)
    print_as_it_is(*current.get_help().splitlines())


def _shows(word: str) -> bool:
    """Print the page of this name, or what is said of a plug-in; return whether there is one."""
    from bftrainer.cli.policy import said_of_plug_in  # noqa: PLC0415 - the help of verbs needs none

    if lines := said_of_plug_in(word):
        print_lines(*lines, indent=4)
        return True
    return _shows_page(word)


def _shows_page(word: str) -> bool:
    """Print the page of this name; return whether there is one.

    Raises:
        UsageError: BFT-1454, several pages have this name, or none of this path is installed.
    """
    installed = pages()
    names, name = names_meant(word, installed), name_of(word)
    page_by_last_part = {page.rpartition("/")[2]: page for page in installed}
    near_parts = get_close_matches(name.rpartition("/")[2], page_by_last_part)
    near = names or list(map(page_by_last_part.__getitem__, near_parts))
    if len(names) > 1 or (
        not names and (word != name or (near and not verb_meant(word, all_verbs())))
    ):
        steps = ", or ".join(map(command_of, near)) or "bftrainer help --pages lists all."
        raise UsageError(
            "BFT-1454",
            f"{len(names) or 'No'} pages of the documentation are called {name[:60]!r}.",
            steps,
            exit_code=ExitCode.NOT_FOUND,
        )
    for name in names:
        _show(name, installed)
    return bool(names)


def _show(name: str, installed: Mapping[str, Path]) -> None:
    """Print a page, through the reader's pager where it is longer than the terminal."""
    from bftrainer.cli.markdown import page_lines  # noqa: PLC0415 - the help of verbs needs none

    text = read_file(installed[name], MOST_BYTES, is_typed=True).decode()
    is_drawn = is_terminal()
    lines = page_lines(text, terminal_width(), name=name, names=installed, is_drawn=is_drawn)
    if not is_drawn:
        print_as_it_is(*lines)
    elif sys.stdin.isatty() and len(lines) >= shutil.get_terminal_size().lines:
        click.echo_via_pager("\n".join(lines))
    else:
        click.echo("\n".join(lines))


def _explain(code: str) -> None:
    from bftrainer.cli.codes import meaning_of  # noqa: PLC0415 - the help of verbs needs none

    meaning = meaning_of(code)
    print_lines(f"{meaning.code}: {meaning.area}")
    for next_step, causes in meaning.causes.items():
        print_lines("", *causes, f"next: {next_step}")
    print_lines("", f"Words in capitals differ each time. More: {meaning.page}")
