"""``bftrainer report harm`` and ``account``: the effect on ordinary jobs, node-hours by user.

Print the daemon's reports, or those computed from a journal.
"""

from __future__ import annotations

import operator
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
BAR_CELLS = 30  # of the bar of all hand-overs
# Of account: headers of the table, and the fields of a line that are in it and in CSV.
_HEADERS = (">HARVESTED", ">LOST", ">REDONE", ">WARM-UP", ">IDLE", ">UNUSED LIMIT", ">PILOTS")
_HOURS = ("harvested_h", "lost_h", "redone_h", "warm_up_h", "idle_h", "given_back_h")
_FIGURES = (
    *_HOURS,
    *("pilots", "pilots_given_back", "pilots_preempted", "energy_kwh", "gpu_h"),
)


def span_s(_: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """Return the seconds of a length of time such as 90s, 30m, 24h or 7d."""
    if value is None:
        return None
    match = _SPAN.fullmatch(value)
    if match is None:
        why = f"{value!r} is not a length of time such as 90s, 30m, 24h or 7d"
        raise click.BadParameter(why, param=param)
    return float(match[1]) * _UNITS_S[match[2]]


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
    since_s = None
    if ago_s is not None:
        since_s = time.time() - ago_s
    if journal is None:
        report = connect(socket_name).harm(since_s)
    else:
        from bftrainer.daemon.harm import monitor  # noqa: PLC0415 - SQLAlchemy is slow
        from bftrainer.daemon.harm.book import rule_of  # noqa: PLC0415 - likewise

        rule = rule_of(_policy(policy_file))
        with read_journal(journal, is_verified=False) as opened:
            records, state = monitor.read_records(opened), monitor.read_state(opened)
            report = monitor.report_of(records, state, rule, since_s=since_s, until_s=time.time())
    answer(report, "harm", _print_harm, as_json=as_json)


def _policy(path: Path | None) -> SitePolicy:
    from bftrainer.site.policy.load import load_policy  # noqa: PLC0415 - pydantic is slow
    from bftrainer.site.policy.model import SitePolicy  # noqa: PLC0415

    if path is None:
        return SitePolicy()
    return load_policy(path)


def _print_harm(report: HarmReport) -> None:
    span = duration(report.until_s - report.since_s)
    unit, units, of_parts = "node", "nodes", ""
    if report.by_gpu:
        unit, units = "node or part", "nodes or parts"
        of_parts = f" ({counted(report.gpus, 'GPU')} of parts)"
    reasons = ", ".join(f"{count.nodes} {count.why}" for count in report.vain if count.nodes)
    if reasons:
        reasons = f": {reasons}"
    print_lines(
        f"since       {clock(report.since_s)} ({span})",
        f"hand-overs  {counted(report.hand_overs, unit, units)}{of_parts} to "
        f"{counted(report.jobs, 'job')}: "
        f"{report.given_back} given back, {report.preempted} preempted; "
        f"median {_rounded(report.median_s)}, p95 {_rounded(report.p95_s)}, "
        f"longest {_rounded(report.max_s)}",
        f"promise     {_promise(report)}",
        f"preempted   {counted(report.preempted_jobs, 'job')} had to preempt "
        f"({_percent(report.share_preempted)} of those that got nodes, "
        f"{_rate(report.preempted_jobs_per_hour)})",
        f"lost cycles {_lost(report)}",
        f"ended       {shown(_ended(report))}",
        f"in vain     {counted(report.in_vain, unit, units)} ({_percent(report.share_in_vain)} of"
        f" those given back for a job, {_rate(report.in_vain_per_hour)}){shown(reasons)}",
        *_pending(report),
        *_leavings(report.leavings),
        f"back-off    {shown(report.back_off or 'none')}",
    )
    _print_unusable(report.leavings.nodes)
    _print_parts(report)
    if not report.hand_overs:
        return
    print_lines("")
    print_table(("DELAY", f">{units.upper()}", ""), _bars(report))
    print_lines("")
    print_table(WORST_HEADERS, list(map(_worst_row, report.worst)))


def _promise(report: HarmReport) -> str:
    """Say what is promised, and whether it is kept."""
    promise = f"{100 * report.share_promised:g}% within {report.limit_s:g} s:"
    if report.share_within is None:
        return f"{promise} nothing to judge yet"
    verdict = "kept" if report.is_kept else "NOT KEPT"
    return f"{promise} {verdict} ({_percent(report.share_within)} of {report.measured})"


def _ended(report: HarmReport) -> str:
    """Say which pilots ended though we asked none to, and no job was seen to get their nodes."""
    if not report.taken:
        return "none"
    kinds = "; ".join(
        f"{count.pilots} {_TAKEN.get(count.by, count.by)}" for count in report.taken_by
    )
    return f"{report.taken} without a job seen on their node: {kinds or 'unknown why'}"


def _worst_row(case: WorstCase) -> tuple[str, ...]:
    return (
        *(_rounded(case.delay_s), f"{case.precision_s:.2f}", case.job_id, str(case.n_nodes)),
        *(_where(case), case.how, clock(case.asked_s), case.reason),
    )


def _bars(report: HarmReport) -> list[tuple[str, str, str]]:
    """Return the rows of the histogram of delays."""
    rows = []
    for bucket in report.histogram:
        if not bucket.count:
            continue
        if bucket.at_most_s is None:  # the last one, which has no end
            delay = f"> {report.histogram[-2].at_most_s:g} s"
        else:
            delay = f"<= {bucket.at_most_s:g} s"
        bar = ""
        if report.measured:
            bar = "#" * max(1, round(BAR_CELLS * bucket.count / report.measured))
        rows.append((delay, str(bucket.count), bar))
    return rows


def _where(case: WorstCase) -> str:
    """Return the node, or the GPUs of it: "n1", "n1, 2 gpu:a100"."""
    if not case.gpus:
        return case.node
    return f"{node_of(case.node)}, {case.gpus} {case.gpu_type}"


def _pending(report: HarmReport) -> tuple[str, ...]:
    """Say how many pilots for parts of nodes stayed pending, and why."""
    if not report.pending:
        return ()
    reasons = ", ".join(
        f"{count.pilots} {count.why or 'unknown why'}" for count in report.pending_why
    )
    pilots = f"{counted(report.pending, 'pilot')} for parts of nodes"
    return (f"pending     {pilots}, longer than a scheduler cycle: {shown(reasons)}",)


def _print_parts(report: HarmReport) -> None:
    """Print what became of parts of nodes, by node and type of GPUs."""
    if not report.by_gpu:
        return
    rows = [
        (
            *(counts.node or "all", counts.gpu_type, str(counts.hand_overs), str(counts.gpus)),
            *(str(counts.given_back), str(counts.preempted), str(counts.late)),
            *(str(counts.in_vain), str(counts.pending)),
        )
        for counts in (*report.by_gpu, *report.by_node)
    ]
    print_lines("")
    print_table(PART_HEADERS, rows)


def _lost(report: HarmReport) -> str:
    if not report.cycles_lost:
        return "none"
    jobs = ", ".join(
        f"{shown(cycle.job_id)} by {cycle.lost_s:.2f} s" for cycle in report.lost_cycles
    )
    n_further = report.cycles_lost - len(report.lost_cycles)
    if n_further:
        jobs += f" and {n_further} more"
    subject = "it" if report.cycles_lost == 1 else "they"
    return (
        f"{counted(report.cycles_lost, 'job')} started a scheduler cycle later as {subject} had to"
        f" preempt, {report.cycles_lost_s:.2f} s in all: {jobs}"
    )


def _leavings(leavings: Leavings) -> tuple[str, str]:
    """Say when pilots' processes were gone, and how many nodes were unusable then."""
    above = "-"
    if None not in (leavings.excess, leavings.excess_low, leavings.excess_high):
        low, high = _percent(leavings.excess_low), _percent(leavings.excess_high)
        above = f"{_percent(leavings.excess)} (95%: {low} to {high})"
    jobs = leavings.by_jobs
    all_gone = (
        f"all gone    {counted(leavings.measured, 'pilot')}: median {_rounded(leavings.median_s)}, "
        f"p95 {_rounded(leavings.p95_s)}, longest {_rounded(leavings.max_s)}, "
        f"too long by {_rounded(leavings.precision_s)} at most"
    )
    unusable = (
        f"unusable    {_share_of(leavings.by_pilots)} nodes soon after pilots, {_share_of(jobs)} "
        f"after ordinary jobs; harm is what is above: {above}"
    )
    return all_gone, unusable


def _print_unusable(nodes: Sequence[UnusableNode]) -> None:
    if nodes:
        rows = [
            (
                *(node.node, node.state, f"{node.after_s:.0f}", node.pilot_id or node.job_id),
                *(clock(node.at_s), node.reason or "-"),
            )
            for node in nodes
        ]
        print_lines("")
        print_table(("UNUSABLE", "STATE", ">AFTER", "LEFT BY", "SEEN", "REASON"), rows)


def _share_of(rate: LeavingRate) -> str:
    return f"{rate.unusable} of {rate.left} ({_percent(rate.share)})"


def _rounded(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}%"


def _rate(per_hour: float | None) -> str:
    if per_hour is None:
        return "-"
    return f"{quantity(per_hour, 2)} an hour"


def _columns(_: click.Context, param: click.Parameter, value: str) -> tuple[str, ...]:
    columns = tuple(value.split(","))
    if not set(columns) <= set(COLUMNS) or len(set(columns)) < len(columns):
        why = f"{value[:60]!r} is not some of {','.join(COLUMNS)}, each once"
        raise click.BadParameter(why, param=param)
    return columns


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
        report = connect(socket_name).account(by=by, since=since, until=until)
    else:
        from bftrainer.daemon.account_report import make_report  # noqa: PLC0415 - SQLAlchemy is slow
        from bftrainer.daemon.accounts import read  # noqa: PLC0415

        policy, question = _policy(policy_file), Asked(by=by, since=since, until=until)
        with read_journal(journal, is_verified=False) as opened:
            books = read(opened, time.time())
        report = make_report(
            books.sums.items(), question, policy, since_s=books.since_s, until_s=books.until_s
        )
    if as_csv:
        _print_csv(report)
    else:
        answer(report, "account", _print_account, as_json=as_json)


def _print_account(report: AccountReport) -> None:
    owner = f" of {report.user}" if report.user else ""
    days = f"from {report.since} to {report.until}, days of the daemon's site"
    print_lines(f"node-hours{owner} {days}")
    if day_of(report.complete_since_s) >= report.since:
        print_lines(f"counted since {clock(report.complete_since_s)}; nothing is known of before")
    if not report.lines:
        print_lines("nobody used anything")
        return
    sums = report.total
    has_energy, has_gpus = sums.energy_kwh is not None, sums.gpu_h > 0.0

    def cells(line: AccountLine) -> list[str]:
        texts = [f"{getattr(line, name):.2f}" for name in _HOURS]
        texts.append(str(line.pilots))
        if has_energy:
            texts.append(_rounded(line.energy_kwh))
        if has_gpus:
            texts.append(f"{line.gpu_h:.2f}")
        return texts

    headers = [*map(str.upper, report.by), *_HEADERS]
    headers += [">KWH"] * has_energy + [">GPU-HOURS"] * has_gpus
    rows = []
    for line in report.lines:
        keys = (str(getattr(line, column)) or "-" for column in report.by)
        rows.append((*keys, *cells(line)))
    print_lines("")
    print_table(headers, [*rows, ("total", *[""] * (len(report.by) - 1), *cells(sums))])
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


def _print_csv(report: AccountReport) -> None:
    names = (*report.by, *_FIGURES)
    print_csv(names, map(operator.attrgetter(*names), report.lines))
