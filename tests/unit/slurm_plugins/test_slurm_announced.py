"""The whole request of a submitted job: what a line of the hook says, and what Slurm adds to it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bftrainer.model.cluster import Job
from slurm_plugins import parse
from slurm_plugins.fields import UNREAD, ways_of
from slurm_plugins.gres import SEVERAL_TYPES
from slurm_plugins.hook import scripts
from slurm_plugins.hook.lines import announcement
from slurm_plugins.hook.squeue_row import FIELD_NAMES, ClusterFacts
from slurm_plugins.lending import (
    ClusterLimits,
    DefaultMemory,
    PartitionLimits,
    SharingLimits,
    cluster_limits,
    partition_limits,
)
from tests.unit.slurm_plugins.test_slurm_hook import submit

RECORDED = Path(__file__).parents[2] / "fixtures" / "slurm" / "22.05"
CONFIG = parse.controller_config((RECORDED / "config.txt").read_text())
KNOWN = ClusterFacts(cpus_per_node=4, config=CONFIG)
FURTHER = FIELD_NAMES[4:]  # the first four are of the earlier form, too
PER_NODE, PER_CPU = DefaultMemory(memory_mb=900), DefaultMemory(memory_per_cpu_mb=300)


def line(**changes: str) -> str:
    """A line with all fields; those that are not named are empty, as most of a job's are."""
    few = {"nodes": ""} | {name: text for name, text in changes.items() if name not in FURTHER}
    further = [changes.get(name, "") for name in FURTHER]
    return "\t".join((submit(**few), *further))


def announced(cluster: ClusterFacts = KNOWN, /, **changes: str) -> Job:
    said = announcement(line(**changes), 1, cluster)
    assert said is not None
    assert said.job is not None
    return said.job


def knowing(memory: DefaultMemory = DefaultMemory(), **partitions: PartitionLimits) -> ClusterFacts:  # noqa: B008 - frozen
    limits = SharingLimits(
        cluster=ClusterLimits(why_whole="", is_memory_counted=True, default_memory=memory),
        partitions=partitions,
    )
    return replace(KNOWN, limits=limits)


def test_the_script_writes_as_many_fields_as_are_read() -> None:
    [body] = re.findall(r"local function submitted(.*?)\nend", scripts.lua(Path("/a")), re.DOTALL)
    words = re.findall(r"(?:text|number|amount)\(job\.\w+\)", body)
    assert 3 + len(words) == scripts.N_ALL == scripts.N_FEW + len(FURTHER)  # kind, time and owner
    assert submit().count("\t") + 1 == scripts.N_FEW


