"""The targets of a benchmark: limit beside measurement, met or missed.

A script adds one row per target, prints the table, writes it into its JSON file and
exits with ``exit_code``.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from rich.console import Console
from rich.table import Table

from _bench.stats import Ends
from bftrainer.batch.process import run

ROOT = Path(__file__).resolve().parents[2]
UNKNOWN: Final[Ends] = (None, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One target and what was measured for it."""

    name: str
    measured: float
    limit: float
    relation: Literal["<=", ">="]
    unit: str = "s"
    note: str = ""  # e.g. "p95 of 30"
    # Ends of the 95% interval, in the same unit; None: not known, or nothing bounds it there.
    low: float | None = None
    high: float | None = None

    @property
    def is_met(self) -> bool:
        """Whether the measurement is on the right side of the limit."""
        if self.relation == "<=":
            return self.measured <= self.limit
        return self.measured >= self.limit

    def in_words(self, value: float) -> str:
        """A value of this target with its unit."""
        return f"{value:.3g} {self.unit}" if self.unit else f"{value:.4g} x"

    @property
    def verdict(self) -> str:
        """``met`` or ``missed``."""
        return "met" if self.is_met else "missed"


def at_most(
    name: str,
    measured: float,
    limit: float,
    unit: str = "s",
    note: str = "",
    *,
    interval: Ends = UNKNOWN,
) -> Target:
    """Return a target with an upper limit; ``interval``: the ends of its 95% interval."""
    low, high = interval
    upper = Target(name=name, measured=measured, limit=limit, relation="<=", unit=unit, note=note)
    return replace(upper, low=low, high=high)


def at_least(
    name: str,
    measured: float,
    limit: float,
    unit: str = "s",
    note: str = "",
    *,
    interval: Ends = UNKNOWN,
) -> Target:
    """Return a target with a lower limit; ``interval``: the ends of its 95% interval."""
    target = at_most(name, measured, limit, unit, note, interval=interval)
    return replace(target, relation=">=")


def new_table(
    title: str, headings: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1
) -> Table:
    """Return a table; the first ``left`` columns are text, the others numbers."""
    table = Table(title=title, title_justify="left")
    for heading in headings[:left]:
        table.add_column(heading)
    for heading in headings[left:]:
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(*row)
    return table


def print_targets(title: str, targets: list[Target]) -> None:
    """Print each target beside what was measured."""
    table = Table(title=title, title_justify="left")
    for heading in ("target", "to reach", "measured", "of", ""):
        table.add_column(heading, justify="left" if heading in {"target", "of"} else "right")
    for t in targets:
        table.add_row(
            t.name,
            f"{t.relation} {t.in_words(t.limit)}",
            t.in_words(t.measured),
            t.note,
            f"[{'green' if t.is_met else 'bold red'}]{t.verdict}[/]",
        )
    console().print(table)


def console() -> Console:
    """Return where results are printed; wide enough for tables when it is a file."""
    plain = Console()
    return plain if plain.is_terminal else Console(width=110)


def exit_code(targets: list[Target]) -> int:
    """Return 0 when every target is met, 1 otherwise."""
    return 0 if all(t.is_met for t in targets) else 1


def write_json(
    path: Path, benchmark: str, results: Mapping[str, Any], targets: list[Target]
) -> None:
    """Write results and verdicts to a file, whole or not at all."""
    body = {
        "benchmark": benchmark,
        "machine": {"cpus": _cpus(), "platform": platform.platform()},
        "recorded": recorded(),
        "targets": [{**asdict(t), "verdict": t.verdict} for t in targets],
        **results,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(json.dumps(body, indent=1) + "\n")
    temporary.rename(path)


def recorded() -> dict[str, str]:
    """Say what was run, when (UTC), and of which commit; ``scripts/write_results.py`` shows it."""
    answer = run(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], timeout_s=10.0)
    script, *arguments = sys.argv
    return {
        "command": shlex.join([f"scripts/{Path(script).name}", *_shown(arguments)]),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": answer.stdout.strip() if answer.is_ok else "unknown",
    }


def _shown(arguments: list[str]) -> list[str]:
    """Leave out where the results went."""
    at = arguments.index("--json") if "--json" in arguments else len(arguments)
    return [*arguments[:at], *arguments[at + 2 :]]


def _cpus() -> int:
    return len(os.sched_getaffinity(0))
