"""A Slurm of an unknown release is observed; pilots are given back, and none is started."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bftrainer.batch.batch_system import OptionError, PilotRequest
from bftrainer.decide.queue.models import PrintedQueue
from bftrainer.model.census import census_of
from bftrainer.model.cluster import BEFORE_ALL, JobState, NodeState, Partition
from bftrainer.model.decision import Memory
from bftrainer.model.errors import BatchSystemError
from bftrainer.model.hostlist import ParseError
from slurm_plugins import job_requests, parse
from slurm_plugins.adapter import SlurmBatchSystem, create
from slurm_plugins.releases import KNOWN, release_of, unknown_among
from tests.support.commands import write_command
from tests.support.snapshots import (
    Fold,
    claimed,
    held,
    idle_nodes,
    pending,
    record,
    released,
    snapshot,
    with_state,
)

RECORDED = Path(__file__).parents[2] / "fixtures" / "slurm" / "25.05"
NEW = "26.11"


def slurm(at: Path, commands: str, controller: str, **options: str) -> SlurmBatchSystem:
    """Commands that print what Slurm 25.05 did, under versions of the caller's choice."""
    config = (RECORDED / "config.txt").read_text().replace("25.05.8", controller)
    (at / "config.txt").write_text(config)
    write_command(
        at / "sinfo", f'[ "$1" = -V ] && echo "slurm {commands}" || cat {RECORDED}/busy.sinfo.txt'
    )
    asked = f"*-t*) cat {RECORDED}/busy.asked.txt;; *-u*) cat {RECORDED}/busy.names.txt;;"
    write_command(at / "squeue", f'case "$*" in {asked} *) cat {RECORDED}/busy.squeue.txt;; esac')
    shown = f"*config*) cat {at}/config.txt;; *topology*) cat {RECORDED}/topology.txt;;"
    write_command(
        at / "scontrol", f'case "$*" in {shown} *) cat {RECORDED}/busy.reservations.txt;; esac'
    )
    write_command(at / "sdiag", f"cat {RECORDED}/busy.sdiag.txt")
    write_command(at / "sbatch", f"touch {at}/submitted; echo 4711")
    write_command(at / "scancel", f'echo "$*" >>{at}/cancelled')
    path = f"{at}:/usr/bin:/bin"
    return create({"environment": {"PATH": path}, "user": "root", **options})


def request(at: Path) -> PilotRequest:
    return PilotRequest(
        pilot_id="p000009",
        node="n8",
        time_limit_s=600.0,
        agent_argv=(sys.executable, "-c", "pass"),
        log_path=at / "log",
    )


@pytest.mark.parametrize(
    ("commands", "controller"),
    [(f"{NEW}.1", "25.05.8"), ("25.05.8", f"{NEW}.0-0rc1"), ("20.11.9", "20.11.9")],
    ids=["new commands", "new controller", "old"],
)
def test_an_unknown_release_is_seen_and_nothing_is_started(
    tmp_path: Path, commands: str, controller: str
) -> None:
    system = slurm(tmp_path, commands, controller)
    seen = system.snapshot()
    assert seen.nodes
    assert seen.jobs
    assert seen.unread == ("release",)
    assert not seen.is_complete, "a decision takes nothing from it"
    (said,) = seen.failures
    assert "BFT-1571" in said
    assert "no pilot is started" in said
    with pytest.raises(BatchSystemError) as caught:
        system.launch_pilot(request(tmp_path))
    assert caught.value.code == "BFT-1571"
    assert "accept_release" in caught.value.next_step
    assert not (tmp_path / "submitted").exists()
    system.cancel_pilots(["9"])
    assert (tmp_path / "cancelled").read_text().split()[-1] == "9"


def test_running_pilots_are_kept_and_given_back_to_jobs() -> None:
    nodes = (*with_state(idle_nodes(3), NodeState.ALLOCATED, "n1", "n2"),)
    trainers = (record("t1"),)
    for unread, takes in (((), {"n3"}), (("release",), set())):
        fold = Fold(memory=Memory(idle_seen={node.name: 9 for node in nodes}))
        calm = fold.decide(replace(snapshot(nodes), unread=unread), held("n1", "n2"), trainers)
        assert (released(calm), claimed(calm)) == (set(), takes)
        seen = replace(snapshot(nodes, [pending("7", 2, priority=1.0)]), unread=unread)
        assert len(released(fold.decide(seen, held("n1", "n2"), trainers))) == 1