def test_what_a_job_has_that_asks_for_nothing() -> None:
    job = announced()
    assert (job.n_nodes, job.n_nodes_max, job.cpus, job.cpus_per_node) == (1, None, 1, 1)
    assert (job.gpus, job.gpus_per_node, job.gpu_type, job.unclear) == (0, 0, "", "")
    assert (job.memory_mb, job.memory_per_cpu_mb) == (0, 0)
    assert not job.can_share, "it has all of the node's memory"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"memory_mb": "1000"}, {"memory_mb": 1000, "can_share": True}),
        ({"memory_mb": "65535"}, {"memory_mb": 65535}),
        ({"memory_mb": "0"}, {"memory_mb": 0, "can_share": False}),
        # Where each node has one CPU, squeue does not tell one from the other.
        ({"memory_per_cpu_mb": "500", "cpus": "1"}, {"memory_mb": 500, "memory_per_cpu_mb": 0}),
        ({"memory_per_cpu_mb": "500", "cpus": "3"}, {"memory_mb": 0, "memory_per_cpu_mb": 500}),
        ({"memory_mb": "1000", "shared": "0"}, {"can_share": False}),
        ({"memory_mb": "1000", "shared": "1"}, {"can_share": False}),
        ({"memory_mb": "1000", "shared": "2"}, {"can_share": False}),
        ({"memory_mb": "1000", "shared": "3"}, {"can_share": False}),
        ({"shared": "4"}, {"can_share": False, "unclear": "a block of nodes to itself"}),
        ({"memory_mb": "1000", "shared": "77"}, {"can_share": False, "unclear": ""}),
        ({"gpus_in_all": "gres:gpu:6"}, {"gpus": 6, "gpus_per_node": 0}),
        ({"gpus_in_all": "gres/gpu:a100:6"}, {"gpus": 6, "gpu_type": "a100"}),
        ({"gpus_per_task": "gres:gpu:2", "tasks": "3"}, {"gpus": 6}),
        ({"gpus_per_task": "gres/gpu=2", "nodes": "2"}, {"gpus": 4}),
        ({"gpus_in_all": "gpu:3", "cpus_per_gpu": "gres:gpu:4"}, {"cpus": 12, "gpus": 3}),
        ({"gres": "gpu:2", "nodes": "3", "cpus_per_gpu": "gres/gpu:4"}, {"cpus": 24}),
        ({"cpus_per_gpu": "gres/gpu:4"}, {"cpus": 1}),
        (
            {"gpus_in_all": "gpu:3", "memory_per_gpu": "gres:gpu:65535"},
            {"memory_mb": 0, "memory_per_gpu_mb": 65535, "can_share": True},
        ),
        ({"gpus_per_socket": "gres:gpu:1"}, {"gpus": 0, "unclear": "GPUs per socket"}),
        (
            {"gres": "gres:gpu:a100:1", "gpus_in_all": "gpu:v100:2"},
            {"gpu_type": "", "unclear": SEVERAL_TYPES},
        ),
        ({"tasks": "4", "tasks_per_node": "2", "cpus_per_task": "2"}, {"cpus_per_node": 4}),
        ({"tasks": "1", "tasks_per_node": "2"}, {"cpus_per_node": 1}),
        ({"tasks": "6", "tasks_per_node": "2"}, {"n_nodes": 1, "n_nodes_max": 3}),
        ({"min_cpus_per_node": "3"}, {"cpus_per_node": 3}),
        ({"cpus_per_task": "3", "tasks": "1"}, {"cpus_per_node": 3}),
        ({"nodes": "2", "max_nodes": "5"}, {"n_nodes": 2, "n_nodes_max": 5, "cpus": 2}),
        ({"nodes": "2", "max_nodes": "2"}, {"n_nodes": 2, "n_nodes_max": None}),
        ({"nodes": "2", "max_nodes": "2", "tasks": "3", "cpus_per_task": "2"}, {"n_nodes": 2}),
        ({"tasks": "8", "cpus": "8"}, {"n_nodes": 1, "n_nodes_max": 2, "cpus": 8}),
        ({"required": "n[1-3]"}, {"n_nodes": 3, "cpus": 3}),
        ({"excluded": "n[1-2]"}, {"excluded_nodes": ("n1", "n2")}),
        ({"reservation": "a,b"}, {"reservations": ("a", "b")}),
        ({"prefer": "fast"}, {"prefers": ways_of("fast")}),
        ({"least_minutes": "90"}, {"time_limit_min_s": 5400.0}),
        ({"contiguous": "1", "switches": "1"}, {"unclear": "contiguous nodes and few switches"}),
        ({"contiguous": "0", "switches": "0", "reboot": "0"}, {"unclear": ""}),
        ({"reboot": "1"}, {"unclear": "a reboot"}),
    ],
)
def test_each_field(changes: dict[str, str], expected: dict[str, Any]) -> None:
    job = announced(**changes)
    assert {name: getattr(job, name) for name in expected} == expected


def test_the_node_of_remaining_tasks_is_shown_by_early_releases_only() -> None:
    """Squeue of 23.11 leaves it out; nobody knows the release before the first look."""
    request = {"tasks": "3", "cpus_per_task": "2"}
    assert announced(**request).n_nodes_max == 2
    later = replace(KNOWN, config=replace(CONFIG, release="23.11"))
    assert announced(later, **request).n_nodes_max is None
    assert announced(replace(KNOWN, config=None), **request).n_nodes_max is None


