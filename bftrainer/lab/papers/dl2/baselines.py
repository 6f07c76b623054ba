"""The other schedulers at 500 servers, and the most that any could gain."""

from __future__ import annotations

from bftrainer.lab.papers.dl2.replays import ByRule, against
from bftrainer.lab.papers.dl2.setting import EXPECTED, LARGE, TESTBED, Amounts, Setting
from bftrainer.lab.papers.findings import Reproduced, Table
from bftrainer.lab.papers.paper import Records

BASELINES = ("optimus", "fitted", "tetris", "srtf", "capped")
WITH_TRUE_SPEEDS = ("optimus", "greedy")


def completion(
    records: Records, setting: Setting, rule: str, extent: Amounts, absent: float = 0.0
) -> tuple[float, ...]:
    """Return a rule's completion time of each trace."""
    runs = by_rule(setting, rule, extent, absent)
    return tuple(records[run] for run in runs)


def by_rule(
    setting: Setting, rule: str, extent: Amounts, absent: float = 0.0
) -> tuple[ByRule, ...]:
    """Return the plays of a rule."""
    return tuple(
        ByRule(setting=setting.name, rule=rule, trace=trace, absent=absent)
        for trace in extent.test()
    )


def runs(extent: Amounts) -> tuple[ByRule, ...]:
    """Return all baselines at 500 servers."""
    return tuple(run for rule in ("drf", *BASELINES) for run in by_rule(LARGE, rule, extent))


def find(records: Records, extent: Amounts) -> Reproduced:
    """Compare each with DRF."""
    base = completion(records, LARGE, "drf", extent)
    lines = []
    for rule in BASELINES:
        ours = against(completion(records, LARGE, rule, extent), base)
        holds = ours < 0.0 if rule == "tetris" else None
        lines.append(EXPECTED.line("baselines", rule, ours, holds=holds))
    return Reproduced(lines=tuple(lines))


def ceiling_runs(extent: Amounts) -> tuple[ByRule, ...]:
    """Return the rules that know the true speeds, on both clusters."""
    return tuple(
        run
        for setting in (LARGE, TESTBED)
        for rule in ("drf", *WITH_TRUE_SPEEDS)
        for run in by_rule(setting, rule, extent)
    )


def ceiling(records: Records, extent: Amounts) -> Reproduced:
    """Compare the better of them, trace by trace, with DRF."""
    lines = []
    for key, setting in (("large", LARGE), ("testbed", TESTBED)):
        known = [completion(records, setting, rule, extent) for rule in WITH_TRUE_SPEEDS]
        best = tuple(map(min, *known))
        base = completion(records, setting, "drf", extent)
        lines.append(EXPECTED.line("ceiling", key, against(best, base)))
    return Reproduced(lines=tuple(lines))


def differences(_: Records, __: Amounts) -> Reproduced:
    """Return what the published code does that the paper does not say."""
    table = EXPECTED.tables["differences"]
    rows = tuple((name, *cells) for name, cells in table["rows"].items())
    return Reproduced(lines=(), tables=(Table(headers=tuple(table["columns"]), rows=rows),))
