"""``bftrainer-slurm-hook``: writes the two scripts a site installs, and prints what to change.

The administrator names the file to append to and the directory of slurm.conf. The file's directory
is created so that only Slurm's user and root can write there. With ``--relay`` it carries the lines
of that file to a daemon on another host, until it is ended.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import sys
from pathlib import Path
from typing import NoReturn

import click

from bftrainer.batch.tail import name_of, why_unsafe
from bftrainer.fleet.logs import configure_logging
from bftrainer.fleet.wire.keys import load_or_create_pair, load_pair
from bftrainer.ground.fields import in_one_line
from bftrainer.model.errors import BftError, ExitCode, UsageError
from slurm_plugins.hook import scripts
from slurm_plugins.hook.relay import key_of, shown
from slurm_plugins.hook.source import address_of
from slurm_plugins.hook.watch import HookFile

_SLURM_USER = re.compile(r"^\s*SlurmUser\s*=\s*(\S+)", re.MULTILINE | re.IGNORECASE)

_NEXT = (
    "Give an absolute --file, below directories that only root and Slurm's user may write "
    "to, and a --directory you may write to."
)
_TOP = Path("/")


def _show_key(_context: click.Context, _option: click.Parameter, path: Path | None) -> None:
    """Print the public key of a pair, which is written if it is missing; end the program."""
    if path is None:
        return
    try:
        click.echo(shown(load_or_create_pair(path).public))
    except BftError as problem:
        _end(problem)
    sys.exit(0)


@click.command()
@click.option("--file", "file", type=click.Path(path_type=Path), required=True,
              help="File that the scripts append to; the policy's hook_file.")  # fmt: skip
@click.option("--directory", type=click.Path(path_type=Path, file_okay=False), required=True,
              help="Directory of slurm.conf.")  # fmt: skip
@click.option("--group", default="",
              help="Who may read the file, such as the daemon's group.  [default: everybody]",
              )  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Print the scripts, write nothing.")
@click.option("--relay", "endpoint", default="", metavar="tcp://HOST:PORT",
              help="Write nothing; carry new lines to the daemon there (its hook_relay).",
              )  # fmt: skip
@click.option("--key", "key_file", type=click.Path(path_type=Path),
              help="Of --relay: our own key pair (--make-key).")  # fmt: skip
@click.option("--daemon-key", default="", help="Of --relay: the daemon's public key.")
@click.option("--make-key", type=click.Path(path_type=Path), is_eager=True, expose_value=False,
              callback=_show_key,
              help="Write a key pair unless there is one, print its public half, and end.",
              )  # fmt: skip
def main(
    file: Path,
    directory: Path,
    group: str,
    endpoint: str,
    key_file: Path | None,
    daemon_key: str,
    *,
    dry_run: bool,
) -> None:
    """Let Slurm notify bftrainer of submitted and ended jobs."""
    if endpoint:
        _relay(file, directory, endpoint, key_file, daemon_key)
        return
    try:
        texts = {scripts.LUA_NAME: scripts.lua(file), scripts.EPILOG_NAME: scripts.epilog(file)}
        present = directory / scripts.LUA_NAME
        if not dry_run and present.exists() and "bftrainer" not in present.read_text():
            raise FileExistsError(0, "the site has its own; merge ours into it", present)
        if not dry_run:
            _make_place(file.parent, _slurm_uid(directory / "slurm.conf"), group)
            scripts.install(directory, file)
    except (OSError, ValueError, LookupError) as problem:
        click.echo(in_one_line(f"error BFT-1232: The hook was not written: {problem}."), err=True)
        click.echo(f"next: {_NEXT}", err=True)
        sys.exit(ExitCode.USAGE)
    if dry_run:
        for name, text in texts.items():
            click.echo(f"# ---- {directory / name}\n{text}")
    click.echo(f"# Add to {directory / 'slurm.conf'}, then run 'scontrol reconfigure':")
    for key, value in scripts.settings(directory).items():
        click.echo(f"{key}={value}")
    click.echo("# Add to the options of 'bftrainer daemon':")
    click.echo(f"--batch-option hook_file={file}")


def _relay(
    file: Path, directory: Path, endpoint: str, key_file: Path | None, daemon_key: str
) -> None:
    """Carry lines until a signal ends us; there is nothing to lose."""
    from slurm_plugins.hook.relay import Relay  # noqa: PLC0415 - only here

    try:
        owner_uid = _slurm_uid(directory / "slurm.conf")
        address_of(endpoint)
        relay = Relay(
            endpoint=endpoint,
            daemon_key=key_of(daemon_key),
            keys=load_pair(key_file or Path("--key")),
            open_file=lambda: HookFile(file, owner_uid=owner_uid),
        )
    except (OSError, ValueError, LookupError) as problem:
        _end(
            UsageError(
                "BFT-1515",
                f"The relay cannot begin: {problem}.",
                "Give --relay tcp://HOST:PORT, --key FILE of --make-key, --daemon-key with the "
                "daemon's public key, and --directory of slurm.conf.",
            )
        )
    except BftError as problem:
        _end(problem)
    else:
        configure_logging("info", None)
        relay.run()


def _end(problem: BftError) -> NoReturn:
    click.echo(in_one_line(f"error {problem.code}: {problem.cause}"), err=True)
    click.echo(in_one_line(f"next: {problem.next_step}"), err=True)
    sys.exit(problem.exit_code)


def _slurm_uid(conf: Path) -> int:
    """Read SlurmUser from slurm.conf; root if it is not set."""
    name = "root"
    if conf.exists():
        setting = _SLURM_USER.search(conf.read_text())
        if setting:
            name = setting[1]
    if name.isdecimal():
        return int(name)
    return pwd.getpwnam(name).pw_uid


def _make_place(directory: Path, owner_uid: int, group: str) -> None:
    """Create the file's directory, or check an existing one.

    Raises:
        ValueError: others could write there, or replace it.
    """
    why = why_unsafe_place(directory, owner_uid)
    if why:
        raise ValueError(f"{why}, but only {name_of(owner_uid)} and root may write there")
    if directory.exists():
        return
    directory.mkdir(mode=0o700)
    os.chown(directory, owner_uid, -1)
    if group:
        shutil.chown(directory, group=group)
    # With a group, files inherit it and others have no access.
    directory.chmod(0o2750 if group else 0o755)


def why_unsafe_place(directory: Path, owner_uid: int) -> str:
    """Say why others can write to a directory or replace it; "" if they cannot.

    With write access there, other users could replace the file by a pipe, a link or a file of
    their own, and slurmctld would block, or write as SlurmUser into a file of their choice. A
    missing directory is judged by its parents. Sticky directories such as /tmp are refused: their
    contents may vanish and be created anew by others.
    """
    if directory != directory.resolve():
        return f"{directory} is not its real path, which is {directory.resolve()}"
    for folder in (directory, *directory.parents):
        if folder.is_relative_to(_TOP) and folder.exists():
            why = why_unsafe(folder.stat(), owner_uid)
            if why or not folder.is_dir():
                return f"{folder} {why or 'is not a directory'}"
    return ""