@pytest.mark.parametrize(
    ("partition", "memory_mb", "per_cpu_mb"),
    [
        ("a", 900, 0),
        ("b", 0, 300),
        ("c", 70, 0),  # the cluster's
        ("", 900, 0),  # the default partition's
        ("a,d", 900, 0),
        ("a,b", 0, 0),  # it depends on where it starts
        ("x", 0, 0),
    ],
)
def test_memory_that_a_job_does_not_name(partition: str, memory_mb: int, per_cpu_mb: int) -> None:
    cluster = knowing(
        DefaultMemory(memory_mb=70),
        a=PartitionLimits(default_memory=PER_NODE, is_default=True),
        b=PartitionLimits(default_memory=PER_CPU),
        c=PartitionLimits(),
        d=PartitionLimits(default_memory=PER_NODE),
    )
    job = announced(cluster, partition=partition, cpus="2")
    assert (job.memory_mb, job.memory_per_cpu_mb) == (memory_mb, per_cpu_mb)
    assert job.can_share == bool(memory_mb or per_cpu_mb)


@pytest.mark.parametrize(
    ("changes", "per_gpu_mb", "cpus", "shares"),
    [
        ({"gpus_in_all": "gpu:2"}, 4000, 6, True),
        ({"gres": "gpu:2", "partition": "other"}, 50, 6, True),
        ({"gpus_in_all": "gpu:2", "memory_per_gpu": "gres:gpu:9"}, 9, 6, True),
        ({"gpus_in_all": "gpu:2", "memory_mb": "70"}, 0, 6, True),
        ({"gpus_in_all": "gpu:2", "cpus_per_gpu": "gres:gpu:1"}, 4000, 2, True),
        ({"gpus_in_all": "gpu:2", "cpus_per_task": "2", "cpus": "2"}, 4000, 2, True),
        ({"gpus_in_all": "gpu:2", "shared": "0"}, 4000, 6, False),
        ({}, 0, 1, False),
    ],
)
def test_what_comes_with_gpus_by_the_sites_defaults(
    changes: dict[str, str], per_gpu_mb: int, cpus: int, *, shares: bool
) -> None:
    cluster = knowing(
        batch=PartitionLimits(cpus_per_gpu=3, memory_per_gpu_mb=4000),
        other=PartitionLimits(cpus_per_gpu=3, memory_per_gpu_mb=50),
    )
    job = announced(cluster, **changes)
    assert (job.memory_per_gpu_mb, job.cpus, job.can_share) == (per_gpu_mb, cpus, shares)


def test_what_of_gpus_the_clusters_defaults_say_where_the_partition_has_none() -> None:
    limits = SharingLimits(
        cluster=ClusterLimits(
            why_whole="", is_memory_counted=True, cpus_per_gpu=2, memory_per_gpu_mb=60
        ),
        partitions={"batch": PartitionLimits(memory_per_gpu_mb=70)},
    )
    job = announced(replace(KNOWN, limits=limits), gres="gpu:2")
    assert (job.memory_per_gpu_mb, job.cpus) == (70, 4)


def test_slurms_own_word_for_a_default_counts_where_no_memory_is_named() -> None:
    """slurmctld writes the site's default there, also of a job that names memory (22.05)."""
    fields = {"gpus_in_all": "gpu:1", "memory_per_gpu": "gpu:4000"}
    assert announced(**fields).memory_per_gpu_mb == 4000
    named = announced(**fields, memory_mb="70")
    assert (named.memory_mb, named.memory_per_gpu_mb) == (70, 0)
    default = knowing(DefaultMemory(memory_mb=70), batch=PartitionLimits())
    own = announced(default, gpus_in_all="gpu:1", memory_per_gpu="gres:gpu:9")
    assert (own.memory_mb, own.memory_per_gpu_mb) == (0, 9)


