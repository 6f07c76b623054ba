"""What all benchmarks do alike: options, progress, tables, targets, JSON file, exit status.

A script defines a ``Benchmark`` and ends with ``sys.exit(BENCHMARK.main(measure))``; each
has ``--quick`` and ``--json FILE``. Exit status: 0 when every target is met, 1 when one is missed
or the measurement fails, 130 when it is stopped by a signal; what was measured until then is
printed and written.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final

from rich.table import Table

from _bench.machine import machine
from _bench.stats import Ends
from _bench.targets import (
    UNKNOWN,
    Target,
    at_least,
    at_most,
    console,
    exit_code,
    new_table,
    print_targets,
    write_json,
)
from _bench.waiting import BenchError
from bftrainer.model.errors import BftError

INTERRUPTED: Final = 130


@dataclass(slots=True, kw_only=True)
class Measured:
    """What a benchmark has measured so far."""

    targets: list[Target] = field(default_factory=list)
    results: dict[str, Any] = field(default_factory=dict)  # samples, for the JSON file
    tables: list[Table | str] = field(default_factory=list)

    def table(
        self, title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1
    ) -> None:
        """Add a table; the first ``left`` columns are text."""
        self.tables.append(new_table(title, headings, rows, left=left))

    def at_most(
        self,
        name: str,
        measured: float,
        limit: float,
        unit: str = "s",
        note: str = "",
        *,
        interval: Ends = UNKNOWN,
    ) -> None:
        """Add a target with an upper limit; ``interval``: the ends of its 95% interval."""
        self.targets.append(at_most(name, measured, limit, unit, note, interval=interval))

    def at_least(
        self,
        name: str,
        measured: float,
        limit: float,
        unit: str = "s",
        note: str = "",
        *,
        interval: Ends = UNKNOWN,
    ) -> None:
        """Add a target with a lower limit; ``interval``: the ends of its 95% interval."""
        self.targets.append(at_least(name, measured, limit, unit, note, interval=interval))


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """One benchmark: its name and its options."""

    name: str  # bench_NAME.py
    title: str  # of the table of targets
    about: str | None  # the script's docstring
    quick: str  # help of --quick
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # flag -> add_argument
    check: Callable[[argparse.ArgumentParser, argparse.Namespace], None] = lambda *_: None

    def parse(self, argv: Sequence[str] | None = None) -> argparse.Namespace:
        """Return the options of a command line."""
        parser = argparse.ArgumentParser(
            description=self.about, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        quick = self.quick.replace("%", "%%")  # a sentence, in which 90% is 90%
        parser.add_argument("--quick", action="store_true", help=quick)
        parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here")
        for flag, settings in self.options.items():
            parser.add_argument(flag, **settings)
        options = parser.parse_args(argv)
        self.check(parser, options)
        return options

    def main(self, measure: Callable[[argparse.Namespace, Measured], None]) -> int:
        """Measure what the command line asks for, print, write; return the exit status.

        ``measure`` fills in what it has measured, also when it is stopped.
        """
        options = self.parse()
        signal.signal(signal.SIGTERM, _interrupt)
        measured, began_s, load = Measured(), time.monotonic(), os.getloadavg()[0]
        status = None
        try:
            measure(options, measured)
        except (BenchError, BftError) as problem:
            status = 1
            console().print(f"[bold red]{problem}[/]")
        except KeyboardInterrupt:
            status = INTERRUPTED
            note("interrupted")
        for table in measured.tables:
            console().print(table)
        if measured.targets or status is None:  # an empty table looks like a result
            print_targets(self.title, measured.targets)
        took_s = time.monotonic() - began_s
        print(f"{took_s:.0f} s; load {load:.1f} at the start, {os.getloadavg()[0]:.1f} at the end")
        if options.json and (status is None or measured.targets):
            about = {"processor": machine(), "took_s": took_s, "quick": options.quick}
            about |= {"load": load, "load_after": os.getloadavg()[0], "is_whole": status is None}
            write_json(options.json, self.name, {**about, **measured.results}, measured.targets)
        return exit_code(measured.targets) if status is None else status


def note(text: str) -> None:
    """Say where we are, on standard error."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
