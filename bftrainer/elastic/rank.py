"""A worker's rank in a generation, whose members are nodes.

With L workers on each of k nodes a generation has k * L workers; the one with local rank l on
the node of rank r has rank r * L + l. L is fixed for a trainer and so not part of a ``Commit``.
"""

from __future__ import annotations

from dataclasses import dataclass

from bftrainer.elastic.protocol import Commit, WorkerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class RankInfo:
    """A worker's place among all workers of a generation."""

    rank: int
    size: int  # workers of all nodes
    nodes: int
    address: str  # where this worker's sockets listen


def place_in(commit: Commit, config: WorkerConfig) -> RankInfo | None:
    """Return this worker's place in the generation of ``commit``, None if it is not in it."""
    me = next((m for m in commit.members if m.worker_id == config.member_id), None)
    if me is None:
        return None
    return RankInfo(
        rank=me.rank * config.local_size + config.local_rank,
        size=len(commit.members) * config.local_size,
        nodes=len(commit.members),
        address=me.address or config.address,
    )
