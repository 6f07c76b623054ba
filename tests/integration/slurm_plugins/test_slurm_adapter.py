"""The Slurm adapter against a real Slurm: what is Slurm's own, beyond the conformance."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from shutil import which

import pytest

from bftrainer.batch.batch_system import PilotObservation, PilotRequest, load_batch_system
from bftrainer.model.cluster import Node, NodeState, Presence, Snapshot
from bftrainer.model.errors import BatchSystemError, UsageError
from bftrainer.model.hostlist import expand
from slurm_plugins.adapter import SlurmBatchSystem, create
from slurm_plugins.testcluster import SlurmTestCluster
from tests.integration.slurm_fixtures import slurm_cluster, slurm_system, whole_look
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slurm

__all__ = ["slurm_cluster", "slurm_system"]

OBEDIENT = (
    "import os, signal; signal.pthread_sigmask(signal.SIG_BLOCK, [15]);"
    "print('up', flush=True); signal.sigwait([15]); os._exit(0)"
)
STUBBORN = (
    "import signal; signal.signal(15, signal.SIG_IGN); print('up', flush=True);"
    "[signal.pause() for _ in iter(int, 1)]"
)


@pytest.fixture(autouse=True)
def _tidy(slurm_cluster: SlurmTestCluster) -> Iterator[None]:
    yield
    ids = slurm_cluster.command("squeue", "-h", "-a", "-o", "%A").stdout.split()
    if ids:
        slurm_cluster.command("scancel", "-f", *ids)

    def all_idle() -> bool:
        seen = slurm_cluster.command("sinfo", "-h", "-o", "%T").stdout.split()
        return seen != [] and set(seen) == {"idle"}

    wait_for(all_idle, what="all nodes idle again")


def request(
    cluster: SlurmTestCluster, name: str, node: str, *, limit_s: float = 600, code: str = OBEDIENT
) -> PilotRequest:
    return PilotRequest(
        pilot_id=name,
        node=node,
        time_limit_s=limit_s,
        agent_argv=(sys.executable, "-I", "-c", code),
        log_path=cluster.directory / f"{name}.log",
        gpus=cluster.config.gpus_per_node,
    )


def launch(cluster: SlurmTestCluster, system: SlurmBatchSystem, wanted: PilotRequest) -> str:
    job_id = system.launch_pilot(wanted)
    wait_for(
        lambda: wanted.log_path.exists() and "up" in wanted.log_path.read_text(),
        what=f"pilot {wanted.pilot_id}",
    )
    return job_id


def node(system: SlurmBatchSystem, name: str) -> Node:
    return next(n for n in whole_look(system).nodes or () if n.name == name)


def observe(system: SlurmBatchSystem, job_id: str) -> PilotObservation:
    return system.pilot_states([job_id])[job_id]


def test_it_is_found_by_name(slurm_cluster: SlurmTestCluster) -> None:
    found = load_batch_system("slurm", slurm_cluster.config.batch_options())
    assert found.name == "slurm"
    assert found.snapshot().is_complete
    assert found.cycle_s == 2  # read from the controller


def test_our_host_lists_are_slurms_own(slurm_cluster: SlurmTestCluster) -> None:
    for text in ("n[1-3,7]", "a[008-011],b", "r[1-2]n[0-1]", "n[1-100,200-201]"):
        theirs = slurm_cluster.command("scontrol", "show", "hostnames", text).stdout.split()
        assert list(expand(text)) == theirs


def test_other_jobs_of_the_same_user_are_ordinary(
    slurm_cluster: SlurmTestCluster, slurm_system: SlurmBatchSystem
) -> None:
    job_id = slurm_cluster.submit(n_nodes=1, duration_s=30, user=None, partition="bf")
    try:
        seen = whole_look(slurm_system)
        assert [(j.job_id, j.is_ordinary) for j in seen.jobs or ()] == [(job_id, True)]
    finally:
        slurm_cluster.cancel(job_id)
        wait_for(lambda: whole_look(slurm_system).jobs == (), what="it is gone")


def test_a_new_daemon_recognises_running_pilots(
    slurm_cluster: SlurmTestCluster, slurm_system: SlurmBatchSystem
) -> None:
    job_id = launch(slurm_cluster, slurm_system, request(slurm_cluster, "p000009", "n1"))
    options = slurm_cluster.config.batch_options()
    other = create({**options, "reservations_interval_s": 3600})
    seen = whole_look(other)
    assert seen.jobs is not None
    assert [(job.job_id, job.pilot_id) for job in seen.jobs] == [(job_id, "p000009")]
    before = sum(other.request_counts().values())
    assert other.snapshot().jobs == seen.jobs
    # Nodes, jobs, cycle; the rest is remembered.
    assert sum(other.request_counts().values()) - before == 3


def test_an_agent_that_obeys_leaves_a_completed_job(
    slurm_cluster: SlurmTestCluster, slurm_system: SlurmBatchSystem
) -> None:
    job_id = launch(slurm_cluster, slurm_system, request(slurm_cluster, "p-clean", "n1"))
    assert observe(slurm_system, job_id).phase == "running"
    slurm_system.cancel_pilots([job_id])
    ended = wait_for(
        lambda: s if (s := observe(slurm_system, job_id)).presence is Presence.ABSENT else None,
        what="the pilot's end",
    )
    assert ended.reason == "COMPLETED"


def test_an_agent_that_ignores_sigterm_is_ended_when_asked_again(
    slurm_cluster: SlurmTestCluster, slurm_system: SlurmBatchSystem
) -> None:
    wanted = request(slurm_cluster, "p-stubborn", "n1", code=STUBBORN)
    job_id = launch(slurm_cluster, slurm_system, wanted)

    def ask_again() -> bool:
        slurm_system.cancel_pilots([job_id])
        return observe(slurm_system, job_id).presence is Presence.ABSENT

    wait_for(ask_again, interval_s=0.5, what="the stubborn pilot's end")


def test_other_peoples_jobs_in_the_pilots_partition_are_ordinary(
    slurm_cluster: SlurmTestCluster, slurm_system: SlurmBatchSystem
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can submit as somebody else")
    job_id = slurm_cluster.submit(n_nodes=1, duration_s=600, partition="bf")
    jobs = whole_look(slurm_system).jobs or ()
    assert [(job.job_id, job.is_ordinary) for job in jobs] == [(job_id, True)]


def test_names_that_imitate_our_format_do_no_harm(
    slurm_cluster: SlurmTestCluster, slurm_system: SlurmBatchSystem
) -> None:
    hostile = "x\x1f1\n\x1e77\x1fbf\x1fRUNNING\x1f"
    job_id = slurm_cluster.submit(n_nodes=1, duration_s=600, extra_args=(f"--job-name={hostile}",))
    jobs = whole_look(slurm_system).jobs or ()
    assert [job.job_id for job in jobs] == [job_id]


def test_drained_down_and_reserved_nodes(
    slurm_cluster: SlurmTestCluster, slurm_system: SlurmBatchSystem
) -> None:
    cluster = slurm_cluster
    cluster.set_node("n1", "drain", "bad | disk")
    cluster.set_node("n2", "down", "no power")
    reserve = ("scontrol", "create", "reservation", "flags=maint", "users=root", "duration=60")
    cluster.command(*reserve, "ReservationName=now", "starttime=now", "nodes=n3")
    cluster.command(*reserve, "ReservationName=later", "starttime=now+2hours", "nodes=n[4-5]")
    try:
        wait_for(lambda: node(slurm_system, "n3").state is NodeState.RESERVED, what="maintenance")
        seen = whole_look(slurm_system)
        assert node(slurm_system, "n1").state is NodeState.DRAINED
        assert node(slurm_system, "n1").reason == "bad | disk"
        assert node(slurm_system, "n2").state is NodeState.DOWN
        assert {r.name: r.nodes for r in seen.reservations or ()} == {
            "now": ("n3",),
            "later": ("n4", "n5"),
        }
    finally:
        for name in ("now", "later"):
            cluster.command("scontrol", "delete", f"ReservationName={name}")
        cluster.set_node("n1", "resume")
        cluster.set_node("n2", "resume")


def test_a_limit_below_slurms_minute_is_refused(
    slurm_cluster: SlurmTestCluster, slurm_system: SlurmBatchSystem
) -> None:
    with pytest.raises(BatchSystemError) as caught:
        slurm_system.launch_pilot(request(slurm_cluster, "p-short", "n1", limit_s=59))
    assert caught.value.code == "BFT-1224"


def test_options_that_do_not_exist_are_named() -> None:
    with pytest.raises(UsageError) as caught:
        create({"slurmconf": "/etc/slurm/slurm.conf"})
    assert caught.value.code == "BFT-1220"
    assert "slurmconf" in caught.value.cause
    assert "slurm_conf" in caught.value.next_step


def test_a_missing_pilot_partition_is_said(slurm_cluster: SlurmTestCluster) -> None:
    options = slurm_cluster.config.batch_options()
    system = create({**options, "pilot_partition": "nosuch"})
    seen = system.snapshot()
    assert seen.nodes is None
    assert any("nosuch" in sentence for sentence in seen.failures)
    with pytest.raises(BatchSystemError) as caught:
        system.launch_pilot(request(slurm_cluster, "p-nowhere", "n1"))
    assert caught.value.code == "BFT-1222"
    assert "partition" in caught.value.cause


def test_a_controller_whose_clock_is_ahead(slurm_cluster: SlurmTestCluster, tmp_path: Path) -> None:
    for program in ("squeue", "scontrol", "sdiag"):
        ahead = tmp_path / program
        shift = r"s/\b(1[0-9]{9})\b/$1+100/ge"
        ahead.write_text(f"#!/bin/sh\n{which(program)} \"$@\" | perl -pe '{shift}'\n")
        ahead.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    options = slurm_cluster.config.batch_options()
    system = create({**options, "environment": {"PATH": path}})
    before_s = time.time()
    slurm_cluster.submit(n_nodes=1, duration_s=600)
    slurm_cluster.submit(n_nodes=5, duration_s=600)  # it waits, so that there are cycles
    reserve = ("scontrol", "create", "reservation", "users=root", "duration=60", "nodes=n5")
    slurm_cluster.command(*reserve, "ReservationName=later", "starttime=now+2hours")
    try:

        def planned() -> Snapshot | None:
            seen = whole_look(system)
            began_s = (seen.cycle and seen.cycle.began_s) or 0.0
            return seen if began_s >= before_s else None

        seen = wait_for(planned, what="a cycle of the scheduler")
        times_s = [job.submit_s for job in seen.jobs or ()]
        times_s += [r.start_s - 7200 for r in seen.reservations or ()]
        times_s.append(seen.cycle.began_s if seen.cycle else None)
        assert len(times_s) == 4
        for time_s in times_s:
            assert time_s is not None
            assert before_s - 2 <= time_s <= time.time() + 2
    finally:
        slurm_cluster.command("scontrol", "delete", "ReservationName=later")


class TestFailingSources:
    """Programs that take a command's place and fail in one way each."""

    def system(
        self,
        cluster: SlurmTestCluster,
        folder: Path,
        program: str,
        script: str,
        *,
        timeout_s: float = 60.0,
    ) -> SlurmBatchSystem:
        broken = folder / program
        broken.write_text(f"#!/bin/sh\n{script}\n")
        broken.chmod(0o755)
        return create(
            {
                **cluster.config.batch_options(),
                "command_timeout_s": timeout_s,  # of healthy commands, too
                "environment": {"PATH": f"{folder}:{os.environ['PATH']}"},
            }
        )

    @pytest.mark.parametrize(
        ("script", "says"),
        [
            ("echo 'Segmentation fault' >&2; exit 139", "status 139"),
            ("echo nonsense", "unexpected"),
            (f'{which("sinfo")} "$@" | head -c 70', "cut off"),
            ("sleep 60", "did not answer"),
        ],
        ids=["fails", "garbage", "truncated", "hangs"],
    )
    def test_nodes_unknown(
        self, slurm_cluster: SlurmTestCluster, tmp_path: Path, script: str, says: str
    ) -> None:
        timeout_s = 3.0 if says == "did not answer" else 60.0
        system = self.system(slurm_cluster, tmp_path, "sinfo", script, timeout_s=timeout_s)
        seen = system.snapshot()
        assert seen.nodes is None
        assert "nodes" in seen.unread
        assert not seen.is_complete
        assert any(says in sentence for sentence in seen.failures), seen.failures
        # A hanging controller is asked no further; otherwise the rest is still read.
        assert (seen.jobs is None) == (says == "did not answer")

    def test_pilots_unknown(self, slurm_cluster: SlurmTestCluster, tmp_path: Path) -> None:
        system = self.system(slurm_cluster, tmp_path, "squeue", "echo nonsense")
        states = system.pilot_states(["1", "2"])
        assert {s.presence for s in states.values()} == {Presence.UNKNOWN}
        seen = system.snapshot()
        assert seen.jobs is None
        assert seen.nodes is not None

    @pytest.mark.parametrize(
        ("program", "part"), [("sdiag", "cycle"), ("scontrol", "reservations")]
    )
    def test_one_source_unknown(
        self, slurm_cluster: SlurmTestCluster, tmp_path: Path, program: str, part: str
    ) -> None:
        system = self.system(slurm_cluster, tmp_path, program, f'exec {which(program)} "$@"')
        assert system.snapshot().unread == ()
        system = self.system(slurm_cluster, tmp_path, program, "echo nonsense")
        seen = system.snapshot()
        assert part in seen.unread
        assert len(seen.failures) == len(seen.unread)
        assert None not in (seen.nodes, seen.jobs)

    def test_submission_unknown(self, slurm_cluster: SlurmTestCluster, tmp_path: Path) -> None:
        hangs = "exec sleep 60"
        system = self.system(slurm_cluster, tmp_path, "sbatch", hangs, timeout_s=3.0)
        with pytest.raises(BatchSystemError) as caught:
            system.launch_pilot(request(slurm_cluster, "p-unknown", "n1"))
        assert caught.value.code == "BFT-1223"

    def test_slurm_not_installed(self, slurm_cluster: SlurmTestCluster, tmp_path: Path) -> None:
        system = create({"environment": {"PATH": str(tmp_path)}})
        seen = system.snapshot()
        assert (seen.nodes, seen.jobs, seen.reservations, seen.cycle) == (None, None, None, None)
        assert any("cannot be started" in sentence for sentence in seen.failures)
        with pytest.raises(BatchSystemError) as caught:
            system.launch_pilot(request(slurm_cluster, "p-none", "n1"))
        assert caught.value.code == "BFT-1222"
