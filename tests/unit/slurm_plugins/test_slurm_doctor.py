"""Settings of a site, and what is said of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bftrainer.model.cluster import NodeState
from bftrainer.model.site import Measured, Weight
from slurm_plugins.doctor import SlurmSettings, findings, n_usable, qos_of
from tests.support.snapshots import node

CONFIG = """\
Configuration data as of 2026-11-20T10:00:00
AccountingStorageType   = (null)
Epilog                  = (null)
EpilogSlurmctld         = /etc/slurm/bftrainer_epilog.sh
KillWait                = 10 sec
PreemptMode             = CANCEL
PreemptType             = preempt/partition_prio
PreemptExemptTime       = 00:00:00
PreemptParameters       = (null)
ProctrackType           = proctrack/cgroup
Prolog                  = (null)
PrologEpilogTimeout     = 65534
SchedulerParameters     = bf_interval=30,bf_max_job_test=1000
UnkillableStepTimeout   = 60 sec
"""
BATCH = "PartitionName=batch QoS=N/A GraceTime=0 PreemptMode=OFF PriorityTier=10 State=UP\n"
PILOTS = "PartitionName=bf QoS=N/A GraceTime=0 PreemptMode=CANCEL PriorityTier=1 State=UP\n"
GOOD = SlurmSettings(
    config=CONFIG,
    partitions=BATCH + PILOTS,
    pilot_partition="bf",
    queue_length=100,
    n_nodes=64,
    has_hook=True,
)


def codes(settings: SlurmSettings) -> dict[str, Weight]:
    return {f.code: f.weight for f in findings(settings)}


def configured(**values: str) -> SlurmSettings:
    lines = [
        f"{line.split()[0]} = {values.pop(line.split()[0])}" if line.split()[0] in values else line
        for line in CONFIG.splitlines()
    ]
    assert not values
    return replace(GOOD, config="\n".join(lines) + "\n")


def test_a_site_that_is_as_it_should_be() -> None:
    assert findings(GOOD) == ()


@pytest.mark.parametrize(
    ("ordinary", "pilots", "setting"),
    [
        ("ExclusiveUser=YES", "", "PartitionName=batch ExclusiveUser=YES"),
        ("Exclusive=USER", "", "PartitionName=batch ExclusiveUser=YES"),  # 26.05
        ("ExclusiveUser=YES Nodes=n[1-4]", "Nodes=n[4-9]", "PartitionName=batch ExclusiveUser=YES"),
        ("ExclusiveUser=YES Nodes=n[1-4]", "Nodes=n[5-9]", ""),
        ("ExclusiveUser=YES Nodes=n[1-", "Nodes=n[5-9]", "PartitionName=batch ExclusiveUser=YES"),
        ("", "ExclusiveUser=YES", "PartitionName=bf ExclusiveUser=YES"),
        ("ExclusiveUser=NO Exclusive=NODE", "ExclusiveUser=NO", ""),
    ],
)
def test_nodes_of_one_user_at_a_time_are_named(ordinary: str, pilots: str, setting: str) -> None:
    partitions = "".join(
        f"{line.strip()} {words}\n" for line, words in ((BATCH, ordinary), (PILOTS, pilots))
    )
    told = findings(replace(GOOD, partitions=partitions))
    assert [(one.code, one.weight, one.setting) for one in told] == (
        [("BFT-2126", Weight.HARM, setting)] if setting else []
    )


@pytest.mark.parametrize("auth", ["auth/slurm", "auth/jwt"])
def test_no_munge_is_judged_where_another_plugin_authenticates(auth: str) -> None:
    settings = replace(GOOD, config=f"{CONFIG}AuthType = {auth}\n", old_munge="0.5.15")
    assert findings(settings) == ()


@pytest.mark.parametrize(
    ("settings", "code", "weight"),
    [
        (
            replace(GOOD, config=f"{CONFIG}AuthType = auth/munge\n", old_munge="0.5.15"),
            "BFT-1555",
            Weight.HARM,
        ),
        (replace(GOOD, partitions=BATCH), "BFT-1261", Weight.STOP),
        (configured(PreemptType="preempt/none"), "BFT-1262", Weight.HARM),
        (
            replace(GOOD, partitions=BATCH + PILOTS.replace("CANCEL", "REQUEUE")),
            "BFT-1263",
            Weight.HARM,
        ),
        (
            replace(GOOD, partitions=BATCH + PILOTS.replace("CANCEL", "GANG,SUSPEND")),
            "BFT-1263",
            Weight.HARM,
        ),
        (replace(GOOD, clock_ahead_s=-12.0), "BFT-1554", Weight.LOSS),
        (
            replace(GOOD, partitions=BATCH.replace("Tier=10", "Tier=1") + PILOTS),
            "BFT-1264",
            Weight.HARM,
        ),
        (
            replace(GOOD, partitions=BATCH + PILOTS.replace("GraceTime=0", "GraceTime=30")),
            "BFT-1265",
            Weight.HARM,
        ),
        (configured(PreemptExemptTime="00:00:20"), "BFT-1266", Weight.HARM),
        (  # held for SUSPEND, too, from 26.05 on
            configured(PreemptExemptTime="00:00:20", PreemptMode="GANG,SUSPEND"),
            "BFT-1266",
            Weight.HARM,
        ),
        (configured(PreemptMode="PRIORITY,CANCEL"), "BFT-1572", Weight.HARM),
        (
            configured(PreemptParameters="youngest_first,min_exempt_priority=9"),
            "BFT-1572",
            Weight.HARM,
        ),
        (configured(ProctrackType="proctrack/linuxproc"), "BFT-1556", Weight.HARM),
        (configured(ProctrackType="proctrack/pgid"), "BFT-1556", Weight.HARM),
        (configured(UnkillableStepTimeout="10 sec"), "BFT-1557", Weight.HARM),
        (configured(KillWait="30 sec"), "BFT-1267", Weight.LOSS),
        (configured(SchedulerParameters="bf_max_job_test=1000,defer"), "BFT-1268", Weight.HARM),
        (configured(SchedulerParameters="bf_max_job_test=163"), "BFT-1269", Weight.LOSS),
        (
            configured(AccountingStorageType="accounting_storage/slurmdbd"),
            "BFT-1270",
            Weight.HARM,
        ),
        (replace(GOOD, has_hook=False), "BFT-1271", Weight.HARM),
        (configured(Epilog="/etc/slurm/check"), "BFT-1274", Weight.UNKNOWN),
        (configured(Prolog="/etc/slurm/check"), "BFT-1275", Weight.LOSS),
    ],
)
def test_each_wrong_setting_has_a_finding(
    settings: SlurmSettings, code: str, weight: Weight
) -> None:
    assert codes(settings) == {code: weight}
    (found,) = findings(settings)
    assert found.setting
    assert found.cost.endswith(".")
    assert found.remedy


def test_an_epilog_that_nears_its_time_limit_will_drain_nodes() -> None:
    """slurm.conf(5): if the Epilog times out, the node is drained; 65534 is no limit."""
    limited = configured(Epilog="/etc/slurm/check", PrologEpilogTimeout="30")
    for end_s, is_near in ((20.4, True), (12.0, False)):
        found = codes(replace(limited, measured=Measured(end_s=end_s)))
        assert ("BFT-1558" in found) == is_near
        assert "BFT-1274" in found
    assert "Slurm ends it after 30 s and drains the node." in findings(limited)[0].cost
    (endless,) = findings(configured(Epilog="/etc/slurm/check"))
    assert "Slurm waits for it without limit (PrologEpilogTimeout)." in endless.cost


def test_only_pilots_that_can_be_count_as_pending() -> None:
    states = (NodeState.IDLE, NodeState.ALLOCATED, NodeState.DOWN, NodeState.DRAINED)
    nodes = [node(f"{state}{k}", state) for state in states for k in range(100)]
    assert n_usable([*nodes, node("x", NodeState.UNKNOWN)]) == 200
    many = replace(GOOD, n_nodes=1100)
    (found,) = findings(many)
    assert found.code == "BFT-1269"
    assert "up to 1100 pilots" in found.cost
    assert findings(replace(many, measured=Measured(max_nodes=8))) == ()
    assert findings(replace(many, measured=Measured(max_nodes=5000))) == (found,)


EPILOG = configured(Epilog="/etc/slurm/check", Prolog="/etc/slurm/mount")


@pytest.mark.parametrize(
    ("settings", "measured", "costs"),
    [
        (
            EPILOG,
            Measured(),
            {"BFT-1274": "no daemon has told of a node", "BFT-1275": "The daemon measures"},
        ),
        (EPILOG, Measured(end_s=20.4, start_s=2.0), {"BFT-1274": "usable 20.4 s after"}),
        (EPILOG, Measured(end_s=0.0, start_s=31.0), {"BFT-1275": "31.0 s (measured)"}),
        (EPILOG, Measured(end_s=20.4, start_s=2.0, promise_s=30.0), {}),
        (GOOD, Measured(end_s=20.4, start_s=31.0), {"BFT-1274": "usable 20.4 s after"}),
    ],
)
def test_what_runs_around_each_pilot_costs_what_was_measured(
    settings: SlurmSettings, measured: Measured, costs: dict[str, str]
) -> None:
    found = {f.code: f for f in findings(replace(settings, measured=measured))}
    assert found.keys() == costs.keys()
    for code, part in costs.items():
        assert part in found[code].cost


def test_several_epilogs_are_one_finding() -> None:
    """As Slurm 24.11 prints them."""
    config = CONFIG.replace(
        "Epilog                  = (null)", "Epilog[0] = /check\nEpilog[1] = /clean"
    )
    (found,) = findings(replace(GOOD, config=config))
    assert found.setting == "Epilog[0]=/check, Epilog[1]=/clean"


QOS = replace(
    configured(PreemptType="preempt/qos"), partitions=BATCH.replace("Tier=10", "Tier=1") + PILOTS
)
RANKED = "PriorityType = priority/multifactor\nPriorityWeightQOS = 100000\n"


@pytest.mark.parametrize(
    ("config", "is_last"),
    [
        ("", False),
        (RANKED, True),
        (RANKED.replace("100000", "0"), False),
        (RANKED.replace("multifactor", "basic"), False),
    ],
)
def test_with_preemption_by_qos_pilots_are_last_by_priority(config: str, is_last: bool) -> None:
    found = codes(replace(QOS, config=QOS.config + config))
    assert found == ({} if is_last else {"BFT-1273": Weight.HARM})


def test_depth_counts_the_queue_and_the_pilots_behind_it() -> None:
    assert codes(configured(SchedulerParameters="bf_max_job_test=164")) == {}
    assert codes(replace(configured(SchedulerParameters="x=1"), queue_length=436)) == {}
    deep = replace(configured(SchedulerParameters="x=1"), queue_length=437)
    assert "BFT-1269" in codes(deep), "Slurm's own default is 500"


def test_no_reserve_is_a_flag_of_the_partitions_qos() -> None:
    partitions = BATCH + PILOTS.replace("QoS=N/A", "QoS=bfqos")
    assert qos_of(partitions, "bf") == "bfqos"
    assert qos_of(GOOD.partitions, "bf") == ""
    site = replace(
        configured(AccountingStorageType="accounting_storage/slurmdbd"),
        partitions=partitions,
        qos_flags="DenyOnLimit,NoReserve\n",
    )
    assert codes(site) == {}


def test_what_hurts_others_comes_first() -> None:
    site = replace(configured(KillWait="30 sec"), has_hook=False)
    assert [f.weight for f in findings(site)] == [Weight.HARM, Weight.LOSS]


@pytest.mark.parametrize("value", ["x", "inf", "9" * 6000, "-1", ""])
def test_a_parameter_that_is_no_number_has_its_default(value: str) -> None:
    assert codes(configured(SchedulerParameters=f"bf_max_job_test={value}")) == {}
