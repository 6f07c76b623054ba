"""``bftrainer doctor``: finds settings of the site that would harm ordinary jobs or trainers.

Queries the batch system, so it works without a daemon; a running daemon adds its measurements.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bftrainer.cli.common import connect, json_option, print_json, socket_option
from bftrainer.cli.daemon import parse_options
from bftrainer.errors import BftError, ExitCode

if TYPE_CHECKING:
    from bftrainer.model.finding import Measured


@click.command()
@click.option("--batch-system", default="slurm", show_default=True, help="slurm, lsf, local, ...")
@click.option("--policy", "policy_file", type=click.Path(path_type=Path), help="Policy YAML.")
@click.option("--batch-option", "pairs", multiple=True, metavar="KEY=VALUE",
              help="Option of the batch system; see docs/howto.")  # fmt: skip
@json_option
@socket_option
@click.pass_context
def doctor(
    context: click.Context,
    batch_system: str,
    policy_file: Path | None,
    pairs: tuple[str, ...],
    socket_name: str | None,
    *,
    as_json: bool,
) -> None:
    """Name settings that cost ordinary jobs time, with the figure and the line to change.

    Exits with 8 if ordinary jobs would be affected or the settings could not be read.
    """
    from bftrainer.model.finding import Weight  # noqa: PLC0415
    from bftrainer.policy.load import load_policy_file  # noqa: PLC0415
    from bftrainer.poll.batch_system import load_batch_system  # noqa: PLC0415 - loads adapters

    first = parse_options(pairs)
    loaded = load_policy_file(policy_file, batch_system=batch_system, batch_options=first)
    system = load_batch_system(batch_system, {**loaded.policy.batch_options, **first})
    try:
        found = system.findings(_measured(socket_name, batch_system))
    finally:
        system.close()
    is_safe = all(f.weight is Weight.LOSS for f in found)
    if as_json:
        print_json({"is_safe": is_safe, "findings": [asdict(f) for f in found]})
    for f in () if as_json else found:
        click.echo(f"{f.weight.value} {f.code}: {f.setting}\n  {f.cost}\n  change: {f.remedy}")
    if not found and not as_json:
        click.echo("Nothing to change.")
    context.exit(ExitCode.OK if is_safe else ExitCode.VALIDATION_FAILED)


def _measured(socket_name: str | None, batch_system: str) -> Measured:
    """Return the measurements of the daemon of this batch system, if one runs."""
    from bftrainer.model.finding import NOTHING  # noqa: PLC0415

    try:
        status = connect(socket_name).status()
    except BftError:
        return NOTHING
    return status.measured if status.batch_system == batch_system else NOTHING
