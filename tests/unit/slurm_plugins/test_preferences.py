"""Jobs that prefer some nodes (``sbatch --prefer``) get ours, although others are free."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bftrainer.model.cluster import Job, NodeState
from slurm_plugins.fields import ways_of
from tests.support.snapshots import given_back, held, node, pending, snapshot

FREE, OURS = NodeState.IDLE, NodeState.ALLOCATED
NODES = (
    node("n1", OURS, features=("fast",)),
    node("n2", OURS, features=("fast",)),
    node("n3", FREE, features=("slow",)),
    node("n4", FREE, features=("slow",)),
    node("n5", OURS),
)


def released(job: Job, *ours: str) -> set[str]:
    """Nodes given back for the job where these pilots are held."""
    draft = given_back(snapshot(NODES, [job]), held(*ours))
    return {release.node for release in draft.releases}


def wants(n_nodes: int, prefers: str, constraint: str = "") -> Job:
    return replace(pending("7", n_nodes, features=constraint), prefers=ways_of(prefers))


@pytest.mark.parametrize("constraint", ["", "slow", "fast|slow"])
def test_slurm_would_preempt_for_a_preference_so_we_give_back(constraint: str) -> None:
    assert len(released(wants(1, "fast", constraint), "n1", "n2", "n5")) == 1
    assert released(wants(2, "fast", constraint), "n1", "n2", "n5") == {"n1", "n2"}


def test_where_too_few_are_preferred_the_constraint_counts() -> None:
    assert released(wants(2, "fast", "slow"), "n1") == set()  # n2 is of an ordinary job
    assert released(wants(3, "fast"), "n1", "n2", "n5") != set()  # two are free


def test_a_preference_that_free_nodes_meet_costs_nothing() -> None:
    assert released(wants(2, "slow"), "n1", "n2") == set()


def test_nodes_without_features_are_not_preferred() -> None:
    assert released(wants(1, "fast"), "n5") == set()
