"""``bftrainer doctor``: settings of the site that would hurt its jobs, or us.

Asks the batch system, not the daemon, so that it can be run before there is one.
"""

from __future__ import annotations

from dataclasses import asdict

import click

from bftrainer.cli.common import json_option, print_json
from bftrainer.cli.daemon import parse_options
from bftrainer.errors import ExitCode


@click.command()
@click.option("--batch-system", default="slurm", show_default=True, help="slurm, local, ...")
@click.option("--batch-option", "pairs", multiple=True, metavar="KEY=VALUE",
              help="Option of the batch system; see docs/slurm.md.")  # fmt: skip
@json_option
@click.pass_context
def doctor(
    context: click.Context, batch_system: str, pairs: tuple[str, ...], *, as_json: bool
) -> None:
    """Name settings that cost ordinary jobs time, with the figure and the line to change.

    Ends with 8 when ordinary jobs would notice, or when nothing could be found out.
    """
    from bftrainer.poll.batch_system import load_batch_system  # noqa: PLC0415 - loads adapters
    from bftrainer.poll.finding import Weight  # noqa: PLC0415

    system = load_batch_system(batch_system, parse_options(pairs))
    try:
        found = system.findings()
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
