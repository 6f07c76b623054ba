"""``bftrainer report harm``: the effect of bftrainer on ordinary jobs.

Prints the daemon's ``HarmReport``, or one computed from a journal.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

import click

from bftrainer.api.documents import document
from bftrainer.cli.common import (
    clock,
    connect,
    duration,
    json_option,
    print_json,
    print_table,
    socket_option,
)
from bftrainer.model.columns import shown
from bftrainer.model.reports import HarmReport

WORST_HEADERS = (">SECONDS", ">+-", "JOB", ">NODES", "NODE", "HOW", "ASKED", "REASON")
_TAKEN = {
    "preempted": "preempted for a job that was over by the next poll or started elsewhere",
    "cancelled": "cancelled, by an administrator or their user (scancel, bkill)",
    "time-limit": "at their time limit or deadline",
    "node": "as their node failed",
    "itself": "as their agent ended (see pilots/*/agent.log)",
    "unknown": "for a reason that the batch system no longer knew",
}
_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_SPAN = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)([smhd])")


def span_s(_: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """Return the seconds of a length of time such as 90s, 30m, 24h or 7d."""
    if value is None:
        return None
    found = _SPAN.fullmatch(value)
    if found is None:
        why = f"{value!r} is not a length of time such as 90s, 30m, 24h or 7d"
        raise click.BadParameter(why, param=param)
    return float(found[1]) * _UNITS_S[found[2]]


@click.group()
def report() -> None:
    """Summarise what the daemon has recorded."""


@report.command()
@click.option("--since", "ago_s", callback=span_s, metavar="SPAN",
              help="Only the last SPAN: 90s, 30m, 24h, 7d.  [default: all]")  # fmt: skip
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
def harm(
    ago_s: float | None,
    journal: Path | None,
    policy_file: Path | None,
    socket_name: str | None,
    *,
    as_json: bool,
) -> None:
    """Show how long ordinary jobs waited for nodes of ours, and both kinds of error."""
    since_s = None if ago_s is None else time.time() - ago_s
    if journal is None:
        found = connect(socket_name).harm(since_s)
    else:
        found = _from_journal(journal, policy_file, since_s)
    if as_json:
        print_json(document("harm", found))
        return
    _print(found)


def _from_journal(path: Path, policy_file: Path | None, since_s: float | None) -> HarmReport:
    from bftrainer.daemon.harm import monitor  # noqa: PLC0415 - SQLAlchemy is slow
    from bftrainer.journal.journal import Journal  # noqa: PLC0415
    from bftrainer.site.policy.load import load_policy  # noqa: PLC0415
    from bftrainer.site.policy.model import SitePolicy  # noqa: PLC0415

    policy = load_policy(policy_file) if policy_file is not None else SitePolicy()
    with Journal.open(path, clock=time.time, is_verified=False) as opened:
        return monitor.report_of(
            monitor.read_records(opened),
            monitor.read_state(opened),
            monitor.rule_of(policy),
            since_s=since_s,
            until_s=time.time(),
        )


def _print(found: HarmReport) -> None:
    span = duration(found.until_s - found.since_s)
    click.echo(f"since       {clock(found.since_s)} ({span})")
    for name, line in (
        ("hand-overs", _hand_overs(found)),
        ("promise", _promise(found)),
        ("preempted", _preempted(found)),
        ("ended", _taken(found)),
        ("in vain", _in_vain(found)),
        ("back-off", found.back_off or "none"),
    ):
        click.echo(f"{name:<12}{shown(line)}")
    if not found.hand_overs:
        return
    click.echo("")
    bars = [b for b in found.histogram if b.count]
    rows = [(_bound(b.at_most_s, found), str(b.count), "#" * _width(b.count, found)) for b in bars]
    print_table(("DELAY", ">NODES", ""), rows)
    click.echo("")
    print_table(
        WORST_HEADERS,
        [
            (
                _seconds(w.delay_s),
                f"{w.precision_s:.2f}",
                w.job_id,
                str(w.n_nodes),
                w.node,
                w.how,
                clock(w.asked_s),
                w.reason,
            )
            for w in found.worst
        ],
    )


def _hand_overs(found: HarmReport) -> str:
    return (
        f"{found.hand_overs} nodes to {found.jobs} jobs: {found.given_back} given back, "
        f"{found.preempted} preempted; median {_seconds(found.median_s)}, "
        f"p95 {_seconds(found.p95_s)}, longest {_seconds(found.max_s)}"
    )


def _promise(found: HarmReport) -> str:
    promised = f"{100 * found.share_promised:g}% within {found.limit_s:g} s"
    if found.share_within is None:
        return f"{promised}: nothing to judge yet"
    word = "kept" if found.is_kept else "NOT KEPT"
    return f"{promised}: {word} ({_percent(found.share_within)} of {found.measured})"


def _preempted(found: HarmReport) -> str:
    return (
        f"{found.preempted_jobs} jobs had to preempt ({_percent(found.share_preempted)} of those "
        f"that got nodes, {_rate(found.preempted_jobs_per_hour)})"
    )


def _taken(found: HarmReport) -> str:
    """Say how pilots ended that nobody of us asked to leave, and that no job was seen to get."""
    if not found.taken:
        return "none"
    kinds = [f"{one.pilots} {_TAKEN.get(one.by, one.by)}" for one in found.taken_by]
    return f"{found.taken} without a job seen on their node: {'; '.join(kinds) or 'unknown why'}"


def _in_vain(found: HarmReport) -> str:
    reasons = ", ".join(f"{v.nodes} {v.why}" for v in found.vain if v.nodes)
    return (
        f"{found.in_vain} nodes ({_percent(found.share_in_vain)} of those given back for a job, "
        f"{_rate(found.in_vain_per_hour)}){f': {reasons}' if reasons else ''}"
    )


def _bound(at_most_s: float | None, found: HarmReport) -> str:
    if at_most_s is None:
        return f"> {found.histogram[-2].at_most_s:g} s"
    return f"<= {at_most_s:g} s"


def _width(count: int, found: HarmReport) -> int:
    return max(1, round(30 * count / found.measured)) if found.measured else 0


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}%"


def _rate(per_hour: float | None) -> str:
    if per_hour is None:
        return "-"
    return f"{per_hour:.0f} an hour" if per_hour >= 10 else f"{per_hour:.2g} an hour"
