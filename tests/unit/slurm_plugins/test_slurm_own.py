"""What a user's own daemon reads of Slurm: limits and partitions, as 22.05 prints them."""

from __future__ import annotations

import pytest

from bftrainer.model.errors import UsageError
from bftrainer.model.site import Finding, Weight
from slurm_plugins import doctor, own_site
from slurm_plugins.own_pilots import PilotSize
from slurm_plugins.own_site import check_preemption, choose, why_not

NODE = PilotSize(amounts={"node": 1, "cpu": 64, "gres/gpu": 4})
TIERED = {"PreemptType": "preempt/partition_prio", "PreemptMode": "REQUEUE"}


def _partition(name: str, tier: int, mode: str) -> dict[str, str]:
    return {"PartitionName": name, "PriorityTier": str(tier), "PreemptMode": mode}


PARTITIONS = {
    p["PartitionName"]: p
    for p in (
        _partition("batch", 10, "OFF"),
        _partition("scavenge", 1, "REQUEUE"),
        _partition("top", 20, "CANCEL"),
        _partition("pause", 1, "SUSPEND"),
    )
}


def _limits(text: str, fields: tuple[str, ...]) -> list[tuple[int, str]]:
    (row,) = own_site.rows(text, fields)
    return [(limit.n_nodes, limit.words) for limit in own_site.node_limits(row, "X", (NODE,))]


def test_limits_of_an_association_become_nodes() -> None:
    text = "lab||normal|3|6|||gres/gpu=10,node=5||1-00:00:00\n"
    assert _limits(text, own_site.ASSOCIATION) == [
        (3, "MaxJobs=3 of X"),
        (6, "MaxSubmit=6 of X"),
        (2, "GrpTRES=gres/gpu=10 of X, and a pilot takes 4"),
        (5, "GrpTRES=node=5 of X"),
    ]


def test_limits_of_a_qos_become_nodes_and_a_job_too_small_for_a_node_is_none() -> None:
    text = "scav|5||||cpu=130,billing=9||gres/gpu=2|01:00:00|\n"
    assert _limits(text, own_site.QOS) == [
        (5, "MaxJobsPU=5 of X"),
        (2, "MaxTRESPU=cpu=130 of X, and a pilot takes 64"),
        (0, "MaxTRES=gres/gpu=2 of X"),
    ]
    (row,) = own_site.rows(text, own_site.QOS)
    assert own_site.wall_s(row) == 3600.0


def test_the_association_of_the_partition_comes_before_the_general_one() -> None:
    text = "lab||normal|||||||\nlab|scavenge|scav|||||||\nother||normal|||||||\n"
    found = own_site.rows(text, own_site.ASSOCIATION)
    chosen = own_site.association_of(found, "", "scavenge")
    assert chosen is not None
    assert chosen["DefaultQOS"] == "scav"
    general = own_site.association_of(found, "other", "scavenge")
    assert general is not None
    assert general["Account"] == "other"
    assert own_site.association_of(found, "nobody", "scavenge") is None


def test_the_only_preemptable_partition_is_chosen() -> None:
    several = {n: PARTITIONS[n] for n in ("batch", "scavenge")}
    assert choose(several, TIERED, "")["PartitionName"] == "scavenge"
    with pytest.raises(UsageError, match="Partitions that are: scavenge") as refused:
        choose(several, TIERED, "nix")
    assert refused.value.code == "BFT-1281"
    with pytest.raises(UsageError, match="There is none here"):
        choose({"batch": PARTITIONS["batch"]}, TIERED, "")


@pytest.mark.parametrize(
    ("name", "config", "reason"),
    [
        ("batch", TIERED, "PreemptMode=OFF"),
        ("pause", TIERED, "PreemptMode=SUSPEND"),
        ("pause", TIERED, "A suspended pilot keeps the node's memory and GPUs."),
        ("top", TIERED, "no partition has a higher PriorityTier than its 20"),
        ("scavenge", {"PreemptType": "preempt/none"}, "nothing is preempted on this cluster"),
    ],
)
def test_a_partition_that_keeps_its_nodes_from_others_is_refused(
    name: str, config: dict[str, str], reason: str
) -> None:
    with pytest.raises(UsageError) as refused:
        check_preemption(name, PARTITIONS, config)
    assert refused.value.code == "BFT-1282"
    assert reason in refused.value.cause


@pytest.mark.parametrize(
    ("mode", "exempt", "said"),
    [
        ("CANCEL", "00:00:00", ["Slurm ends a preempted pilot"]),
        ("GANG,REQUEUE", "00:00:00", ["PreemptMode=GANG,REQUEUE restarts none"]),
        ("CANCEL", "01:00:00", ["Slurm ends", "no pilot is preempted in its first 3600 s"]),
    ],
)
def test_up_says_what_preemption_means_before_it_starts(
    mode: str, exempt: str, said: list[str]
) -> None:
    words = doctor.words_for_users(mode, exempt)
    assert len(words) == len(said)
    assert all(part in sentence for part, sentence in zip(said, words, strict=True))


def test_with_preemption_by_qos_slurm_is_believed() -> None:
    assert why_not("top", PARTITIONS, {"PreemptType": "preempt/qos"}) == ""


def test_a_user_is_told_what_a_user_can_do() -> None:
    def found(code: str) -> Finding:
        return Finding(code=code, weight=Weight.HARM, setting="s", cost="c", remedy="slurm.conf")

    site = tuple(map(found, ("BFT-1264", "BFT-1265", "BFT-1271")))
    told = doctor.for_user(site, grace_s=0.0)
    assert [f.code for f in told] == ["BFT-1264", "BFT-1265"]
    assert all("bftrainer up" in f.remedy and f.weight is Weight.LOSS for f in told)
    assert [f.code for f in doctor.for_user(site, grace_s=60.0)] == ["BFT-1264"]
