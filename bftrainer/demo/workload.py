"""The ordinary jobs of the demonstration, for either cluster; determined by a seed.

Called by ``run``.
"""

from __future__ import annotations

import math
import random

from bftrainer.local.workload import JobWorkload, WorkItem

SIZES = (1, 1, 1, 2, 2)
SHORTEST_S, LONGEST_S = 4.0, 8.0
BETWEEN_S = (4.0, 7.0)
RUSH_AT = 0.45  # of the whole length


def demo_workload(n_nodes: int, length_s: float, seed: int) -> JobWorkload:
    """Return small jobs all the time, and a rush in the middle.

    At first most nodes are busy and become free one by one. In the rush a wide job waits for a
    running one, a short job behind it may start first (backfill), and then trainers must
    release their nodes for the wide one.
    """
    rng = random.Random(seed)  # noqa: S311 - a workload, not a secret
    third = max(1, n_nodes // 3)
    items = [
        _job(rng, 0.0, third, min(5.0, 0.10 * length_s)),
        _job(rng, 0.05, third, min(9.0, 0.18 * length_s)),
    ]
    rush_s = RUSH_AT * length_s
    at_s = min(10.0, 0.2 * length_s)
    while at_s < length_s - 2.0:
        size, duration_s = rng.choice(SIZES), rng.uniform(SHORTEST_S, LONGEST_S)
        if not rush_s - LONGEST_S < at_s < rush_s + 4.0:  # the rush is rush enough
            items.append(_job(rng, at_s, min(size, n_nodes), duration_s))
        at_s += rng.uniform(*BETWEEN_S)
    items += [
        _job(rng, rush_s, third, 6.0),
        _job(rng, rush_s + 1.0, max(1, n_nodes - 1), 3.0),
        WorkItem(at_s=rush_s + 1.6, n_nodes=1, duration_s=1.5, limit_s=2.5, user="dave"),
    ]
    return JobWorkload(items=tuple(sorted(items, key=lambda item: item.at_s)))


def _job(rng: random.Random, at_s: float, n_nodes: int, duration_s: float) -> WorkItem:
    # People ask for more time than they need.
    limit_s = math.ceil(duration_s * rng.uniform(1.1, 1.6)) + 1.0
    return WorkItem(
        at_s=round(at_s, 3),
        n_nodes=n_nodes,
        duration_s=round(duration_s, 3),
        limit_s=limit_s,
        user=rng.choice(("alice", "bob", "carol")),
    )
