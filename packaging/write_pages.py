"""Writes manual pages, completions of shells and Debian's changelog below a directory.

Called by ``build.sh`` with the interpreter of the package. A page is what ``--help`` prints.
"""

from __future__ import annotations

import email.utils
import gzip
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from bftrainer import __version__
from bftrainer.cli.main import cli

NAME = "bftrainer"
COMPLETIONS = {
    "bash": ("bash-completion/completions/bftrainer",),
    "zsh": ("zsh/vendor-completions/_bftrainer", "zsh/site-functions/_bftrainer"),
    "fish": ("fish/vendor_completions.d/bftrainer.fish",),
}
_ESCAPED = {"\\": r"\e", "-": r"\-", "'": r"\(aq"}


def pages(
    command: click.Command, name: str, parent: click.Context | None = None
) -> Iterator[tuple[str, str]]:
    """Yield the name and text of the page of a command, then those of its verbs."""
    settings = {"max_content_width": 78, **command.context_settings}
    with click.Context(command, info_name=name, parent=parent, **settings) as context:
        title = context.command_path.replace(" ", "-")
        yield title, page(title, command.get_short_help_str(200), command.get_help(context))
        if isinstance(command, click.Group):
            for verb in command.list_commands(context):
                if found := command.get_command(context, verb):
                    yield from pages(found, verb, context)


def page(title: str, about: str, text: str) -> str:
    """Return a manual page that shows the text as it is."""
    lines = "\n".join(_shown(line) for line in text.splitlines())
    return (
        f'.TH {title.upper()} 1 "" "{NAME} {__version__}"\n.SH NAME\n'
        f"{_shown(title)} \\- {_shown(about)}\n.SH DESCRIPTION\n.nf\n{lines}\n.fi\n"
    )


def completion(shell: str) -> str:
    """Return what the shell reads to complete our verbs, options and trainers' ids."""
    made = get_completion_class(shell)
    if made is None:
        raise KeyError(shell)
    # Not ``source``, which also asks the bash of this machine for its version.
    one = made(cli, {}, NAME, f"_{NAME.upper()}_COMPLETE")
    return one.source_template % one.source_vars()


def changelog(maintainer: str) -> str:
    """Return Debian's changelog: this version; what changed is in CHANGELOG.md."""
    date = email.utils.formatdate(float(os.environ.get("SOURCE_DATE_EPOCH", time.time())))
    return (
        f"{NAME} ({__version__}) unstable; urgency=medium\n\n"
        f"  * See /usr/share/doc/{NAME}/CHANGELOG.md.\n\n -- {maintainer}  {date}\n"
    )


def _shown(text: str) -> str:
    escaped = "".join(_ESCAPED.get(char, char) for char in text)
    return rf"\&{escaped}" if escaped.startswith(".") else escaped


def main(stage: Path, maintainer: str) -> None:
    """Write everything below ``stage``."""
    share, files = stage / "usr/share", dict[str, bytes]()
    for title, text in pages(cli, NAME):
        files[f"man/man1/{title}.1.gz"] = gzip.compress(text.encode(), mtime=0)
    for shell, places in COMPLETIONS.items():
        files |= dict.fromkeys(places, completion(shell).encode())
    log = gzip.compress(changelog(maintainer).encode(), mtime=0)
    files[f"doc/{NAME}/changelog.Debian.gz"] = log
    for place, content in files.items():
        path = share / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
