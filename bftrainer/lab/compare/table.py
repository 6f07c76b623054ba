"""All plays as rows with 95% confidence intervals, as JSON and as a page.

An interval is Student's, over seeds. Policies are compared in pairs, seed by seed: what is common
to a seed (how much was idle, which trainers came first) is not noise then.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from bftrainer.lab import html
from bftrainer.lab.compare.arenas import Arena, Score
from bftrainer.study.plots import matplotlib, new_canvas

SCHEMA = "bftrainer/compare/1"
HEADERS = (
    "POLICY", ">U", ">JCT MEAN h", ">P95 h", ">JCT AGAINST", ">MAKESPAN h", ">NODE-h",
    ">FAIRNESS", ">RESCALES", ">DECISION ms", ">ENDED", ">JOB WAIT",
)  # fmt: skip
# 97.5% quantiles of Student's distribution, by degrees of freedom from 1 on.
_STUDENT = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
Plays = Mapping[tuple[str, str, int], Score]  # arena, policy, seed
HOUR_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A mean over seeds and half the width of its 95% confidence interval."""

    mean: float
    half: float | None  # None: one seed
    count: int

    def shown(self, digits: int, *, scale: float = 1.0, sign: str = "") -> str:
        """Return it as text, times ``scale``."""
        around = "" if self.half is None else f" ±{scale * self.half:.{digits}f}"
        return f"{scale * self.mean:{sign}.{digits}f}{around}"


def interval(values: Sequence[float | None]) -> Interval | None:
    """Return the interval of a mean; None if a value is missing."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None
    half = None
    if len(known) > 1:
        freedom = len(known) - 1
        quantile = _STUDENT[freedom - 1] if freedom <= len(_STUDENT) else 1.96
        half = quantile * stdev(known) / math.sqrt(len(known))
    return Interval(mean=mean(known), half=half, count=len(known))


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A policy in an arena."""

    policy: str
    jct_against: Interval | None  # JCT relative to the first policy's minus 1, in pairs
    figures: Mapping[str, Interval | None]  # of each field of Score


def rows_of(plays: Plays, arena: str, policies: Sequence[str], seeds: Sequence[int]) -> list[Row]:
    """Return a row for each policy, in their order; the first one is what others are held to."""

    def scores(policy: str) -> list[Score]:
        return [plays[arena, policy, seed] for seed in seeds]

    first = [score.jct_mean_s for score in scores(policies[0])]
    found = []
    for policy in policies:
        own = scores(policy)
        pairs = [
            score.jct_mean_s / beside - 1.0 if score.jct_mean_s and beside else None
            for score, beside in zip(own, first, strict=True)
        ]
        plain = [asdict(score) for score in own]
        found.append(
            Row(
                policy=policy,
                jct_against=None if policy == policies[0] else interval(pairs),
                figures={name: interval([one[name] for one in plain]) for name in plain[0]},
            )
        )
    return found


def cells(row: Row) -> tuple[str, ...]:
    """Return a row of the table, under ``HEADERS``."""

    def shown(name: str, digits: int, unit: float = 1.0) -> str:
        one = row.figures[name]
        return "-" if one is None else one.shown(digits, scale=1.0 / unit)

    against = row.jct_against
    ended, whole = row.figures["completed"], row.figures["submitted"]
    wait, added = row.figures["job_wait_s"], row.figures["job_wait_added"]
    return (
        row.policy,
        shown("utilization", 3),
        shown("jct_mean_s", 2, HOUR_S),
        shown("jct_p95_s", 2, HOUR_S),
        "-" if against is None else f"{against.shown(1, scale=100.0, sign='+')}%",
        shown("makespan_s", 1, HOUR_S),
        shown("node_h", 0),
        shown("fairness", 3),
        shown("rescales", 0),
        shown("decision_ms", 2),
        f"{ended.mean:.0f} of {whole.mean:.0f}" if ended and whole else "-",
        f"{wait.mean:.0f} s, {added.shown(2, scale=100.0, sign='+')}%" if wait and added else "-",
    )


def document(
    plays: Plays, arenas: Sequence[Arena], policies: Sequence[str], seeds: Sequence[int]
) -> dict[str, Any]:
    """Return all figures, and the scores that they are of."""
    return {
        "schema": SCHEMA,
        "policies": list(policies),
        "seeds": list(seeds),
        "arenas": [
            {
                "name": arena.name,
                "about": arena.about,
                "rows": [
                    {
                        "policy": row.policy,
                        "jct_against": row.jct_against and asdict(row.jct_against),
                        "figures": {k: v and asdict(v) for k, v in row.figures.items()},
                        "scores": [asdict(plays[arena.name, row.policy, s]) for s in seeds],
                    }
                    for row in rows_of(plays, arena.name, policies, seeds)
                ],
            }
            for arena in arenas
        ],
    }


FIGURES = (  # field of Score, unit, axis
    ("utilization", 1.0, "U"),
    ("jct_mean_s", HOUR_S, "mean JCT, h"),
    ("rescales", 1.0, "rescales"),
)


def check_pictures() -> None:
    """Check before the plays that pictures can be drawn.

    Raises:
        TraceError: BFT-4004, matplotlib is not installed.
    """
    matplotlib("figure", html.OTHERWISE)


def write_page(
    path: Path,
    plays: Plays,
    arenas: Sequence[Arena],
    policies: Sequence[str],
    seeds: Sequence[int],
    command: str,
) -> None:
    """Write the page.

    Raises:
        TraceError: BFT-4002, no file can be there.
    """
    parts = [f"<p>Means over {len(seeds)} seeds with 95% confidence intervals.</p>"]
    headers = [name.removeprefix(">") for name in HEADERS]
    for arena in arenas:
        rows = rows_of(plays, arena.name, policies, seeds)
        parts += [f"<h2>{escape(arena.name)}</h2>\n<p>{escape(arena.about)}</p>"]
        parts += [html.table(headers, map(cells, rows)), _figure(rows)]
    html.write_page(path, "Policies side by side", command, parts)


def _figure(rows: Sequence[Row]) -> str:
    shown = [one for one in FIGURES if all(row.figures[one[0]] is not None for row in rows)]
    if not shown:
        return ""
    canvas = new_canvas((4.0 * len(shown), 0.9 + 0.28 * len(rows)), html.OTHERWISE)
    all_axes = canvas.subplots(1, len(shown), sharey=True, squeeze=False)[0]
    for axes, (name, unit, label) in zip(all_axes, shown, strict=True):
        found = [row.figures[name] for row in rows]
        means = [one.mean / unit for one in found if one is not None]
        halves = [(one.half or 0.0) / unit for one in found if one is not None]
        places = range(len(rows))
        axes.barh(places, means, xerr=halves, color="#7aa6c2", ecolor="#333")
        axes.set_yticks(places, [row.policy for row in rows])
        axes.set_xlabel(label)
    all_axes[0].invert_yaxis()
    return f"<figure>{html.picture(canvas, 'U, JCT and rescales')}</figure>"
