"""``bftrainer --host LOGIN VERB``: the verb runs on a login node, over the user's own ssh.

Nothing of bftrainer listens anywhere for it. ssh asks for what it always asks for; its connection
stays open for an hour after the last verb, so that a second factor is asked for once.
"""

from __future__ import annotations

import os
import shlex
import stat
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from bftrainer.batch import process
from bftrainer.cli.output import print_lines
from bftrainer.model.errors import BftError, ExitCode

HOST, PROGRAM = "--host", "--host-program"  # options, before the verb
SSH = "ssh"
OPEN_FOR = "1h"  # after the last verb
_DIRECTORY = "bftrainer-ssh"
# A socket's path has 108 bytes at most: these are for ssh's %C and what it adds while it connects.
_LONGEST_DIRECTORY = 108 - 1 - 40 - 18
_ASK_LIMIT_S = 10.0
_SILENT = 255  # of ssh itself
_MISSING = (126, 127)  # of the shell over there
# Of the PATH that ssh finds, else of a login shell's, where profiles add to it.
_SCRIPT = (
    'command -v "$0" >/dev/null 2>&1 && exec "$0" "$@"; '
    'case "${SHELL##*/}" in bash|zsh|ksh) ;; *) SHELL=/bin/sh ;; esac; '
    """exec "$SHELL" -lc 'exec "$0" "$@"' "$0" "$@\""""
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """The host where a verb is to run, as ssh knows it, and the program there."""

    host: str
    program: str = "bftrainer"


def login_in(words: Sequence[str]) -> tuple[Login | None, list[str]]:
    """Return the host that a command line names before its verb, and the words after it.

    None: it names none, or none in full, which click tells better.
    """
    values, verb_words = dict[str, str](), list(words)
    while verb_words and verb_words[0].partition("=")[0] in (HOST, PROGRAM):
        name, has_value, value = verb_words.pop(0).partition("=")
        if not has_value:
            if not verb_words:
                return None, list(words)
            value = verb_words.pop(0)
        values[name] = value
    if HOST not in values:
        return None, list(words)
    host, program = values[HOST], values.get(PROGRAM, "bftrainer")
    if not host.strip() or host.startswith("-") or not program:
        raise click.BadParameter(f"{host[:60]!r} is no host of ssh.", param_hint=repr(HOST))
    return Login(host=host, program=program), verb_words


def remote_command(login: Login, words: Sequence[str]) -> str:
    """Return the text for the shell over there, whichever it is; each word arrives as it is."""
    return f"exec {shlex.join(('/bin/sh', '-c', _SCRIPT, login.program, *words))}"


def ssh_argv(
    login: Login, words: Sequence[str], *, is_terminal: bool, directory: Path | None
) -> tuple[str, ...]:
    """Return ssh's command line.

    Args:
        login: where.
        words: the verb and what follows.
        is_terminal: a person types and reads: the verb gets a terminal.
        directory: of the connection's socket; None: the user's own settings are used.
    """
    shared: tuple[str, ...] = ()
    if directory is not None:
        options = {
            "ControlMaster": "auto",
            "ControlPath": f"{directory}/%C",
            "ControlPersist": OPEN_FOR,
        }
        for name, value in options.items():
            shared += ("-o", f"{name}={value}")
    tty = "-t" if is_terminal else "-T"
    return (SSH, *shared, tty, "--", login.host, remote_command(login, words))


def is_shared_already(settings: str) -> bool:
    """Return whether ``ssh -G`` shows that the user's own settings share connections."""
    values = dict(line.partition(" ")[::2] for line in settings.splitlines())
    return values.get("controlpath", "none") != "none" and values.get("controlmaster") in (
        *("auto", "autoask", "yes", "ask", "true"),
    )


def private_directory(environ: Mapping[str, str], temporary: str) -> Path | None:
    """Return a folder that this user alone enters, made if need be; None: there can be none.

    Args:
        environ: whose XDG_RUNTIME_DIR is taken, if it is short enough.
        temporary: the folder of all users' temporary files, taken otherwise.
    """
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    for base, name in ((runtime, _DIRECTORY), (temporary, f"{_DIRECTORY}-{os.geteuid()}")):
        directory = Path(base, name)
        if not base or len(os.fsencode(directory)) > _LONGEST_DIRECTORY:
            continue
        try:
            directory.mkdir(mode=0o700, exist_ok=True)
            status = directory.lstat()
        except OSError:
            continue
        is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
        if is_own and not status.st_mode & 0o077:
            return directory
    return None


def run_there(login: Login, words: Sequence[str]) -> int:
    """Run a verb over there with our input, output and terminal; return its exit code.

    Raises:
        BftError: BFT-1076, there is no ssh here; BFT-1077, the host does not answer; BFT-2128, it
            has no bftrainer.
    """
    settings = process.run((SSH, "-G", "--", login.host), timeout_s=_ASK_LIMIT_S)
    if settings.returncode == 127:
        raise BftError(
            "BFT-1076",
            "There is no ssh here, over which the verb would run.",
            f"Install OpenSSH's client, or log in on {login.host} and type the verb there.",
            exit_code=ExitCode.NOT_FOUND,
        )
    directory = None
    if not is_shared_already(settings.stdout):
        directory = private_directory(os.environ, tempfile.gettempdir())
        if directory is None:
            print_lines(
                "warning: no folder is private enough for ssh's socket: each verb logs in anew",
                err=True,
            )
    is_terminal = os.isatty(0) and os.isatty(1)
    sys.stdout.flush()
    status = process.attached(ssh_argv(login, words, is_terminal=is_terminal, directory=directory))
    if status == _SILENT:
        raise BftError(
            "BFT-1077",
            f"ssh did not reach {login.host}, or lost it; its own words are above.",
            f"Try by hand: ssh {shlex.quote(login.host)} true",
            exit_code=ExitCode.DAEMON_UNREACHABLE,
        )
    if status in _MISSING:
        raise BftError(
            "BFT-2128",
            f"{login.program} is no program on {login.host}.",
            f"Name it: bftrainer {HOST} {shlex.quote(login.host)} {PROGRAM} /PATH/bin/bftrainer "
            f"{shlex.join(words[:1]) or 'VERB'} ..., or install it there.",
            exit_code=ExitCode.NOT_FOUND,
        )
    return status
