"""A site as slurm.conf and scontrol describe it, worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from bftrainer.model.hostlist import ParseError
from slurm_plugins.described_site import DescribedSite, read_site

FIXTURES = Path(__file__).parents[2] / "fixtures" / "slurm"
NODE_LINE = "NodeName=n1 CPUTot=4 CPUEfctv=4 RealMemory=1000 State=IDLE\n"

CONF = """\
# the site
ClusterName=ours
SchedulerParameters=bf_interval=60,bf_window=2880,bf_max_job_test=1000,sched_min_interval=500000,\\
bf_continue,max_rpc_cnt=150
selecttype=select/cons_tres
SelectTypeParameters=CR_Core_Memory  # a comment
PriorityType=priority/multifactor
Epilog=/etc/slurm/epilog

NodeName=DEFAULT Sockets=2 CoresPerSocket=16 ThreadsPerCore=2 RealMemory=256000 MemSpecLimit=6000
NodeName=n[01-03,05] CoreSpecCount=2 Weight=5
NodeName=g[1-2] Gres=gpu:a100:4(S:0-1),nvme:1 CpuSpecList=0-3 Feature=fast
NodeName=old1 State=DOWN
NodeName=later[1-9] State=FUTURE
NodeSet=quick Feature=fast
PartitionName=DEFAULT MaxTime=1-00:00:00 PriorityTier=5
PartitionName=batch Nodes=n[01-05] OverSubscribe=EXCLUSIVE
PartitionName=gpu Nodes=quick PriorityTier=9 MaxCPUsPerNode=48 MaxTime=90 QOS=few
PartitionName=all Nodes=ALL MaxTime=UNLIMITED
"""
SHOWN_CONFIG = """\
Configuration data as of 2024-05-01T10:00:00
Epilog                  = (null)
SchedulerParameters     = default_queue_depth=50,batch_sched_delay=10,bf_resolution=300
SelectType              = select/linear
SLURM_VERSION           = 23.11.4
"""
SHOWN_SITE = """\
NodeName=n1 Arch=x86_64 CoresPerSocket=8
   CPUAlloc=0 CPUEfctv=30 CPUTot=32 CPULoad=0.00
   AvailableFeatures=(null)
   Gres=(null)
   OS=Linux 5.10 NodeName=x
   RealMemory=64000 AllocMem=0 FreeMem=100 Sockets=2 Boards=1
   CoreSpecCount=1 CPUSpecList=15,31 MemSpecLimit=4000
   State=IDLE ThreadsPerCore=2 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A
   Partitions=batch
NodeName=n2 Arch=x86_64 CoresPerSocket=8 CPUEfctv=32 CPUTot=32 Gres=gpu:2 RealMemory=64000 \
State=IDLE+DRAIN ThreadsPerCore=2 Weight=1 Reason=CPUTot=1 is odd [root@2024-05-01]

PartitionName=batch
   AllowGroups=ALL AllowAccounts=ALL
   MaxNodes=UNLIMITED MaxTime=7-00:00:00 MinNodes=0 LLN=YES MaxCPUsPerNode=UNLIMITED
   Nodes=n[1-2]
   PriorityJobFactor=1 PriorityTier=3 RootOnly=NO OverSubscribe=NO
   State=UP TotalCPUs=64
