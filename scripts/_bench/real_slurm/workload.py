"""The ordinary jobs of a run, drawn from a seed.

Numbers in, ``WorkloadItem``s out; the same arguments give the same jobs.

Arrivals come in campaigns: most jobs of a campaign within its first two fifths, so that
a queue builds up and big jobs block it; small jobs all the time, so that the scheduler
never rests, as on a large cluster. Run times are lognormal and scaled until the cluster
is used as much as asked for. Limits are whole minutes, as Slurm has them, and much longer
than run times: of what users do, that is the one thing time cannot be compressed for.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from slurm_plugins.testcluster.workload import WorkloadItem

T = TypeVar("T")
Kind = Literal["sbatch", "srun", "immediate"]

CAMPAIGN_S = 150.0
IN_CAMPAIGN = 0.8  # share of jobs that come in the first part of a campaign
CAMPAIGN_PART = 0.4
SPAN_SHARE = 0.85  # of a run: submissions; then the queue drains
SIZES = ((1, 0.58), (2, 0.20), (4, 0.13), (8, 0.06), (12, 0.03))  # of 16 nodes
LIMITS_MIN = ((1, 0.30), (2, 0.20), (3, 0.15), (5, 0.15), (10, 0.12), (15, 0.08))
SIGMA = 1.5  # most jobs are short, most node-seconds are those of a few
SHORTEST_S = 1.0
LONGEST_SHARE = 1 / 6  # of the span
KINDS: tuple[tuple[Kind, float], ...] = (("sbatch", 0.76), ("srun", 0.16), ("immediate", 0.08))


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What to draw."""

    n_jobs: int
    n_nodes: int
    minutes: float  # of the whole run, the drain included
    load: float  # share of all node-seconds until the last submission
    seed: int

    @property
    def span_s(self) -> float:
        """In which jobs are submitted."""
        return 60.0 * self.minutes * SPAN_SHARE


def generate(demand: Demand) -> tuple[WorkloadItem, ...]:
    """Draw the jobs, in order of submission."""
    chance = random.Random(demand.seed)  # noqa: S311 - a workload, not a secret
    arrivals = sorted(_arrival(chance, demand.span_s) for _ in range(demand.n_jobs))
    sizes = [(max(1, round(size * demand.n_nodes / 16)), share) for size, share in SIZES]
    kinds_and_sizes = []
    for _, in_campaign in arrivals:
        kind = _one_of(chance, KINDS)
        # Between campaigns, and at once or never: small jobs.
        is_small = kind == "immediate" or not in_campaign
        kinds_and_sizes.append((kind, sizes[0][0] if is_small else _one_of(chance, sizes)))
    raw_s = [math.exp(SIGMA * chance.gauss(0.0, 1.0)) for _ in kinds_and_sizes]
    run_s = _scaled(raw_s, [n for _, n in kinds_and_sizes], demand)
    return tuple(
        WorkloadItem(
            at_s=round(at_s, 3),
            n_nodes=n_nodes,
            duration_s=round(seconds, 3),
            limit_s=60.0 * max(_one_of(chance, LIMITS_MIN), math.ceil((seconds + 10.0) / 60.0)),
            kind=kind,
        )
        for (at_s, _), (kind, n_nodes), seconds in zip(
            arrivals, kinds_and_sizes, run_s, strict=True
        )
    )


def _arrival(chance: random.Random, span_s: float) -> tuple[float, bool]:
    n_campaigns = max(2, round(span_s / CAMPAIGN_S))
    length_s = span_s / n_campaigns
    in_campaign = chance.random() < IN_CAMPAIGN
    part = CAMPAIGN_PART if in_campaign else 1.0
    return (chance.randrange(n_campaigns) + part * chance.random()) * length_s, in_campaign


def _scaled(raw_s: Sequence[float], sizes: Sequence[int], demand: Demand) -> list[float]:
    """Run times whose sum in node-seconds is the load asked for, as far as bounds allow."""
    longest_s = demand.span_s * LONGEST_SHARE
    wanted_node_s = demand.load * demand.n_nodes * demand.span_s
    scale = wanted_node_s / sum(r * n for r, n in zip(raw_s, sizes, strict=True))
    run_s = list(raw_s)
    for _ in range(20):  # bounds cut both ends: a few rounds come within a percent
        run_s = [min(longest_s, max(SHORTEST_S, scale * r)) for r in raw_s]
        scale *= wanted_node_s / sum(r * n for r, n in zip(run_s, sizes, strict=True))
    return run_s


def _one_of(chance: random.Random, weighted: Sequence[tuple[T, float]]) -> T:
    return chance.choices([v for v, _ in weighted], [w for _, w in weighted])[0]
