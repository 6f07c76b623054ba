"""``bftrainer report harm`` and ``account``: the effect on ordinary jobs, node-hours by user.

Print the daemon's reports, or those computed from a journal.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bftrainer.cli.common import connect, read_journal
from bftrainer.cli.options import (
    JOURNAL,
    JSON,
    POLICY,
    SOCKET,
    VerbGroup,
    option,
    shown_example,
    verb,
)
from bftrainer.cli.output import answer, clock, duration, print_csv, print_lines, print_table
from bftrainer.model.cluster import node_of
from bftrainer.model.columns import counted, shown
from bftrainer.model.quantities import quantity
from bftrainer.model.reports import (
    COLUMNS,
    AccountLine,
    AccountReport,
    Asked,
    HarmReport,
    LeavingRate,
    Leavings,
    UnusableNode,
    WorstCase,
    day_of,
)

if TYPE_CHECKING:
    from bftrainer.site.policy.model import SitePolicy

WORST_HEADERS = (">SECONDS", ">+-", "JOB", ">NODES", "NODE", "HOW", "ASKED", "REASON")
PART_HEADERS = (
    *("PARTS OF", "GPU", ">HAND-OVERS", ">GPUS", ">GIVEN BACK", ">PREEMPTED", ">LATE"),
    *(">IN VAIN", ">PENDING"),
)
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


@click.group(cls=VerbGroup, epilog=shown_example("bftrainer report harm --since 7d"))
def report() -> None:
    """Summarise what the daemon has recorded."""


@verb(
    option("--since SPAN", "Only the last SPAN: 90s, 30m, 24h, 7d.  [default: all]", name="ago_s",
           callback=span_s),
    JOURNAL, POLICY, JSON, SOCKET, group=report,
    example="bftrainer report harm --since 7d",
)  # fmt: skip
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
        from bftrainer.daemon.harm import monitor  # noqa: PLC0415 - SQLAlchemy is slow

        rule = monitor.rule_of(_policy(policy_file))
        with read_journal(journal, is_verified=False) as opened:
            read = monitor.read_records(opened), monitor.read_state(opened)
            found = monitor.report_of(*read, rule, since_s=since_s, until_s=time.time())
    answer(found, "harm", _print_harm, as_json=as_json)


def _policy(path: Path | None) -> SitePolicy:
    from bftrainer.site.policy.load import load_policy  # noqa: PLC0415 - pydantic is slow
    from bftrainer.site.policy.model import SitePolicy  # noqa: PLC0415

    return SitePolicy() if path is None else load_policy(path)


def _print_harm(found: HarmReport) -> None:
    span = duration(found.until_s - found.since_s)
    unit, units, of_parts = "node", "nodes", ""
    if found.by_gpu:
        unit, units = "node or part", "nodes or parts"
        of_parts = f" ({counted(found.gpus, 'GPU')} of parts)"
    promise = f"{100 * found.share_promised:g}% within {found.limit_s:g} s: "
    if found.share_within is None:
        promise += "nothing to judge yet"
    else:
        word = "kept" if found.is_kept else "NOT KEPT"
        promise += f"{word} ({_percent(found.share_within)} of {found.measured})"
    taken = "none"  # pilots that nobody of us asked to leave, and that no job was seen to get
    if found.taken:
        kinds = "; ".join(f"{one.pilots} {_TAKEN.get(one.by, one.by)}" for one in found.taken_by)
        taken = f"{found.taken} without a job seen on their node: {kinds or 'unknown why'}"
    reasons = ", ".join(f"{v.nodes} {v.why}" for v in found.vain if v.nodes)
    reasons = f": {reasons}" if reasons else ""
    print_lines(
        f"since       {clock(found.since_s)} ({span})",
        f"hand-overs  {counted(found.hand_overs, unit, units)}{of_parts} to "
        f"{counted(found.jobs, 'job')}: "
        f"{found.given_back} given back, {found.preempted} preempted; "
        f"median {_seconds(found.median_s)}, p95 {_seconds(found.p95_s)}, "
        f"longest {_seconds(found.max_s)}",
        f"promise     {promise}",
        f"preempted   {counted(found.preempted_jobs, 'job')} had to preempt "
        f"({_percent(found.share_preempted)} of those that got nodes, "
        f"{_rate(found.preempted_jobs_per_hour)})",
        f"lost cycles {_lost(found)}",
        f"ended       {shown(taken)}",
        f"in vain     {counted(found.in_vain, unit, units)} ({_percent(found.share_in_vain)} of"
        f" those given back for a job, {_rate(found.in_vain_per_hour)}){shown(reasons)}",
        *_pending(found),
        *_leavings(found.leavings),
        f"back-off    {shown(found.back_off or 'none')}",
    )
    _print_unusable(found.leavings.nodes)
    _print_parts(found)
    if not found.hand_overs:
        return
    worst = [
        (
            *(_seconds(w.delay_s), f"{w.precision_s:.2f}", w.job_id, str(w.n_nodes), _where(w)),
            *(w.how, clock(w.asked_s), w.reason),
        )
        for w in found.worst
    ]
    print_lines("")
    print_table(("DELAY", f">{units.upper()}", ""), _bars(found))
    print_lines("")
    print_table(WORST_HEADERS, worst)


def _bars(found: HarmReport) -> list[tuple[str, str, str]]:
    """Return the rows of the histogram of delays."""
    return [
        (
            f"> {found.histogram[-2].at_most_s:g} s"
            if bar.at_most_s is None
            else f"<= {bar.at_most_s:g} s",
            str(bar.count),
            "#" * (max(1, round(30 * bar.count / found.measured)) if found.measured else 0),
        )
        for bar in found.histogram
        if bar.count
    ]


def _where(case: WorstCase) -> str:
    """Return the node, or the GPUs of it: "n1", "n1, 2 gpu:a100"."""
    if not case.gpus:
        return case.node
    return f"{node_of(case.node)}, {case.gpus} {case.gpu_type}"


def _pending(found: HarmReport) -> tuple[str, ...]:
    """Say how many pilots for parts of nodes stayed pending, and why."""
    if not found.pending:
        return ()
    reasons = ", ".join(f"{one.pilots} {one.why or 'unknown why'}" for one in found.pending_why)
    pilots = f"{counted(found.pending, 'pilot')} for parts of nodes"
    return (f"pending     {pilots}, longer than a scheduler cycle: {shown(reasons)}",)


def _print_parts(found: HarmReport) -> None:
    """Print what became of parts of nodes, by node and type of GPUs."""
    if not found.by_gpu:
        return
    rows = [
        (
            *(one.node or "all", one.gpu_type, str(one.hand_overs), str(one.gpus)),
            *(str(one.given_back), str(one.preempted), str(one.late), str(one.in_vain)),
            str(one.pending),
        )
        for one in (*found.by_gpu, *found.by_node)
    ]
    print_lines("")
    print_table(PART_HEADERS, rows)


def _lost(found: HarmReport) -> str:
    if not found.cycles_lost:
        return "none"
    jobs = ", ".join(f"{shown(one.job_id)} by {one.lost_s:.2f} s" for one in found.lost_cycles)
    more = found.cycles_lost - len(found.lost_cycles)
    who = "it" if found.cycles_lost == 1 else "they"
    return (
        f"{counted(found.cycles_lost, 'job')} started a scheduler cycle later as {who} had to"
        " preempt, "
        f"{found.cycles_lost_s:.2f} s in all: {jobs}{f' and {more} more' if more else ''}"
    )


def _leavings(found: Leavings) -> tuple[str, str]:
    """Say when pilots' processes were gone, and how many nodes were unusable then."""
    above = "-"
    if None not in (found.excess, found.excess_low, found.excess_high):
        low, high = _percent(found.excess_low), _percent(found.excess_high)
        above = f"{_percent(found.excess)} (95%: {low} to {high})"
    jobs = found.by_jobs
    gone = (
        f"all gone    {counted(found.measured, 'pilot')}: median {_seconds(found.median_s)}, "
        f"p95 {_seconds(found.p95_s)}, longest {_seconds(found.max_s)}, "
        f"too long by {_seconds(found.precision_s)} at most"
    )
    unusable = (
        f"unusable    {_share_of(found.by_pilots)} nodes soon after pilots, {_share_of(jobs)} "
        f"after ordinary jobs; harm is what is above: {above}"
    )
    return gone, unusable


