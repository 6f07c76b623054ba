"""``bftrainer-slurm-hook``: write the two scripts a site installs, and say what to change.

The administrator names the file to append to and the directory of slurm.conf.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from bftrainer.errors import ExitCode
from slurm_plugins.hook import scripts


@click.command()
@click.option("--file", "file", type=click.Path(path_type=Path), required=True,
              help="What the scripts append to; the policy's hook_file.")  # fmt: skip
@click.option("--directory", type=click.Path(path_type=Path, file_okay=False), required=True,
              help="Where slurm.conf is.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Print the scripts, write nothing.")
def main(file: Path, directory: Path, *, dry_run: bool) -> None:
    """Let Slurm tell bftrainer of submitted and ended jobs."""
    try:
        texts = {scripts.LUA_NAME: scripts.lua(file), scripts.EPILOG_NAME: scripts.epilog(file)}
        taken = directory / scripts.LUA_NAME
        if not dry_run and taken.exists() and "bftrainer" not in taken.read_text():
            raise FileExistsError(0, "the site has one of its own; call our tell() from it", taken)
        if not dry_run:
            scripts.install(directory, file)
    except (OSError, ValueError) as problem:
        click.echo(f"error BFT-1232: The hook was not written: {problem}.", err=True)
        click.echo("next: Give an absolute --file and a --directory you may write to.", err=True)
        sys.exit(ExitCode.USAGE)
    if dry_run:
        for name, text in texts.items():
            click.echo(f"# ---- {directory / name}\n{text}")
    click.echo(f"# Add to {directory / 'slurm.conf'}, then run 'scontrol reconfigure':")
    for key, value in scripts.settings(directory).items():
        click.echo(f"{key}={value}")
    click.echo("# Add to the options of 'bftrainer daemon':")
    click.echo(f"--batch-option hook_file={file}")
