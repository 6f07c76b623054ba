"""Writes manual pages, completions of shells and Debian's changelog below a directory.

Called by ``build.sh`` with the interpreter of the package. Pages are made of the verbs' help and of
the policy's schema. SOURCE_DATE_EPOCH is their date.
"""

from __future__ import annotations

import email.utils
import gzip
import inspect
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click
import roff
from click.shell_completion import get_completion_class

from bftrainer import __version__
from bftrainer.cli.main import cli
from bftrainer.site.policy import render
from bftrainer.site.policy.model import SitePolicy
from slurm_plugins.hook.main import main as slurm_hook
from slurm_plugins.testcluster.main import main as testcluster

NAME = "bftrainer"
POLICY = f"{NAME}-policy"
COMPLETIONS = {
    "bash": ("bash-completion/completions/bftrainer",),
    "zsh": ("zsh/vendor-completions/_bftrainer", "zsh/site-functions/_bftrainer"),
    "fish": ("fish/vendor_completions.d/bftrainer.fish",),
}
PROGRAMS = {f"{NAME}-slurm-hook": slurm_hook, f"{NAME}-testcluster": testcluster}
SERVICES = {f"{NAME}-daemon", f"{NAME}-slurm-hook"}  # section 8; verbs are in section 1


def pages(at_s: float) -> Iterator[tuple[str, str]]:
    """Yield file name and text of each page: the program, its verbs, the policy, the hook.

    Args:
        at_s: date of the pages, seconds since 1970.
    """
    with _context(cli, NAME, None) as root:
        verbs = {verb: _found(cli, root, verb) for verb in cli.list_commands(root)}
        titles = [*(f"{NAME}-{verb}" for verb in verbs), *PROGRAMS]
        also = ", ".join(f"`{title}`({_section(title)})" for title in titles)
        yield _page(cli, root, at_s, f"{also}, `{POLICY}`(5)")
        for verb, command in verbs.items():
            with _context(command, verb, root) as context:
                yield _page(command, context, at_s, f"`{NAME}`(1), `{POLICY}`(5)")
    for title, program in PROGRAMS.items():
        with _context(program, title, None) as context:
            yield _page(program, context, at_s, f"`{NAME}`(1), `{POLICY}`(5)")
    yield f"{POLICY}.5", policy_page(at_s)


def policy_page(at_s: float) -> str:
    """Return the page of the policy file."""
    parts = [roff.heading(POLICY, 5, at_s, f"{NAME} {__version__}")]
    parts += [".SH NAME", rf"{roff.plain(POLICY)} \- what the administrator decides"]
    parts += [".SH DESCRIPTION", roff.paragraph(render.INTRODUCTION)]
    heading = ""
    for name in SitePolicy.model_fields:
        if render.group(name) != heading:
            heading = render.group(name)
            parts.append(f".SH {roff.plain(heading.upper())}")
        default = render.yaml_value(SitePolicy.model_fields[name].get_default())
        restart = " Needs a restart." if render.restart(name) else ""
        tag = f"{roff.bold(name)}: {roff.plain(default)}"
        parts.append(roff.entry(tag, f"{render.about(name)}{restart}"))
    parts += [".SH SEE ALSO", roff.paragraph(f"`{NAME}-daemon`(8), `{POLICY}`(1)")]
    return "\n".join(parts) + "\n"


def _page(
    command: click.Command, context: click.Context, at_s: float, also: str
) -> tuple[str, str]:
    """Return file name and text of the page of a command, the verbs of a group among it."""
    title = context.command_path.replace(" ", "-")
    section = _section(title)
    about = command.get_short_help_str(200).rstrip(".")
    parts = [roff.heading(title, section, at_s, f"{NAME} {__version__}")]
    parts += [".SH NAME", rf"{roff.plain(title)} \- {roff.plain(about)}"]
    parts += [".SH SYNOPSIS", _synopsis(command, context), ".SH DESCRIPTION", *_said(command)]
    parts += [".SH OPTIONS", *_options(command, context), *_epilog(command, ".SH")]
    if isinstance(command, click.Group):
        parts.append(".SH VERBS")
        for verb in command.list_commands(context):
            inner = _found(command, context, verb)
            if command is cli:  # each has its page
                parts.append(roff.entry(roff.bold(verb), inner.get_short_help_str(200)))
                continue
            with _context(inner, verb, context) as below:
                parts += [f".SS {roff.plain(below.command_path)}", _synopsis(inner, below), ".PP"]
                parts += [*_said(inner), *_options(inner, below), *_epilog(inner, ".PP\n.B")]
    parts += [".SH SEE ALSO", roff.paragraph(f"{also}; /usr/share/doc/{NAME}")]
    return f"{title}.{section}", "\n".join(parts) + "\n"


def _synopsis(command: click.Command, context: click.Context) -> str:
    usage = " ".join(command.collect_usage_pieces(context))
    return f"{roff.bold(context.command_path)} {roff.plain(usage)}"


def _said(command: click.Command) -> list[str]:
    """Return the paragraphs of a help."""
    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    return ["\n.PP\n".join(roff.paragraph(text) for text in paragraphs)]


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    for one in command.get_params(context):
        record = one.get_help_record(context) if isinstance(one, click.Option) else None
        if record:  # None: hidden
            yield roff.entry(roff.options(record[0]), record[1])


def _epilog(command: click.Command, macro: str) -> Iterator[str]:
    """Yield the example of a verb, or the exit codes of the program."""
    head, _, text = (command.epilog or "").removeprefix("\b\n").partition(": ")
    if head == "Example":
        yield f"{macro} {head.upper()}\n{roff.example(text)}"
    elif text:
        yield f"{macro} EXIT STATUS\n{roff.paragraph(text)}"


def _context(command: click.Command, name: str, parent: click.Context | None) -> click.Context:
    return click.Context(command, info_name=name, parent=parent, **command.context_settings)


def _found(group: click.Group, context: click.Context, verb: str) -> click.Command:
    found = group.get_command(context, verb)
    if found is None:
        raise KeyError(verb)
    return found


def _section(title: str) -> int:
    return 8 if title in SERVICES else 1


def completion(shell: str) -> str:
    """Return what the shell reads to complete our verbs, options and trainers' ids."""
    made = get_completion_class(shell)
    if made is None:
        raise KeyError(shell)
    # Not ``source``, which also asks the bash of this machine for its version.
    one = made(cli, {}, NAME, f"_{NAME.upper()}_COMPLETE")
    return one.source_template % one.source_vars()


def changelog(maintainer: str, at_s: float) -> str:
    """Return Debian's changelog: this version; what changed is in CHANGELOG.md."""
    return (
        f"{NAME} ({__version__}) unstable; urgency=medium\n\n"
        f"  * See /usr/share/doc/{NAME}/CHANGELOG.md.\n\n"
        f" -- {maintainer}  {email.utils.formatdate(at_s)}\n"
    )


def main(stage: Path, maintainer: str) -> None:
    """Write everything below ``stage``."""
    at_s = float(os.environ.get("SOURCE_DATE_EPOCH", time.time()))
    share, files = stage / "usr/share", dict[str, bytes]()
    for name, text in pages(at_s):
        files[f"man/man{name[-1]}/{name}.gz"] = gzip.compress(text.encode(), mtime=0)
    for shell, places in COMPLETIONS.items():
        files |= dict.fromkeys(places, completion(shell).encode())
    log = gzip.compress(changelog(maintainer, at_s).encode(), mtime=0)
    files[f"doc/{NAME}/changelog.gz"] = log
    for place, content in files.items():
        path = share / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