"""


def site(config: str = CONF, shown: str = "") -> DescribedSite:
    return read_site(config, shown)


def test_nodes_of_slurm_conf_have_what_is_left_for_jobs() -> None:
    nodes = {node.name: node for node in site().nodes}
    assert list(nodes) == ["n01", "n02", "n03", "n05", "g1", "g2"]
    assert nodes["n01"].cpus == 2 * 16 * 2 - 2 * 2  # two cores of two threads are the system's
    assert nodes["n01"].memory_mb == 250_000
    assert (nodes["n01"].gpus, nodes["n01"].node_type, nodes["n01"].weight) == ((), "cpu", 5)
    assert nodes["g1"].cpus == 64 - 4
    assert nodes["g1"].gpus == (("a100", 4),)
    assert (nodes["g1"].node_type, nodes["g1"].n_gpus) == ("gpu:a100:4", 4)


def test_nodes_that_are_not_there_are_told() -> None:
    assert site().notes == (
        "1 of the nodes are down or drained in the files and left out, such as old1.",
        "9 of the nodes are of the states FUTURE or CLOUD and left out, such as later1.",
    )


def test_partitions_of_slurm_conf() -> None:
    batch, gpu, every = site().partitions
    assert batch.nodes == ("n01", "n02", "n03", "n05")  # n04 is not described
    assert (batch.tier, batch.is_whole, batch.max_time_s) == (5, True, 86_400.0)
    assert gpu.nodes == ("g1", "g2")
    assert (gpu.tier, gpu.is_whole, gpu.max_cpus_per_node) == (9, False, 48)
    assert gpu.max_time_s == 90 * 60.0
    assert len(every.nodes) == 6
    assert (every.tier, every.max_time_s) == (5, None)


@pytest.mark.parametrize(
    ("words", "is_whole", "is_of_one_user"),
    [
        ("OverSubscribe=EXCLUSIVE", True, False),
        ("Shared=exclusive", True, False),
        ("ExclusiveUser=YES", False, True),
        ("ExclusiveTopo=YES", True, False),
        # Of 26.05, slurm.conf(5) of the tag slurm-26-05-3-1: it replaces those above.
        ("Exclusive=NODE", True, False),
        ("Exclusive=topo", True, False),
        ("Exclusive=USER", False, True),
        ("Exclusive=NO", False, False),
        ("ExclusiveUser=NO", False, False),
        ("", False, False),
    ],
)
def test_who_has_a_node_alone_in_the_words_of_each_release(
    words: str, *, is_whole: bool, is_of_one_user: bool
) -> None:
    described = site(f"NodeName=n1 CPUs=4 RealMemory=1000\nPartitionName=p Nodes=ALL {words}\n")
    assert [partition.is_whole for partition in described.partitions] == [is_whole]
    assert (
        any(text.startswith("ExclusiveUser") for text in described.not_modelled) == is_of_one_user
    )


def test_settings_of_the_schedulers_and_slurms_defaults() -> None:
    scheduler = site().scheduler
    assert (scheduler.bf_interval_s, scheduler.bf_window_s) == (60.0, 2 * 86_400.0)
    assert (scheduler.bf_max_job_test, scheduler.bf_max_job_array_resv) == (1000, 20)
    assert scheduler.sched_min_interval_s == 0.5  # it is written in microseconds
    assert (scheduler.default_queue_depth, scheduler.batch_sched_delay_s) == (100, 3.0)
    assert (scheduler.sched_interval_s, scheduler.bf_resolution_s) == (60.0, 60.0)
    assert scheduler.are_nodes_shared
    assert scheduler.is_memory_counted
    assert scheduler.has_epilog
    assert not scheduler.is_least_loaded_first


def test_not_modelled_is_only_what_occurs() -> None:
    told = " ".join(site().not_modelled)
    for word in ("Fair share", "QOS of partitions", "Features", "max_rpc_cnt"):
        assert word in told
    for word in ("Licences", "topology", "bf_interval", "bf_continue", "Burst", "ExclusiveUser"):
        assert word not in told
    plain = site("NodeName=n1 CPUs=4\nPartitionName=p Nodes=n1\n")
    assert plain.not_modelled == ()


def test_what_scontrol_shows_is_read_alike() -> None:
    shown = site(SHOWN_CONFIG, SHOWN_SITE)
    (node,) = shown.nodes
    assert (node.name, node.cpus, node.memory_mb, node.node_type) == ("n1", 30, 60_000, "cpu")
    (batch,) = shown.partitions
    assert (batch.nodes, batch.tier, batch.max_cpus_per_node) == (("n1",), 3, 0)
    assert batch.max_time_s == 7 * 86_400.0
    scheduler = shown.scheduler
    assert (scheduler.default_queue_depth, scheduler.batch_sched_delay_s) == (50, 10.0)
    assert (scheduler.bf_resolution_s, scheduler.bf_interval_s) == (300.0, 30.0)
    assert not scheduler.are_nodes_shared
    assert not scheduler.has_epilog
    assert scheduler.is_least_loaded_first
    assert "such as n2" in shown.notes[0]


@pytest.mark.parametrize("release", ["22.05", "23.11", "25.05", "25.11", "26.05"])
def test_what_real_releases_show_is_read(release: str) -> None:
    """Recorded of test clusters, in which only the pilots' partition is preempted."""
    recorded = FIXTURES / release
    config = (recorded / "config.txt").read_text()
    found = site(config, NODE_LINE + (recorded / "partitions.txt").read_text())
    by_name = {partition.name: partition for partition in found.partitions}
    assert (by_name["batch"].tier, by_name["batch"].max_time_s) == (10, 86_400.0)
    assert by_name["bf"].tier == 1
    assert found.scheduler.bf_interval_s == 2.0
    assert found.scheduler.are_nodes_shared
    assert not any("Preemption" in sentence for sentence in found.not_modelled)


def test_preemption_among_ordinary_jobs_is_told() -> None:
    lines = "PreemptType=preempt/partition_prio\nPreemptMode=REQUEUE\nNodeName=n1\n"
    two = "PartitionName=a Nodes=n1\nPartitionName=b Nodes=n1 PreemptMode=OFF\n"
    assert site(lines + two).not_modelled == ()
    told = site(lines + two.replace(" PreemptMode=OFF", "")).not_modelled
    assert "Preemption among ordinary jobs" in told[0]


def test_scontrols_nodes_go_before_those_of_slurm_conf() -> None:
    assert [node.name for node in site(CONF, SHOWN_SITE).nodes] == ["n1"]
    assert site(CONF, SHOWN_SITE).scheduler.bf_interval_s == 60.0


def test_an_include_is_told() -> None:
    assert (
        "include /etc/slurm/nodes.conf" in site(f"include /etc/slurm/nodes.conf\n{CONF}").notes[0]
    )


@pytest.mark.parametrize(
    ("config", "shown", "cause"),
    [
        ("NodeName=n[1- CPUs=4\nPartitionName=p Nodes=n1\n", "", "not a host list"),
        ("something else\n", "", "line 1 is not Name=value"),
        ("PartitionName=p Nodes=ALL\n", "", "no node"),
        ("NodeName=n1 State=DOWN\nPartitionName=p Nodes=ALL\n", "", "no node"),
        ("NodeName=n1\n", "", "no partition"),
        ("NodeName=n1 CPUs=many\nPartitionName=p Nodes=n1\n", "", "not a whole number"),
        ("NodeName=n1 Gres=gpu:x:y:z\nPartitionName=p Nodes=n1\n", "", "not a number of gpus"),
        (SHOWN_CONFIG, "PARTITION AVAIL\nbatch up\n", "neither a node nor a partition"),
    ],
)
def test_what_is_no_description_is_refused(config: str, shown: str, cause: str) -> None:
    with pytest.raises(ParseError, match=cause):
        read_site(config, shown)
