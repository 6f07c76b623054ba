"""``bftrainer up``: start a daemon of one's own on a partition whose jobs can be preempted.

Reads what the site allows this user, chooses the settings, writes them as a policy file and starts
the ordinary daemon with it. ``--dry-run`` prints the same settings.
"""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from bftrainer.api import paths
from bftrainer.cli.common import connect, json_option, print_json
from bftrainer.errors import BftError, ExitCode, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from bftrainer.model.own_site import OwnSite
    from bftrainer.own.plan import Chosen


@click.command()
@click.option("-p", "--partition", default="", metavar="NAME",
              help="Partition of the pilots.  [default: the only one with preemption]")  # fmt: skip
@click.option("--max-nodes", type=click.IntRange(min=1), metavar="N",
              help="Hold at most this many nodes at once.  [default: 8]")  # fmt: skip
@click.option("-t", "--time", "time_limit_s", type=click.FloatRange(min=120), metavar="SECONDS",
              help="Longest time limit of a pilot.  [default: 4 h]")  # fmt: skip
@click.option("-A", "--account", default="", metavar="NAME", help="Account of the pilots.")
@click.option("-q", "--qos", default="", metavar="NAME", help="QOS of the pilots.")
@click.option("--bind", default="", metavar="ADDRESS",
              help="Address of this host that the nodes reach.  [default: its name's]")  # fmt: skip
@click.option("--batch-system", default="slurm", show_default=True, hidden=True)
@click.option("--dry-run", is_flag=True, help="Check the site and print the settings only.")
@json_option
def up(
    partition: str,
    max_nodes: int | None,
    time_limit_s: float | None,
    account: str,
    qos: str,
    bind: str,
    batch_system: str,
    *,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Start your own daemon, without an administrator.

    Its trainers run on idle nodes of a partition whose jobs are preempted for others
    (scavenge, killable, preempt). It survives your logout; 'bftrainer down' ends it.
    """
    from bftrainer.model.own_site import Wish  # noqa: PLC0415 - -h needs none of these
    from bftrainer.own import plan, starting  # noqa: PLC0415
    from bftrainer.own.site import examine  # noqa: PLC0415

    wish = Wish(
        partition=partition,
        account=account,
        qos=qos,
        max_nodes=max_nodes,
        time_limit_s=time_limit_s,
    )
    site = examine(batch_system, wish)
    chosen = plan.settings_for(site, wish)
    state_dir = paths.own_state_dir(os.environ, site.cluster)
    if dry_run:
        _print(site, chosen, state_dir, as_json=as_json, pid=None)
        return ExitCode.OK
    _refuse_second(state_dir)
    starting.write_policy(state_dir, plan.policy_text(chosen))
    client = connect(str(state_dir / paths.SOCKET_NAME))
    argv = starting.daemon_argv(state_dir, batch_system, bind)
    status = starting.start(argv, state_dir, client.status)
    _print(site, chosen, state_dir, as_json=as_json, pid=status.pid)
    return ExitCode.OK


def _refuse_second(state_dir: Path) -> None:
    try:
        status = connect(str(state_dir / paths.SOCKET_NAME)).status()
    except BftError:
        return
    raise UsageError(
        "BFT-1102",
        f"Your daemon runs already (process {status.pid}, {state_dir}).",
        "Use it: bftrainer status. Other settings: bftrainer down, then bftrainer up.",
        exit_code=ExitCode.ALREADY_RUNNING,
    )


def _print(
    site: OwnSite, chosen: tuple[Chosen, ...], state_dir: Path, *, as_json: bool, pid: int | None
) -> None:
    if as_json:
        settings = {one.name: {"value": one.value, "why": one.why} for one in chosen}
        document = {"site": asdict(site), "settings": settings, "state_dir": str(state_dir)}
        print_json({**document, "pid": pid})
        return
    click.echo(f"cluster {site.cluster}, partition {site.partition}")
    for sentence in site.unread:
        click.echo(f"warning: {sentence}", err=True)
    for one in chosen:
        click.echo(f"{one.name} = {_shown(one.value)}  ({one.why})")
    if pid is None:
        click.echo("nothing was started", err=True)
        return
    click.echo(f"Your daemon runs (process {pid}, {state_dir}). Now: bftrainer submit train.py")


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return " ".join(f"{key}={_shown(part)}" for key, part in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value).lower()
