"""``bftrainer doctor``: finds settings of the site that would harm ordinary jobs or trainers.

Queries the batch system, so it works without a daemon; a running daemon adds its measurements.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bftrainer.cli.common import connect, json_option, print_json, socket_option
from bftrainer.cli.daemon import parse_options
from bftrainer.errors import BftError, ExitCode

if TYPE_CHECKING:
    from bftrainer.model.finding import Finding, Measured
    from bftrainer.poll.batch_system import BatchSystem


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
    """Name settings that cost ordinary jobs time: a line each, with the figure and the change.

    With --policy /etc/bftrainer/policy.yaml, the service's, it also compares the installed files
    with those of "site init".

    Exits with 8 if ordinary jobs would be affected or the settings could not be read.
    """
    from bftrainer.model.finding import Weight  # noqa: PLC0415
    from bftrainer.policy.load import load_policy_file  # noqa: PLC0415
    from bftrainer.poll.batch_system import load_batch_system  # noqa: PLC0415 - loads adapters

    first = parse_options(pairs)
    loaded = load_policy_file(policy_file, batch_system=batch_system, batch_options=first)
    system = load_batch_system(batch_system, {**loaded.policy.batch_options, **first})
    try:
        measured = _measured(socket_name, batch_system)
        if policy_file is not None:
            measured = replace(measured, max_nodes=loaded.policy.max_nodes)
        found = system.findings(measured)
        found += _service(system, policy_file)
    finally:
        system.close()
    is_safe = all(f.weight is Weight.LOSS for f in found)
    if as_json:
        print_json({"is_safe": is_safe, "findings": [asdict(f) for f in found]})
    for f in () if as_json else found:
        remedy = "; ".join(line.strip() for line in f.remedy.splitlines())
        click.echo(f"{f.weight.value} {f.code} {f.setting}: {f.cost} Change: {remedy}")
    if not found and not as_json:
        click.echo("Nothing to change.")
    context.exit(ExitCode.OK if is_safe else ExitCode.VALIDATION_FAILED)


def _service(system: BatchSystem, policy_file: Path | None) -> tuple[Finding, ...]:
    """Check what systemd is told of the daemon, if the policy is that of the site's service."""
    from bftrainer.poll import installed  # noqa: PLC0415
    from bftrainer.poll.service_files import POLICY_FILE  # noqa: PLC0415
    from bftrainer.poll.site_inspector import SiteInspector  # noqa: PLC0415

    if policy_file is None or str(policy_file.absolute()) != POLICY_FILE:
        return ()
    if not isinstance(system, SiteInspector):
        return ()
    try:
        return installed.findings(system.site_files())
    except BftError:
        return ()  # settings that cannot be read are a finding already


def _measured(socket_name: str | None, batch_system: str) -> Measured:
    """Return the measurements of the daemon of this batch system, if one runs."""
    from bftrainer.model.finding import NOTHING  # noqa: PLC0415

    try:
        status = connect(socket_name).status()
    except BftError:
        return NOTHING
    return status.measured if status.batch_system == batch_system else NOTHING