def test_the_default_memory_of_a_cluster_and_of_its_partitions() -> None:
    config, partitions = (
        (RECORDED / f"{name}.txt").read_text() for name in ("config", "partitions")
    )
    assert cluster_limits(config).default_memory == DefaultMemory()
    named = config.replace("DefMemPerNode           = UNLIMITED", "DefMemPerCPU = 300")
    assert cluster_limits(named).default_memory == PER_CPU
    limits = partition_limits(partitions.replace("DefMemPerNode=UNLIMITED", "DefMemPerNode=900"))
    assert limits["batch"].default_memory == PER_NODE
    assert [name for name, limit in limits.items() if limit.is_default] == ["batch"]


@pytest.mark.parametrize(
    ("limits", "shares"),
    [
        (PartitionLimits(), True),
        (PartitionLimits(is_exclusive=True), False),
        (PartitionLimits(is_user_exclusive=True), False),
        (PartitionLimits(over_subscribe="YES:4"), True),
        (PartitionLimits(over_subscribe="FORCE:4"), False),
        (PartitionLimits(over_subscribe="FORCE:1"), True),
    ],
)
def test_who_shares_nodes_where_the_job_does_not_say(limits: PartitionLimits, shares: bool) -> None:
    assert announced(knowing(batch=limits), memory_mb="10").can_share == shares


def test_before_the_first_look_nothing_is_taken_for_shared() -> None:
    assert not announced(ClusterFacts(), memory_mb="10").can_share


@pytest.mark.parametrize(
    "name",
    [
        *("max_nodes", "tasks_per_node", "min_cpus_per_node", "memory_mb", "memory_per_cpu_mb"),
        "least_minutes",
    ],
)
@pytest.mark.parametrize("value", ["9" * 400, "-1", "nan", "1e999", "٣", "1_0"])
def test_a_line_with_a_number_that_slurm_has_not_is_none(name: str, value: str) -> None:
    assert announcement(line(**{name: value}), 1, KNOWN) is None


@pytest.mark.parametrize(
    ("changes", "unclear"),
    [
        ({"gpus_in_all": "gpu:a:b:c"}, f"resources{UNREAD}"),
        ({"gpus_per_task": "gpu:(("}, f"resources{UNREAD}"),
        ({"prefer": "a&|b"}, f"a preference{UNREAD}"),
        ({"excluded": "n[1-200000]" * 9}, f"nodes to avoid{UNREAD}"),
        ({"prefer": "x" * 20_000}, f"resources{UNREAD}"),
    ],
)
def test_what_nobody_can_read_is_a_doubt(changes: dict[str, str], unclear: str) -> None:
    job = announced(gres="gpu:2", nodes="3", **changes)
    assert (job.unclear, job.gpus_per_node, job.n_nodes) == (unclear, 2, 3)
    assert len(repr(job)) < 3_000


def test_a_line_of_a_later_release_has_more() -> None:
    assert announcement(f"{line()}\tnew\tnewer", 1, KNOWN) == announcement(line(), 1, KNOWN)


@pytest.mark.parametrize("n_fields", [15, *range(18, scripts.N_ALL)])
def test_a_line_that_no_release_writes_is_none(n_fields: int) -> None:
    assert announcement("\t".join(line().split("\t")[:n_fields]), 1, KNOWN) is None


def test_of_a_line_of_an_earlier_release_the_request_is_not_known() -> None:
    said = announcement(submit(gres="gpu:2"), 1, KNOWN)
    assert said is not None
    assert said.job is not None
    assert (said.job.cpus, said.job.gpus_per_node) == (0, 2)


@given(st.lists(st.text(max_size=20), min_size=len(FURTHER), max_size=len(FURTHER)))
def test_whatever_a_user_writes_nothing_is_raised(further: list[str]) -> None:
    announcement("\t".join((submit(), *further)), 1, KNOWN)