@pytest.mark.parametrize("accepted", ["", NEW, "27.05"])
def test_the_policy_may_accept_one_release_by_name(tmp_path: Path, accepted: str) -> None:
    system = slurm(tmp_path, f"{NEW}.2", f"{NEW}.2", accept_release=accepted)
    assert system.snapshot().is_complete is (accepted == NEW)
    found = {finding.code: finding.remedy for finding in system.findings()}
    assert ("BFT-1571" in found) is (accepted != NEW)
    assert NEW in found.get("BFT-1571", NEW)


@pytest.mark.parametrize("release", KNOWN)
def test_known_releases_need_no_word(tmp_path: Path, release: str) -> None:
    system = slurm(tmp_path, f"{release}.3", f"{release}.0")
    assert system.snapshot().failures == ()
    assert system.launch_pilot(request(tmp_path)) == "4711"


@pytest.mark.parametrize(
    ("said", "release"),
    [
        ("slurm-wlm 22.05.8\n", "22.05"),
        ("slurm 23.11.4", "23.11"),
        ("24.05.0-0rc1", "24.05"),
        ("slurm 25.05.3-1.el9", "25.05"),
    ],
)
def test_versions(said: str, release: str) -> None:
    assert release_of(said) == release
    assert not unknown_among(release, accepted="")


@pytest.mark.parametrize(
    "said", ["", "slurm", "slurm 25", "25.5.1", "unknown", "x 25.05.1", "25.05.1\n;"]
)
def test_what_is_no_version(said: str) -> None:
    with pytest.raises(ParseError):
        release_of(said)


def test_a_version_that_is_none_is_unread_not_unknown(tmp_path: Path) -> None:
    seen = slurm(tmp_path, "next", "25.05.8").snapshot()
    assert seen.unread == ("configuration",)
    assert not seen.is_complete


@pytest.mark.parametrize("accepted", ["25", "latest", 25.11, "25.11.2"])
def test_only_a_release_can_be_accepted(accepted: object) -> None:
    with pytest.raises(OptionError) as caught:
        create({"accept_release": accepted})
    assert caught.value.code == "BFT-1220"


@pytest.mark.parametrize("release", ["25.11", "26.05"])
def test_a_job_of_expedited_requeue_needs_its_nodes_at_once(release: str) -> None:
    """Seen failing before: it counted as no waiting job, and its idle node was claimed."""
    folder = RECORDED.parent / release
    rows = parse.node_rows((folder / "expedited.sinfo.txt").read_text())
    nodes = [row.node for row in rows if row.partition == "bf" and row.node.name in {"n4", "n5"}]
    (job,) = [
        job
        for job in parse.jobs((folder / "expedited.squeue.txt").read_text())
        if job.priority == BEFORE_ALL
    ]
    assert (job.state, job.n_nodes) == (JobState.PENDING, 2)
    asked = job_requests.rows((folder / "expedited.asked.txt").read_text(), release)
    assert asked[job.job_id]["cpus"] == 2
    nodes = [replace(node, state=NodeState.IDLE, left=None) for node in nodes]
    job = replace(job, excluded_nodes=(), partitions=())
    # n4 has a pilot of ours, n5 is idle: the job takes both, before an older one of a higher tier.
    seen = snapshot((*with_state(nodes, NodeState.ALLOCATED, "n4"),), [job])
    fold = Fold(memory=Memory(idle_seen={"n4": 9, "n5": 9}))
    plan = fold.decide(seen, held("n4"), (record("t1"),))
    assert (released(plan), claimed(plan)) == ({"n4"}, set())


def test_it_comes_before_jobs_of_higher_tiers() -> None:
    high = replace(pending("7", 1, priority=4e9), partitions=("high",))
    first = replace(pending("8", 1, priority=BEFORE_ALL), partitions=("low",))
    tiers = (Partition(name="high", tier=9), Partition(name="low", tier=1))
    seen = replace(snapshot(idle_nodes(1), [high, first]), partitions=tiers)
    assert [job.job_id for job in PrintedQueue(census_of(seen), seen.taken_at_s, 30.0).jobs] == [
        "8",
        "7",
    ]
