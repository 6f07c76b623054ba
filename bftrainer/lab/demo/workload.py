"""The ordinary jobs of the demonstration."""

from __future__ import annotations

from bftrainer.batch.local.workload import JobWorkload, WorkItem


def demo_workload(n_nodes: int) -> JobWorkload:
    """Return jobs that leave a busy cluster, then come back for nodes where trainers run."""
    quarter, half = max(1, n_nodes // 4), max(1, n_nodes // 2)
    jobs = ((0.0, quarter, 6.0, "alice"), (12.0, half, 5.0, "bob"), (22.0, quarter, 4.0, "carol"))
    # People ask for more time than they need.
    return JobWorkload(
        items=tuple(
            WorkItem(at_s=at_s, n_nodes=n, duration_s=s, limit_s=2.0 * s, user=user)
            for at_s, n, s, user in jobs
        )
    )
