"""A user's first commands, and what the daemon costs.

Seconds of README's install command in an empty environment, and of ``bftrainer demo`` there; of
``submit`` beside ``sbatch`` of the same script and an import of torch; of a killed daemon until it
has decided again, with 500 trainers in the queue and with none. The daemon's memory, and its
processor time with its commands', while a real Slurm stands still and while its queue changes once
a second. Prints every target with ``met`` or ``missed``; exits 1 when one is missed.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

from _bench.benchmark import Benchmark, Measured, note
from _bench.choosing import names_in, refuse_unknown
from _bench.daemon_costs import Cost, changes, cost_of, processor_s_per_hour, restart, taken_site
from _bench.memory import peak_bytes
from _bench.real_slurm.light import light_trainers
from _bench.stats import quantile_interval, tail
from _bench.targets import ROOT

from bftrainer.batch.process import own_python, run
from bftrainer.lab.demo.sidecar import DaemonProcess
from slurm_plugins.testcluster import SlurmTestCluster

PARTS: Final = ("daemon", "install")
QUEUED: Final = 500
SUBMIT_S: Final = 1.0
RESTART_S: Final = 5.0
LOAD_S: Final = 180.0  # of a processor in an hour: 5%
MEMORY_MB: Final = 250.0
INSTALL_S, DEMO_S = 180.0, 120.0
LIMIT_S: Final = 1800.0  # of one command
MB_OF: Final = {"kB": 0.001, "MB": 1.0}
DOWNLOADED: Final = re.compile(r"Downloading \S+ \(([\d.]+) (kB|MB)\)")
SCRIPT: Final = "#!/usr/bin/env python3\nimport torch\n"

# Submissions, restarts, and the seconds of each figure of processor time.
FULL: Final = (40, 20, 300.0)
QUICK: Final = (8, 3, 30.0)
BENCHMARK = Benchmark(
    name="use",
    title="First commands, and the daemon beside them",
    about=__doc__,
    quick=f"{QUICK[0]} submissions, {QUICK[1]} restarts, {QUICK[2]:g} s of processor time",
    options={"--parts": {"default": ",".join(PARTS), "help": "of: %(default)s"}},
)


def measure(options: argparse.Namespace, measured: Measured) -> None:
    """Measure the parts that were asked for."""
    parts = names_in(options.parts)
    refuse_unknown(parts, PARTS)
    with tempfile.TemporaryDirectory(
        prefix="bft-use-", dir="/tmp", ignore_cleanup_errors=True
    ) as base:
        Path(base).chmod(0o755)  # jobs of other users must reach it
        if "daemon" in parts:
            with taken_site(Path(base)) as (cluster, daemon):
                amount = QUICK if options.quick else FULL
                _measure_daemon(Path(base), cluster, daemon, amount, measured)
        if "install" in parts:
            _measure_install(Path(base), measured)


def _measure_daemon(
    base: Path,
    cluster: SlurmTestCluster,
    daemon: DaemonProcess,
    amount: tuple[int, int, float],
    measured: Measured,
) -> None:
    n_submissions, n_restarts, span_s = amount
    restarts = {0: [restart(daemon, 0) for _ in range(n_restarts)]}
    _measure_load(cluster, daemon, 0, span_s, measured)
    note("submit")
    judge_submit(_submissions(base, cluster, daemon, n_submissions), measured)
    note("a queue")
    for spec in light_trainers(base, QUEUED - n_submissions, 1):
        daemon.client.submit(spec)
    restarts[QUEUED] = [restart(daemon, QUEUED) for _ in range(n_restarts)]
    _measure_load(cluster, daemon, QUEUED, span_s, measured)
    for queued, costs in restarts.items():
        judge(f"restart with {queued} queued", costs, RESTART_S, measured)


def _measure_load(
    cluster: SlurmTestCluster, daemon: DaemonProcess, queued: int, span_s: float, measured: Measured
) -> None:
    change = partial(next, changes(cluster))
    for state, do in (("still", lambda: None), ("changing", change)):
        name = f"processor time of an hour, {state}, {queued} queued"
        note(name)
        value_s = processor_s_per_hour(daemon, span_s, do)
        measured.at_most(name, value_s, LOAD_S, note=f"of {span_s:g} s")
    memory_mb = peak_bytes(daemon.pid) / 1e6
    measured.at_most(f"memory, {queued} queued", memory_mb, MEMORY_MB, "MB", "peak")


def _submissions(
    base: Path, cluster: SlurmTestCluster, daemon: DaemonProcess, count: int
) -> dict[str, list[Cost]]:
    """Submit the same script to the daemon and to Slurm, and import torch, by turns."""
    script = base / "train.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "BFTRAINER_SOCKET": str(daemon.state_dir / "daemon.sock")}
    ours = partial(run, timeout_s=LIMIT_S, env=environment, cwd=base)
    costs: dict[str, list[Cost]] = {"submit": [], "sbatch": [], "import of torch": []}
    for number in range(count):
        name = f"of{number}"
        verb = own_python("bftrainer.cli.main", "submit", "--parsable", "-J", name, str(script))
        costs["submit"].append(cost_of(partial(ours, verb)))
        sbatch = partial(cluster.command, "sbatch", "--parsable", "-o/dev/null", str(script))
        costs["sbatch"].append(cost_of(sbatch))
        torch = (sys.executable, "-c", "import torch")
        costs["import of torch"].append(cost_of(partial(ours, torch)))
    return costs


def judge(
    name: str, costs: Sequence[Cost], limit_s: float, measured: Measured, beside: str = ""
) -> None:
    """Hold the time of all, and the least processor time, which other processes hardly change."""
    walls_s = [cost.wall_s for cost in costs]
    measured.results[name] = walls_s
    label, value_s = tail(walls_s)
    text = f"{label} of {len(costs)}; median {median(walls_s):.2f} s{beside}"
    ends = quantile_interval(walls_s, 0.95)
    measured.at_most(name, value_s, limit_s, note=text, interval=ends)
    least_s = min(cost.processor_s for cost in costs)
    measured.at_most(f"{name}, processor time", least_s, limit_s, note=f"least of {len(costs)}")


def judge_submit(costs: dict[str, list[Cost]], measured: Measured) -> None:
    """Hold the verb beside ``sbatch`` and the import."""
    walls_s = {name: [cost.wall_s for cost in costs[name]] for name in costs}
    beside = f"; sbatch {median(walls_s['sbatch']):.3f} s"
    judge("submit", costs["submit"], SUBMIT_S, measured, beside)
    measured.results |= walls_s
    ratio = median(walls_s["import of torch"]) / median(walls_s["submit"])
    measured.at_least("import of torch / submit", ratio, 1.0, "x", "medians")


def _measure_install(base: Path, measured: Measured) -> None:
    """Do as README says, with an empty cache of downloads."""
    source, venv = base / "source", base / "venv"
    clone = ("git", "clone", "-q", "--shared", str(ROOT), str(source))
    cost_of(partial(run, clone, timeout_s=LIMIT_S))
    environment = {**os.environ, "PIP_CACHE_DIR": str(base / "cache"), "PIP_PROGRESS_BAR": "off"}
    here = partial(run, timeout_s=LIMIT_S, env=environment, cwd=source)
    pip = (f"{venv}/bin/python", "-m", "pip", "install", "-c", "constraints.txt")
    demo = (f"{venv}/bin/bftrainer", "demo", "--no-live", "--no-wait", "--out", str(base / "out"))
    commands = {
        "environment": (sys.executable, "-m", "venv", str(venv)),
        "torch": (*pip, "torch"),
        "install": (*pip, ".[torch,demo]"),
        "demo": demo,
    }
    costs = {name: cost_of(partial(here, argv)) for name, argv in commands.items()}
    walls_s = {name: cost.wall_s for name, cost in costs.items()}
    measured.results["installation_s"] = walls_s
    loaded_mb = downloaded_mb(costs["install"].text)
    text = f"{loaded_mb:.0f} MB downloaded; torch before it: {walls_s['torch']:.0f} s"
    measured.at_most("install", walls_s["install"], INSTALL_S, note=text)
    measured.at_most("demo", walls_s["demo"], DEMO_S)


def downloaded_mb(text: str) -> float:
    """Return how much pip says that it has downloaded."""
    return sum(float(size) * MB_OF[unit] for size, unit in DOWNLOADED.findall(text))


if __name__ == "__main__":
    sys.exit(BENCHMARK.main(measure))
