"""Does anybody notice when others submit, say and send what is meant to do harm?

On a real Slurm with hook: a span of peace, then one in which users submit jobs that Slurm
refuses, hand in odd trainers, hold and drop connections at the socket, an admitted agent
lies about another's trainer, and strangers send garbage to every port of agents and
workers. Compared: how long the socket takes to answer somebody else, and the node-seconds
of an innocent trainer.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from _bench.benchmark import Benchmark, Measured
from _bench.stats import quantile
from _bench.torture.attack import Attacker
from _bench.torture.probe import Probe, Seen, memory_mb
from _bench.torture.site import Site, site, socket_client

ANSWER_S = 1.0
KEPT = 0.9
PEACE = 0.2  # of the length of the torture


def measure(asked: argparse.Namespace, measured: Measured) -> None:
    """Watch an innocent trainer in peace, then while others mean harm."""
    torture_s = 60.0 if asked.quick else 60.0 * asked.minutes
    with site(asked.nodes) as there:
        _measure(there, asked, torture_s, measured)
        if asked.keep:
            there.keep(asked.keep)


def _measure(there: Site, asked: argparse.Namespace, torture_s: float, measured: Measured) -> None:
    probe = Probe(there.socket_path, there.innocent)
    before_mb, pid = memory_mb(there.daemon.pid), there.daemon.pid
    peace = probe.watch(torture_s * PEACE)
    attackers = there.attackers(asked.only or ())
    for attacker in attackers:
        attacker.start()
    try:
        with socket_client(there) if not asked.only or "socket" in asked.only else nullcontext():
            torture = probe.watch(torture_s)
    finally:
        for attacker in attackers:
            attacker.stop()
    is_alive = there.daemon.is_running() and there.daemon.pid == pid
    failures = there.daemon.client.trainer(there.innocent).record.failures if is_alive else math.inf
    measured.results |= {
        "peace": asdict(peace),
        "torture": asdict(torture),
        "attacks": {attacker.name: dict(attacker.answers) for attacker in attackers},
        "daemon_mb": (before_mb, memory_mb(pid) if is_alive else None),
        "journal_mb": sum(p.stat().st_size for p in there.daemon.state_dir.glob("journal.db*"))
        / 2**20,
        "log_bytes": there.daemon.log.stat().st_size,
        "innocent_failures": failures,
    }
    _judge(peace, torture, measured)
    measured.at_least("the daemon lives", float(is_alive), 1, "")
    measured.at_most("failures it is charged", failures, 0, "")
    measured.tables += _words(peace, torture, attackers, measured.results)


def _judge(peace: Seen, torture: Seen, measured: Measured) -> None:
    answered = f"{len(torture.answers_s)} answers, {torture.unanswered} missing"
    p99 = quantile(torture.answers_s, 0.99)
    measured.at_most("socket answers, p99", p99, ANSWER_S, note=answered)
    kept = f"{torture.nodes:.2f} of {peace.nodes:.2f} nodes in the mean"
    share = torture.nodes / peace.nodes
    measured.at_least("node-seconds of the innocent", share, KEPT, "", kept)


def _words(
    peace: Seen, torture: Seen, attackers: list[Attacker], results: dict[str, Any]
) -> Iterator[str]:
    for name, seen in (("peace", peace), ("torture", torture)):
        yield (
            f"{name}: {seen.span_s:.0f} s, answers median {median(seen.answers_s):.3f} s, "
            f"longest {max(seen.answers_s):.2f} s, {seen.nodes:.2f} nodes, "
            f"{seen.steps / seen.span_s:.2f} steps/s"
        )
    for attacker in attackers:
        counts = ", ".join(f"{n} {what}" for what, n in attacker.answers.most_common())
        yield f"{attacker.name}: {counts}"
    for what in ("daemon_mb", "journal_mb", "log_bytes"):
        yield f"{what}: {results[what]}"


BENCHMARK = Benchmark(
    name="torture",
    title="While others mean harm",
    about=__doc__,
    quick="a minute; shows that it works",
    options={
        "--minutes": {"type": float, "default": 10.0, "help": "of torture (default 10)"},
        "--only": {"action": "append", "help": "these attackers, e.g. sbatch"},
        "--keep": {"type": Path, "help": "copy journal and log of the daemon here"},
        "--nodes": {"type": int, "default": 5, "help": "of the cluster (default 5)"},
    },
    measure=measure,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
