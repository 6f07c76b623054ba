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
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from statistics import median

from _bench.stats import quantile
from _bench.targets import Target, console, exit_code, print_targets, write_json
from _bench.torture.attack import Attacker
from _bench.torture.probe import Probe, Seen, memory_mb
from _bench.torture.site import Site, site, socket_client
from _bench.waiting import BenchError

from bftrainer.errors import BftError

ANSWER_S = 1.0
KEPT = 0.9
PEACE = 0.2  # of the length of the torture


def main() -> int:
    """Run both spans; return 0 when every target is met."""
    asked = _arguments()
    torture_s = 60.0 if asked.quick else 60.0 * asked.minutes
    try:
        with site(asked.nodes) as there:
            results, targets = _measure(there, asked, torture_s)
            if asked.keep:
                there.keep(asked.keep)
    except (BenchError, BftError) as problem:
        console().print(f"[bold red]{problem}[/]")
        return 1
    print_targets("While others mean harm", targets)
    if asked.json:
        write_json(asked.json, "torture", results, targets)
    return exit_code(targets)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a minute; shows that it works")
    parser.add_argument("--json", type=Path, help="write samples and verdicts here")
    parser.add_argument("--minutes", type=float, default=10.0, help="of torture (default 10)")
    parser.add_argument("--only", action="append", help="these attackers, e.g. sbatch")
    parser.add_argument("--keep", type=Path, help="copy journal and log of the daemon here")
    parser.add_argument("--nodes", type=int, default=5, help="of the cluster (default 5)")
    return parser.parse_args()


def _measure(
    there: Site, asked: argparse.Namespace, torture_s: float
) -> tuple[dict[str, object], list[Target]]:
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
    results: dict[str, object] = {
        "peace": asdict(peace),
        "torture": asdict(torture),
        "attacks": {attacker.name: dict(attacker.answers) for attacker in attackers},
        "daemon_mb": (before_mb, memory_mb(pid) if is_alive else None),
        "journal_mb": sum(p.stat().st_size for p in there.daemon.state_dir.glob("journal.db*"))
        / 2**20,
        "log_bytes": there.daemon.log.stat().st_size,
        "innocent_failures": failures,
    }
    _print(peace, torture, attackers, results)
    return results, _targets(peace, torture, is_alive=is_alive, failures=failures)


def _targets(peace: Seen, torture: Seen, *, is_alive: bool, failures: float) -> list[Target]:
    note = f"{len(torture.answers_s)} answers, {torture.unanswered} missing"
    return [
        Target(name="the daemon lives", measured=float(is_alive), limit=1, relation=">=", unit=""),
        Target(
            name="socket answers, p99",
            measured=quantile(torture.answers_s, 0.99),
            limit=ANSWER_S,
            relation="<=",
            note=note,
        ),
        Target(
            name="node-seconds of the innocent",
            measured=torture.nodes / peace.nodes,
            limit=KEPT,
            relation=">=",
            unit="",
            note=f"{torture.nodes:.2f} of {peace.nodes:.2f} nodes in the mean",
        ),
        Target(
            name="failures it is charged",
            measured=failures,
            limit=0,
            relation="<=",
            unit="",
        ),
    ]


def _print(
    peace: Seen, torture: Seen, attackers: list[Attacker], results: dict[str, object]
) -> None:
    out = console()
    for name, seen in (("peace", peace), ("torture", torture)):
        out.print(
            f"{name}: {seen.span_s:.0f} s, answers median {median(seen.answers_s):.3f} s, "
            f"longest {max(seen.answers_s):.2f} s, {seen.nodes:.2f} nodes, "
            f"{seen.steps / seen.span_s:.2f} steps/s"
        )
    for attacker in attackers:
        counts = ", ".join(f"{n} {what}" for what, n in attacker.answers.most_common())
        out.print(f"{attacker.name}: {counts}")
    for what in ("daemon_mb", "journal_mb", "log_bytes"):
        out.print(f"{what}: {results[what]}")


if __name__ == "__main__":
    sys.exit(main())
