"""``bftrainer account``: node-hours used by each user and account.

Prints the daemon's ``AccountReport``, or one computed from a journal.
"""

from __future__ import annotations

import csv
import io
import time
from dataclasses import asdict
from datetime import date
from pathlib import Path

import click

from bftrainer.api.documents import document
from bftrainer.cli.common import clock, connect, json_option, print_json, print_table, socket_option
from bftrainer.cli.report import span_s
from bftrainer.model.reports import COLUMNS, AccountLine, AccountReport, Asked, day_of

_HEADERS = (">HARVESTED", ">LOST", ">REDONE", ">WARM-UP", ">IDLE", ">GIVEN BACK", ">PILOTS")
_FIGURES = (
    "harvested_h", "lost_h", "redone_h", "warm_up_h", "idle_h", "given_back_h",
    "pilots", "pilots_given_back", "pilots_preempted", "energy_kwh",
)  # fmt: skip


def _columns(_: click.Context, param: click.Parameter, value: str) -> tuple[str, ...]:
    by = tuple(value.split(","))
    if not set(by) <= set(COLUMNS) or len(set(by)) < len(by):
        why = f"{value[:60]!r} is not some of {','.join(COLUMNS)}, each once"
        raise click.BadParameter(why, param=param)
    return by


def _day(ctx: click.Context, param: click.Parameter, value: str | None) -> str:
    """Return a day of a date, or of a length of time ago."""
    if value is None:
        return ""
    try:
        return date.fromisoformat(value).isoformat()
    except ValueError:
        pass
    try:
        return day_of(time.time() - (span_s(ctx, param, value) or 0.0))
    except (click.BadParameter, ValueError, OverflowError, OSError) as problem:
        why = f"{value[:40]!r} is not a day such as 2026-11-24, or a time ago such as 7d"
        raise click.BadParameter(why, param=param) from problem


@click.command()
@click.option("--by", callback=_columns, default="user", show_default=True, metavar="COLUMNS",
              help="A line for each user, account, trainer or day; several with commas.",
              )  # fmt: skip
@click.option("--since", callback=_day, metavar="DAY|SPAN",
              help="First day: 2026-11-24, or 7d for seven days ago.  [default: all]",
              )  # fmt: skip
@click.option("--until", callback=_day, metavar="DAY|SPAN",
              help="Last day, which counts, too.  [default: today]")  # fmt: skip
@click.option("--csv", "as_csv", is_flag=True, help="Print comma-separated values.")
@click.option(
    "--journal",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Read this journal (journal.db of a state directory) instead of asking the daemon.",
)
@click.option(
    "--policy", "policy_file", type=click.Path(path_type=Path), help="With --journal: policy YAML."
)
@json_option
@socket_option
def account(
    by: tuple[str, ...],
    since: str,
    until: str,
    journal: Path | None,
    policy_file: Path | None,
    socket_name: str | None,
    *,
    as_csv: bool,
    as_json: bool,
) -> None:
    """Say who used how many node-hours: harvested, lost and given back."""
    if as_csv and as_json:
        raise click.UsageError("--csv and --json exclude each other")
    if policy_file is not None and journal is None:
        raise click.UsageError("--policy is for --journal; a daemon has its own")
    if journal is None:
        found = connect(socket_name).account(by=by, since=since, until=until)
    else:
        found = _from_journal(journal, policy_file, Asked(by=by, since=since, until=until))
    if as_json:
        print_json(document("account", found))
    elif as_csv:
        click.echo(_csv(found), nl=False)
    else:
        _print(found)


def _from_journal(path: Path, policy_file: Path | None, asked: Asked) -> AccountReport:
    from bftrainer.daemon.accounts import make_report, read  # noqa: PLC0415 - SQLAlchemy is slow
    from bftrainer.journal.journal import Journal  # noqa: PLC0415
    from bftrainer.site.policy.load import load_policy  # noqa: PLC0415
    from bftrainer.site.policy.model import SitePolicy  # noqa: PLC0415

    policy = load_policy(policy_file) if policy_file is not None else SitePolicy()
    with Journal.open(path, clock=time.time, is_verified=False) as opened:
        kept = read(opened, time.time())
    return make_report(
        kept.sums.items(),
        asked,
        policy,
        since_s=kept.since_s,
        until_s=kept.until_s,
    )


def _print(found: AccountReport) -> None:
    whose = f" of {found.user}" if found.user else ""
    click.echo(f"node-hours{whose} from {found.since} to {found.until}, days of the daemon's site")
    if day_of(found.complete_since_s) >= found.since:
        click.echo(f"counted since {clock(found.complete_since_s)}; nothing is known of before")
    if not found.lines:
        click.echo("nobody used anything")
        return
    has_energy = found.total.energy_kwh is not None
    headers = (*(name.upper() for name in found.by), *_HEADERS, *((">KWH",) if has_energy else ()))
    total = ("total", *[""] * (len(found.by) - 1), *_cells(found.total, has_energy=has_energy))
    rows = [(*_names(found, line), *_cells(line, has_energy=has_energy)) for line in found.lines]
    click.echo("")
    print_table(headers, [*rows, total])
    sums = found.total
    click.echo("")
    click.echo(
        f"{sums.pilots} pilots ended, of these {sums.pilots_given_back} given back to ordinary jobs"
        f" and {sums.pilots_preempted} preempted"
    )
    if has_energy:
        click.echo("kWh: an estimate, watts_per_node_type of the policy times harvested hours")


def _names(found: AccountReport, line: AccountLine) -> list[str]:
    return [str(getattr(line, name)) or "-" for name in found.by]


def _cells(line: AccountLine, *, has_energy: bool) -> list[str]:
    hours = (line.harvested_h, line.lost_h, line.redone_h, line.warm_up_h, line.idle_h)
    cells = [f"{hour:.2f}" for hour in (*hours, line.given_back_h)]
    energy = "-" if line.energy_kwh is None else f"{line.energy_kwh:.2f}"
    return [*cells, str(line.pilots), *((energy,) if has_energy else ())]


def _csv(found: AccountReport) -> str:
    names = [*found.by, *_FIGURES]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    for line in found.lines:
        values = asdict(line)
        writer.writerow([_safe(values[name]) for name in names])
    return text.getvalue()


def _safe(value: object) -> object:
    """Keep spreadsheets from reading a name as a formula."""
    if isinstance(value, str) and value.startswith(("=", "+", "-", "@")):
        return f"'{value}"
    return "" if value is None else value
