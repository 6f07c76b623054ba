"""Limits in nodes, where GPUs are lent one by one: a part counts as its share of the GPUs."""

from __future__ import annotations

from dataclasses import replace

from bftrainer.model.cluster import Node, node_of
from bftrainer.model.decision import Plan, Settings
from bftrainer.model.fairness import Limits
from tests.support.gpu_hosts import gpu_host, gpu_trainer, ordinary, part_pilot, pilot_job
from tests.support.snapshots import Fold, snapshot

SETTINGS = Settings(reserve_nodes_per_type=0)
HOSTS = [gpu_host("n1"), gpu_host("n2"), gpu_host("n3")]


def _claimed_gpus(settings: Settings, *, per_unit: int = 1, hosts: list[Node] = HOSTS) -> int:
    trainers = [gpu_trainer("t1", per_unit=per_unit, n_max=16)]
    plan: Plan = Fold(settings=settings).decide(snapshot(hosts), (), trainers)
    gpus = 0
    for claim in plan.claims:
        gpus += claim.part.gpus if claim.part is not None else 4
    return gpus


def test_without_a_limit_all_gpus_are_lent() -> None:
    assert _claimed_gpus(SETTINGS) == 12


def test_max_nodes_counts_the_gpus_of_that_many_nodes() -> None:
    assert _claimed_gpus(replace(SETTINGS, max_nodes=1)) == 4
    assert _claimed_gpus(replace(SETTINGS, max_nodes=2), per_unit=2) == 8
    assert _claimed_gpus(replace(SETTINGS, max_nodes=2), per_unit=0) == 8


def test_the_back_off_counts_pilots() -> None:
    assert _claimed_gpus(replace(SETTINGS, max_held_nodes=2)) == 2
    assert _claimed_gpus(replace(SETTINGS, max_nodes=1, max_held_nodes=3)) == 3


def test_a_limit_of_users_counts_units_as_their_share_of_a_node() -> None:
    limits = Limits(by_user={"bob": 1})
    assert _claimed_gpus(replace(SETTINGS, limits=limits)) == 4
    assert _claimed_gpus(replace(SETTINGS, limits=limits), per_unit=2) == 4


def test_the_limit_of_each_trainer_counts_units_as_their_share_of_a_node() -> None:
    one_node = replace(SETTINGS, max_nodes_per_trainer=1)
    assert _claimed_gpus(one_node) == 4
    assert _claimed_gpus(one_node, per_unit=2) == 4
    assert _claimed_gpus(replace(SETTINGS, max_nodes_per_trainer=2), per_unit=0) == 8


def test_the_limit_of_each_trainer_counts_as_on_the_smallest_host() -> None:
    hosts = [gpu_host("n1", n_gpus=2), gpu_host("n2", n_gpus=8)]
    assert _claimed_gpus(replace(SETTINGS, max_nodes_per_trainer=2), hosts=hosts) == 4


def test_the_share_of_idle_nodes_is_one_of_their_gpus() -> None:
    limits = Limits(share_of_idle=0.5)
    assert _claimed_gpus(replace(SETTINGS, limits=limits), hosts=HOSTS[:1]) == 2


def test_the_reserve_is_a_gpu_of_each_type() -> None:
    assert _claimed_gpus(replace(SETTINGS, reserve_nodes_per_type=1)) == 11


def test_the_reserve_is_on_the_host_of_which_jobs_use_most() -> None:
    """A small job that starts there leaves whole hosts to the jobs that need them.

    Our own pilots do not make a host full: they go when a job needs it.
    """
    hosts = [gpu_host("n1", ordinary=2), gpu_host("n2", ours=3), gpu_host("n3")]
    ours = [f"n2/{number}" for number in range(3)]
    settings = replace(SETTINGS, reserve_nodes_per_type=1)
    seen = snapshot(hosts, [ordinary("7", "n1", 2), *map(pilot_job, ours)])
    plan = Fold(settings=settings).decide(seen, list(map(part_pilot, ours)), [gpu_trainer("t1")])
    assert [node_of(name) for name in plan.reserve] == ["n1"]