def _print_unusable(nodes: Sequence[UnusableNode]) -> None:
    if nodes:
        rows = [
            (
                *(one.node, one.state, f"{one.after_s:.0f}", one.pilot_id or one.job_id),
                *(clock(one.at_s), one.reason or "-"),
            )
            for one in nodes
        ]
        print_lines("")
        print_table(("UNUSABLE", "STATE", ">AFTER", "LEFT BY", "SEEN", "REASON"), rows)


def _share_of(rate: LeavingRate) -> str:
    return f"{rate.unusable} of {rate.left} ({_percent(rate.share)})"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}%"


def _rate(per_hour: float | None) -> str:
    if per_hour is None:
        return "-"
    return f"{quantity(per_hour, 2)} an hour"


_HEADERS = (">HARVESTED", ">LOST", ">REDONE", ">WARM-UP", ">IDLE", ">UNUSED LIMIT", ">PILOTS")
_FIGURES = (
    "harvested_h", "lost_h", "redone_h", "warm_up_h", "idle_h", "given_back_h",
    "pilots", "pilots_given_back", "pilots_preempted", "energy_kwh", "gpu_h",
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


@verb(
    option("--by COLUMNS", "A line for each user, account, trainer or day; several with commas.",
           default="user", callback=_columns),
    option("--since DAY|SPAN", "First day: 2026-11-24, or 7d for seven days ago.  [default: all]",
           callback=_day),
    option("--until DAY|SPAN", "Last day, which counts, too.  [default: today]", callback=_day),
    option("--csv", "Print comma-separated values.", name="as_csv"),
    JOURNAL, POLICY, JSON, SOCKET,
    example="bftrainer account --by user,day --since 7d --csv",
)  # fmt: skip
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
    """Say who used how many node-hours, and GPU-hours: harvested, lost and given back.

    Harvested is node time that pilots hold, from the start of a pilot's job to its end. The part of
    it that brought no trainer forward is lost: training done again, warm-up, and pilots without a
    trainer. Given back is what pilots still had of their time limits when they ended for an
    ordinary job. Of a pilot with 2 of a node's 8 GPUs a quarter of the time counts.
    """
    if as_csv and as_json:
        raise click.UsageError("--csv and --json exclude each other")
    if policy_file is not None and journal is None:
        raise click.UsageError("--policy is for --journal; a daemon has its own")
    if journal is None:
        found = connect(socket_name).account(by=by, since=since, until=until)
    else:
        from bftrainer.daemon.account_report import make_report  # noqa: PLC0415 - SQLAlchemy is slow
        from bftrainer.daemon.accounts import read  # noqa: PLC0415

        policy, asked = _policy(policy_file), Asked(by=by, since=since, until=until)
        with read_journal(journal, is_verified=False) as opened:
            kept = read(opened, time.time())
        sums, spans = kept.sums.items(), {"since_s": kept.since_s, "until_s": kept.until_s}
        found = make_report(sums, asked, policy, **spans)
    if as_csv:
        _print_csv(found)
    else:
        answer(found, "account", _print_account, as_json=as_json)


def _print_account(found: AccountReport) -> None:
    whose = f" of {found.user}" if found.user else ""
    print_lines(f"node-hours{whose} from {found.since} to {found.until}, days of the daemon's site")
    if day_of(found.complete_since_s) >= found.since:
        print_lines(f"counted since {clock(found.complete_since_s)}; nothing is known of before")
    if not found.lines:
        print_lines("nobody used anything")
        return
    sums = found.total
    has_energy, has_gpus = sums.energy_kwh is not None, sums.gpu_h > 0.0

    def cells(line: AccountLine) -> list[str]:
        hours = (getattr(line, name) for name in _FIGURES[:6])
        texts = [*(f"{h:.2f}" for h in hours), str(line.pilots)]
        if has_energy:
            texts.append("-" if line.energy_kwh is None else f"{line.energy_kwh:.2f}")
        if has_gpus:
            texts.append(f"{line.gpu_h:.2f}")
        return texts

    headers = [*(name.upper() for name in found.by), *_HEADERS]
    headers += [">KWH"] * has_energy + [">GPU-HOURS"] * has_gpus
    rows = [
        (*(str(getattr(line, name)) or "-" for name in found.by), *cells(line))
        for line in found.lines
    ]
    print_lines("")
    print_table(headers, [*rows, ("total", *[""] * (len(found.by) - 1), *cells(sums))])
    print_lines(
        "",
        f"{counted(sums.pilots, 'pilot')} ended, of these {sums.pilots_given_back} given back to"
        f" ordinary jobs and {sums.pilots_preempted} preempted",
    )
    if has_energy:
        print_lines("kWh: an estimate, watts_per_node_type of the policy times harvested hours")
    if has_gpus:
        print_lines(
            "GPU-hours: of harvested hours; of a node that was held as a whole all its GPUs count"
        )


def _print_csv(found: AccountReport) -> None:
    names = [*found.by, *_FIGURES]
    print_csv(names, ([getattr(line, name) for name in names] for line in found.lines))
