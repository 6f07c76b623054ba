"""``bftrainer site init``: inspects a site and says what its administrator is to install.

It prints by default; with ``--write`` it writes into one directory, and over nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bftrainer.cli.common import json_option, print_json
from bftrainer.cli.daemon import parse_options
from bftrainer.model.errors import UsageError

if TYPE_CHECKING:
    from bftrainer.model.site import SiteFile

DEFAULT_DIRECTORY = Path("bftrainer-site")


@click.group()
def site() -> None:
    """Prepare a site for bftrainer."""


@site.command()
@click.option("--batch-system", default="slurm", show_default=True, help="slurm, lsf, ...")
@click.option("--policy", "policy_file", type=click.Path(path_type=Path),
              help="Policy YAML whose batch_options count.")  # fmt: skip
@click.option("--batch-option", "pairs", multiple=True, metavar="KEY=VALUE",
              help="Option of the batch system; it is also written into the first policy.",
              )  # fmt: skip
@click.option("--directory", type=click.Path(path_type=Path, file_okay=False),
              default=DEFAULT_DIRECTORY, show_default=True, help="Where --write writes.",
              )  # fmt: skip
@click.option("--write", "is_written", is_flag=True, help="Write the files; print no text.")
@json_option
def init(
    batch_system: str,
    policy_file: Path | None,
    pairs: tuple[str, ...],
    directory: Path,
    *,
    is_written: bool,
    as_json: bool,
) -> None:
    """Print queue or partition, settings, service, a first policy and a checklist for this site.

    The batch system is only asked; nothing of it is changed.
    """
    from bftrainer.batch.batch_system import load_batch_system  # noqa: PLC0415 - loads adapters
    from bftrainer.site.policy.load import load_policy_file  # noqa: PLC0415 - pydantic is slow

    first = parse_options(pairs)
    loaded = load_policy_file(policy_file, batch_system=batch_system, batch_options=first)
    system = load_batch_system(batch_system, {**loaded.policy.batch_options, **first})
    if loaded.policy.pilots_dir:
        system.pilots_are_in(Path(loaded.policy.pilots_dir))
    try:
        files = system.site_files()
    finally:
        system.close()
    written = write(directory, files) if is_written else ()
    if as_json:
        print_json(
            {
                "schema": "bftrainer/site/1",
                "batch_system": batch_system,
                "files": [
                    {
                        "name": file.name,
                        "about": file.about,
                        "path": file.path,
                        "is_service": bool(file.without),
                        "text": file.text,
                    }
                    for file in files
                ],
                "written": [str(path) for path in written],
            }
        )
        return
    for file in files:
        where = f"{directory / file.name}: " if is_written else f"# ---- {file.name}: "
        click.echo(f"{where}{file.about}")
        if not is_written:
            click.echo(file.text)


def write(directory: Path, files: Sequence[SiteFile]) -> tuple[Path, ...]:
    """Write the files, those that are there already excepted; return all paths.

    Raises:
        UsageError: BFT-1249, another file has one of the names, and nothing was written; or the
            directory cannot be written.
    """
    try:
        taken = [directory / file.name for file in files if _is_other(directory, file)]
        if taken:
            raise UsageError(
                "BFT-1249",
                f"{', '.join(map(str, taken))}: there, but with another content. Nothing was "
                "written.",
                "Move it away, or name another --directory.",
            )
        directory.mkdir(parents=True, exist_ok=True)
        for file in files:
            path = directory / file.name
            if not path.exists():
                with path.open("x", encoding="utf-8") as opened:
                    opened.write(file.text)
            path.chmod(0o755 if file.is_executable else 0o644)
    except OSError as problem:
        raise UsageError(
            "BFT-1249",
            f"The files cannot be written into {directory}: {problem.strerror or problem}.",
            "Name another --directory.",
        ) from problem
    return tuple(directory / file.name for file in files)


def _is_other(directory: Path, file: SiteFile) -> bool:
    """Return whether something else has the file's name; a link is something else."""
    path = directory / file.name
    if path.is_symlink():
        return True
    return path.exists() and path.read_bytes() != file.text.encode()
