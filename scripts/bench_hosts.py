#!/usr/bin/env python3
"""What troubles between hosts do to a trainer: cuts, deaf pairs, power failures.

A cluster of several hosts on this machine (tests/support/hosts: namespaces, real Slurm), the daemon
of an ordinary user on its login host, one trainer of three hosts, default policy. Each repetition
has a cluster of its own. *Stopped*: the longest time without an update, from the trouble until 20 s
after the trainer is whole again. *Full size*: from the end of the trouble to an update of all
hosts. *Pilots*: those whose job ended. *Said*: by ``bftrainer status``, at the end of the trouble.
Ordinary jobs of one node: from sbatch to their start, beside a cluster without us. Starts: from
``bftrainer up`` to the first update, where hosts have odd names, networks or packet filters.
Prints every target with ``met`` or ``missed``; exits 1 when one is missed.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any, Final

sys.path.append(str(Path(__file__).resolve().parents[1]))  # the tests' hosts

from _bench.benchmark import Benchmark, Measured, note
from _bench.host_bed import BACK_S, Bed, Seen
from _bench.host_starts import STARTS, refusals, starts
from _bench.host_troubles import TROUBLES, Trouble
from _bench.waiting import BenchError

from tests.support.hosts import HostError
from tests.support.hosts.why_not import why_not

JOBS: Final = "jobs"
START: Final = "starts"
START_S: Final = 60.0
REFUSAL_S: Final = 10.0
ADDED_S: Final = 1.0
JOBS_PER_ROUND: Final = 4


def repeat(trouble: Trouble, count: int) -> tuple[list[Seen], int]:
    """Let trainers meet a trouble; what was seen, and epochs whose samples were not used once.

    Each on a cluster of its own: a second cut of a pair within two minutes is held longer.
    """
    found: list[Seen] = []
    not_once = 0
    for _ in range(count):
        with Bed.open() as bed:
            found.append(bed.meet(trouble))
            note(f"{trouble.name}: {found[-1]}")
            if trouble.undo is None:
                bed.cluster.mend("n2")  # what is left there ends
            not_once += bed.not_once()
    return found, not_once


def judge(trouble: Trouble, found: Sequence[Seen], measured: Measured) -> tuple[str, ...]:
    """Compare with the targets; the row of the table."""
    of = f"worst of {len(found)}"
    stopped = [one.stopped_s for one in found]
    full = [math.inf if one.full_s is None else one.full_s for one in found]
    ended = [one.pilots_ended for one in found]
    measured.at_most(f"{trouble.name}: stopped", max(stopped), trouble.stopped_s, note=of)
    if trouble.full_s is not None:
        measured.at_most(f"{trouble.name}: to full size", min(max(full), BACK_S), trouble.full_s,
                         note=of)  # fmt: skip
    if trouble.pilots is not None:
        measured.at_most(f"{trouble.name}: pilots ended", max(ended), trouble.pilots, "jobs", of)
    said = Counter(one.said for one in found).most_common(1)[0][0]
    whole = "-" if trouble.undo is None else both(full)
    return trouble.name, trouble.expected, both(stopped), whole, both(ended), said


def both(values: Sequence[float]) -> str:
    """Median and worst."""
    shown = (f"{v:.1f}" if v < math.inf else f"> {BACK_S:g}" for v in (median(values), max(values)))
    return ", ".join(shown)


def jobs(count: int, measured: Measured) -> dict[str, list[float]]:
    """Measure how long ordinary jobs wait without us, with us, and while the daemon is cut off."""
    number = JOBS_PER_ROUND * count
    with Bed.open(trains=False) as bed:
        without = bed.waits(number)
        bed.start()
        beside = bed.waits(number)
        TROUBLES["daemon"].make(bed.cluster)
        blind = bed.waits(1)  # what it costs the trainer is none of this
    found = {"without": without, "with": beside, "daemon cut off": blind}
    measured.table(
        "Ordinary jobs of one node: from sbatch to their start, s",
        ("cluster", "jobs", "median", "worst"),
        [(k, f"{len(v)}", f"{median(v):.2f}", f"{max(v):.2f}") for k, v in found.items()],
    )
    of = f"{number} jobs each"
    measured.at_most("ordinary job: added wait", median(beside) - median(without), ADDED_S, note=of)
    return found


def begin(count: int, measured: Measured) -> dict[str, list[float]]:
    """Measure how soon a trainer trains on hosts of all kinds."""
    found = {start.name: [starts(start) for _ in range(count)] for start in STARTS}
    refused = [took_s for _ in range(count) for took_s in refusals()]
    measured.table(
        "From up to the first update, s: median, worst",
        ("hosts", "seconds"),
        [(name, both(times)) for name, times in found.items()],
    )
    worst = max(took_s for times in found.values() for took_s in times)
    measured.at_most("start on any hosts", worst, START_S, note=f"worst of {count} each")
    measured.at_most("refusal of an address", max(refused), REFUSAL_S,
                     note=f"worst of {len(refused)}")  # fmt: skip
    return {**found, "refused": refused}


GROUPS: Final = {JOBS: jobs, START: begin}


def measure(options: argparse.Namespace, measured: Measured) -> None:
    """Run the scenarios."""
    if why := why_not():
        raise BenchError(why)
    count = 1 if options.quick else options.count
    rows: list[tuple[str, ...]] = []
    seen: dict[str, Any] = {}
    not_once, key = 0, ""
    try:
        for key in options.scenarios.split(","):
            note(key)
            if key in GROUPS:
                seen[key] = GROUPS[key](count, measured)
                continue
            found, bad = repeat(TROUBLES[key], count)
            rows.append(judge(TROUBLES[key], found, measured))
            seen[key], not_once = [asdict(one) for one in found], not_once + bad
    except (AssertionError, HostError) as problem:
        raise BenchError(f"{key}: {problem}") from problem
    finally:
        headings = ("scenario", "expected", "stopped, s", "full size, s", "pilots", "said")
        measured.table("Seen: median, worst", headings, rows, left=2)
        if rows:
            measured.at_most("epochs with a sample not used once", not_once, 0, "epochs")
        measured.results["seen"] = seen


def check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Refuse unknown scenarios."""
    unknown = set(options.scenarios.split(",")) - {*TROUBLES, *GROUPS}
    if unknown:
        parser.error(f"no such scenario: {', '.join(sorted(unknown))}")


BENCHMARK = Benchmark(
    name="hosts",
    title="Targets",
    about=__doc__,
    quick="each once",
    options={
        "--count": {"type": int, "default": 5, "help": "repetitions (%(default)s)"},
        "--scenarios": {
            "default": ",".join([*TROUBLES, *GROUPS]),
            "help": "of %(default)s",
        },
    },
    measure=measure,
    check=check,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
