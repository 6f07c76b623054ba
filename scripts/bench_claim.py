"""How soon does a node go to an ordinary job, and how soon does it train again?

On a real Slurm with Slurm's default delays and the hook: an ordinary job takes every
node from a real torch trainer and leaves them; again and again. Seconds from its
submission to the pilots being gone, and from its end, and from the pilot's first line,
to the first training step. One node, then several at once.
"""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import asdict, dataclass
from statistics import median

from _bench.benchmark import Benchmark, Measured, note
from _bench.claims import Claimed, GaveBack, Site
from _bench.stats import tail

GONE_S, COLD_S, IDLE_S = 0.3, 3.0, 4.5
SEVERAL = 4  # nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class OnSite:
    """All rounds on a cluster of so many nodes."""

    n_nodes: int
    given_back: list[GaveBack]
    claimed: list[Claimed]
    requests: dict[str, int]


def measure(arguments: argparse.Namespace, measured: Measured) -> None:
    """Give back and claim, on one node and on several."""
    rounds = arguments.rounds or (5 if arguments.quick else 20)
    one, several = _measure(1, rounds), _measure(SEVERAL, max(2, rounds // 4))
    measured.results["measured"] = [asdict(m) for m in (one, several)]
    for site in (one, several):
        _judge_gone(site, measured)
        _tabulate(site, measured)
    about = f"median of {len(one.claimed)}"
    to_step = median(c.to_step_s for c in one.claimed)
    measured.at_most("pilot's first line to first training step", to_step, COLD_S, note=about)
    idle = median(c.step_s for c in one.claimed)
    measured.at_most("node idle to first training step", idle, IDLE_S, note=about)


def _measure(n_nodes: int, rounds: int) -> OnSite:
    given_back: list[GaveBack] = []
    claimed: list[Claimed] = []
    with Site(n_nodes=n_nodes) as site:
        for number in range(1, rounds + 1):
            given, taken = site.cycle()
            given_back += given
            claimed += taken
            note(f"{n_nodes} nodes: {number} of {rounds} rounds")
        return OnSite(
            n_nodes=n_nodes, given_back=given_back, claimed=claimed, requests=site.requests()
        )


def _judge_gone(site: OnSite, measured: Measured) -> None:
    # Slurm notes no orderly end of a pilot that it ended itself: then its process counts.
    gone = [g.left_s if math.isnan(g.freed_s) else g.freed_s for g in site.given_back]
    name, value = tail(gone)
    of = f"{site.n_nodes} node{'s' if site.n_nodes > 1 else ''}"
    what = f"job submitted to its {of} free: {name}"
    measured.at_most(what, value, GONE_S, note=f"{len(gone)} pilots")


def _tabulate(site: OnSite, measured: Measured) -> None:
    given, taken = site.given_back, site.claimed
    rows = {
        "submitted to decided": [g.decided_s for g in given],
        "submitted to agent gone": [g.left_s for g in given],
        "submitted to noted by Slurm": [g.freed_s for g in given if not math.isnan(g.freed_s)],
        "idle to pilot requested": [c.requested_s for c in taken],
        "idle to pilot's first line": [c.pilot_s for c in taken],
        "first line to agent connecting": [c.agent_s - c.pilot_s for c in taken],
        "first line to torch imported": [
            c.warm_s - c.pilot_s for c in taken if not math.isnan(c.warm_s)
        ],
        "first line to the script's": [c.script_s - c.pilot_s for c in taken],
        "first line to first step": [c.to_step_s for c in taken],
        "idle to first step": [c.step_s for c in taken],
    }
    measured.table(
        f"{site.n_nodes} node(s), s",
        ("", "n", "min", "median", "max"),
        [
            (what, str(len(values)), *(f"{of(values):.2f}" for of in (min, median, max)))
            for what, values in rows.items()
            if values
        ],
    )
    asked = ", ".join(f"{kind} {n}" for kind, n in sorted(site.requests.items()))
    measured.tables.append(f"asked of the controller: {asked}\n")


BENCHMARK = Benchmark(
    name="claim",
    title="Nodes given back and claimed",
    about=__doc__,
    quick="five rounds instead of twenty",
    options={"--rounds": {"type": int, "help": "with one node; a quarter with several"}},
    measure=measure,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
