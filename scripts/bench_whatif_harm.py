#!/usr/bin/env python3
"""``whatif --harm``: how long does an answer take, and what does it say of three drawn sites?

64 whole nodes and a week, 100 nodes of 8 GPUs for two days, and 64 nodes in two partitions for a
week. Each site is a slurm.conf and what sacct prints; the command is the administrator's own.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from _bench.benchmark import Benchmark, Measured, note
from _bench.choosing import names_in, refuse_unknown
from _bench.waiting import BenchError
from _bench.whatif_harm import sites
from _bench.whatif_harm.sites import DrawnSite

from bftrainer.batch import process

MOST_MINUTES = 5.0
MOST_CORES = 2
TIMEOUT_S = 3600.0
QUICK_DAYS, QUICK_NODES = 0.25, 16
QUICK: dict[str, Callable[[], DrawnSite]] = {
    "whole": partial(sites.whole_nodes, QUICK_NODES, QUICK_DAYS),
    "gpus": partial(sites.gpu_nodes, QUICK_NODES, QUICK_DAYS),
    "mixed": partial(sites.mixed, QUICK_NODES, QUICK_DAYS),
}


def measure(arguments: argparse.Namespace, measured: Measured) -> None:
    """Ask for each site."""
    chosen = names_in(arguments.sites)
    refuse_unknown(chosen, tuple(sites.SITES))
    drawn = QUICK if arguments.quick else sites.SITES
    answers = dict[str, Any]()
    for name in chosen:
        note(f"drawing {name}")
        site = drawn[name]()
        note(f"asking for {site.name}")
        answers[site.name] = answer = _asked(site, arguments)
        is_judged = site.name.endswith("-64") or arguments.quick
        if is_judged:
            measured.at_most(
                f"{site.name}, {site.hours / 24:g} days: the answer",
                answer["took_s"] / 60.0,
                MOST_MINUTES,
                unit="min",
                note=f"{answer['cpu_s'] / 60.0:.1f} min of processor time",
            )
        measured.tables += ["", *answer["answers"]]
    measured.results["sites"] = answers


def _asked(site: DrawnSite, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the command's document, with the time that the command took."""
    with tempfile.TemporaryDirectory() as place:
        conf, log = sites.write(site, Path(place))
        argv = [sys.executable, "-m", "bftrainer", "whatif", "--harm", "--json"]
        argv += ["--slurm-conf", str(conf), "--sacct", str(log), "--start", f"{sites.EPOCH_S:.0f}"]
        argv += ["--hours", f"{site.hours:g}", "--processes", str(arguments.processes)]
        if arguments.quick:
            argv += ["--play", "1", "--no-settings"]
        began_s = time.monotonic()
        done = process.run(argv, timeout_s=TIMEOUT_S)
        took_s = time.monotonic() - began_s
    if done.returncode:
        raise BenchError(f"{site.name}: {done.stderr.strip()[-400:]}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return {**answer, "took_s": took_s}


BENCHMARK = Benchmark(
    name="whatif_harm",
    title="What would my jobs notice?",
    about=__doc__,
    quick=f"{QUICK_NODES} nodes, {24 * QUICK_DAYS:g} h, an hour of it, no other settings",
    options={
        "--sites": {"default": ",".join(sites.SITES), "help": "of: %(default)s"},
        "--processes": {
            "type": int,
            "default": min(MOST_CORES, os.cpu_count() or 1),
            "help": "side by side (default: two at most)",
        },
    },
    measure=measure,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
