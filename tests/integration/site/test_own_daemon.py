"""A user's own daemon on a real Slurm that knows nothing of it: ``bftrainer up`` and ``down``."""

from __future__ import annotations

import json
import re
import sys
import time
from datetime import datetime
from pathlib import Path

import pytest

from bftrainer.lab.demo.sidecar import DaemonProcess
from bftrainer.model.cluster import node_of
from bftrainer.model.errors import ExitCode
from bftrainer.model.trainer import TrainerState
from slurm_plugins.testcluster.sharing import Sharing
from tests.integration.daemon_scripts import SLOW, light_spec, trainer_spec
from tests.integration.gpu_parts import CPUS_PER_GPU, LINEAR, MOST, SEES, gpu_cluster, share_of
from tests.integration.researchers import Researcher, researcher, researching
from tests.integration.slurm_fixtures import fast_cluster_with
from tests.support.waiting import wait_for

__all__ = ["researcher"]

pytestmark = pytest.mark.slurm
GRACE_S = 60


cluster = fast_cluster_with(
    n_nodes=3,
    gpus_per_node=0,
    pilot_partition="scavenge",
    preempt_mode="REQUEUE",
    grace_time_s=GRACE_S,
)


def test_without_a_daemon_up_is_what_comes_next_on_such_a_cluster(researcher: Researcher) -> None:
    done = researcher.says("status")
    assert done.returncode == 6
    _, step = done.stderr.splitlines()
    assert step.startswith("next: Start your own: bftrainer up (jobs of scavenge are preempted). ")


def test_a_dry_run_says_what_would_be_chosen_and_starts_nothing(researcher: Researcher) -> None:
    said = researcher.does("up", "--dry-run", "--max-nodes", "2")
    assert "partition scavenge" in said
    assert "max_nodes = 2  (--max-nodes)" in said
    assert "give_back = false" in said
    assert "PreemptMode=REQUEUE restarts none of them: they have --no-requeue." in said
    assert not researcher.state.exists()
    plain = json.loads(researcher.does("up", "--dry-run", "--json"))
    assert plain["settings"]["max_nodes"]["value"] == 3
    assert plain["site"]["grace_s"] == GRACE_S


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (("--partition", "batch"), "BFT-1282"),
        (("--partition", "nix"), "BFT-1281"),
        (("--batch-system", "local"), "BFT-1201"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(
    researcher: Researcher, options: tuple[str, ...], code: str
) -> None:
    done = researcher.says("up", *options)
    assert done.returncode != 0
    assert re.match(rf"error {code}: .+\nnext: .+\n\Z", done.stderr), done.stderr
    assert not researcher.state.exists()


def test_an_agent_that_does_not_start_under_the_preamble_is_refused(
    researcher: Researcher, tmp_path: Path
) -> None:
    bad = tmp_path / "bad.sh"
    bad.write_text("module load nix-12.4\n")
    done = researcher.says("up", "--preamble", str(bad))
    assert "error BFT-1061: The preamble ended with status" in done.stderr
    bad.write_text("export PYTHONHOME=/nowhere\nset -- /bin/false\nexec /bin/false\n")
    assert "error BFT-1006" in researcher.says("up", "--preamble", str(bad)).stderr
    assert not researcher.state.exists()


def test_a_daemon_that_does_not_start_says_why(researcher: Researcher) -> None:
    done = researcher.says("up", "--bind", "203.0.113.1")  # an address of no host
    assert "error BFT-1286: The daemon did not start: BFT-" in done.stderr
    assert "next: " in done.stderr


@pytest.mark.long
def test_trainers_leave_within_the_grace_time_and_go_on(
    researcher: Researcher, tmp_path: Path
) -> None:
    assert "Your daemon runs" in researcher.does("up")
    second = researcher.says("up")
    assert second.returncode == ExitCode.ALREADY_RUNNING
    assert "BFT-1102" in second.stderr
    client = researcher.client
    trainer = client.submit(
        trainer_spec(tmp_path / "slow", SLOW, n_max=3, epochs=None)
    ).record.trainer_id
    wait_for(
        lambda: client.trainer(trainer).record.progress.size == 3,
        what="it trains on all nodes",
    )
    job = researcher.cluster.submit(n_nodes=3, duration_s=2)  # an ordinary job of somebody else
    # Slurm may need its next backfill cycle; without us it would start after the grace time.
    wait_for(lambda: researcher.cluster.started_s(job), timeout_s=GRACE_S - 5, what="it starts")
    wait_for(lambda: client.trainer(trainer).record.state is TrainerState.PARKED, what="it parks")
    step = client.trainer(trainer).record.progress.step
    wait_for(
        lambda: client.trainer(trainer).record.progress.step > step,
        what="it goes on where it was",
    )
    status = client.status()
    assert (status.preemptions, status.give_backs) == (3, 0)
    assert client.trainer(trainer).record.failures == 0
    assert "To be continued: " + trainer in researcher.does("down")
    wait_for(lambda: not researcher.pilots(), what="no pilot is left")
    journal = DaemonProcess(researcher.state, batch_system="slurm", batch_options={}).entries(
        "parked"
    )
    assert [e.payload["what"]["is_saved"] for e in journal] == [True, True]


@pytest.mark.long
def test_the_daemons_job_is_requeued_and_training_goes_on(
    researcher: Researcher, tmp_path: Path
) -> None:
    assert "Your daemon runs in job" in researcher.does("up", "--as-job", "--max-nodes", "2")
    client, cluster = researcher.client, researcher.cluster
    trainer = client.submit(light_spec(tmp_path / "light", n_max=2)).record.trainer_id
    wait_for(lambda: len(client.trainer(trainer).observed_nodes) == 2, what="it trains")
    # Where its second node came later than the first, it has grown once.
    grown = wait_for(
        lambda: r if (r := client.trainer(trainer).record).progress.size == 2 else None,
        what="it trains on both",
    ).rescales
    first = client.status()
    job = cluster.command("squeue", "-h", "-n", "bftrainer-daemon", "-o", "%i").stdout.strip()
    assert cluster.command("scontrol", "requeue", job).is_ok
    socket = researcher.state / "daemon.sock"
    wait_for(lambda: not socket.exists(), what="the daemon is gone")
    again = researcher.says("up")
    assert again.returncode == ExitCode.ALREADY_RUNNING
    assert f"job {job} is pending" in again.stderr

    def is_back() -> bool:
        # Slurm holds it for two minutes, perhaps only after its end is complete. A start in the
        # second of that end would fail ("Job credential revoked").
        shown = cluster.command("scontrol", "show", "job", job).stdout
        held = re.search(r"JobState=PENDING.*EligibleTime=(\S+)", shown, re.DOTALL)
        if held and datetime.fromisoformat(held[1]).timestamp() > time.time() + 10:
            cluster.command("scontrol", "update", f"JobId={job}", "StartTime=now+3")
        return socket.exists()

    wait_for(is_back, interval_s=0.5, what="it is back")
    view = wait_for(
        lambda: v if len((v := client.trainer(trainer)).observed_nodes) == 2 else None,
        what="it found its workers",
    )
    assert client.status().incarnation == first.incarnation + 1
    assert view.record.rescales == grown
    researcher.does("down", "--now")
    wait_for(lambda: not cluster.command("squeue", "-h", "-o", "%i").stdout, what="no job is left")


@pytest.mark.long
def test_nodes_of_an_allocation_are_a_floor_beside_borrowed_ones(
    researcher: Researcher, tmp_path: Path
) -> None:
    client, cluster = researcher.client, researcher.cluster
    inside = tmp_path / "inside.sh"
    inside.write_text(
        f"#!/bin/sh\ncd /; export BFTRAINER_STATE_DIR={researcher.state} SLURM_JOB_ID\n"
        f"{sys.executable} -m bftrainer up > {tmp_path}/said 2>&1\nsleep 600\n"
    )
    sent = cluster.command(
        *("sbatch", "--parsable", "--partition=batch", "--nodes=1", "--exclusive", "--mem=0"),
        *("--nodelist=n2", "--time=30", f"--output={tmp_path}/out", "--export=ALL", str(inside)),
    )
    job = sent.stdout.strip()
    said = tmp_path / "said"
    try:
        wait_for(lambda: said.exists() and "Your daemon runs" in said.read_text(), what="it is up")
        assert "and 1 of your allocation" in said.read_text()
        trainer = client.submit(light_spec(tmp_path / "light", n_max=3)).record.trainer_id

        def trains_on(*nodes: str) -> bool:
            view = client.trainer(trainer)
            return set(view.observed_nodes) == set(nodes) and view.record.progress.size == len(
                nodes
            )

        wait_for(lambda: trains_on("n1", "n2", "n3"), what="it has its own node and two others")
        assert len(researcher.pilots()) == 2
        steps = cluster.command("squeue", "-s", "-h", "-j", job, "-o", "%j").stdout.split()
        assert [name for name in steps if re.fullmatch("p[0-9]{6}", name)]
        cluster.submit(n_nodes=2, duration_s=2)
        wait_for(lambda: trains_on("n2"), what="its own node is left")
        assert client.trainer(trainer).record.failures == 0
        researcher.does("down")
        wait_for(lambda: not researcher.pilots(), what="no pilot is left")
    finally:
        cluster.cancel(job)
        wait_for(lambda: not cluster.command("squeue", "-h", "-j", job).stdout, what="it is gone")


@pytest.mark.long
def test_own_pilots_share_a_node_where_no_whole_node_is_allowed(tmp_path: Path) -> None:
    """Pilots may have half of a node's CPUs in all, so only a part of it can be tried out."""
    settings = {
        "n_nodes": 1,
        "pilot_partition": "scavenge",
        "preempt_mode": "REQUEUE",
        "has_hook": False,
        "sharing": Sharing(pilot_cpus_per_node=2 * CPUS_PER_GPU),
    }
    with (
        gpu_cluster(**settings) as cluster,
        researching(cluster, tmp_path / "state") as researcher,
    ):
        refusal = researcher.says("up", "--lend", "nodes").stderr
        assert "error BFT-1283: Slurm would refuse a pilot" in refusal
        assert not researcher.state.exists()
        assert "Your daemon runs" in researcher.does("up", "--lend", "gpus")
        client = researcher.client
        spec = trainer_spec(
            tmp_path / "own",
            SEES,
            runtime="mpi",
            epochs=None,
            n_max=MOST,
            curve=LINEAR,
            gpus_per_unit=1,
        )
        trainer = client.submit(spec).record.trainer_id

        def has(count: int) -> bool:
            return len(client.trainer(trainer).observed_nodes) == count

        wait_for(lambda: has(4), what="it trains on all GPUs of the node")
        assert {node_of(name) for name in client.trainer(trainer).observed_nodes} == {"n1"}
        told = cluster.command("squeue", "-h", "-p", "scavenge", "-o", "%T %N %C %b").stdout
        assert told.splitlines() == ["RUNNING n1 2 gres:gpu:1"] * 4
        job = cluster.submit(n_nodes=1, duration_s=600, share=share_of(1))
        wait_for(lambda: cluster.started_s(job), what="somebody else's job has one of them")
        wait_for(lambda: has(3), what="it goes on with the others")
        assert client.trainer(trainer).record.failures == 0
        cluster.cancel(job)
        researcher.does("down")
        wait_for(lambda: not researcher.pilots(), what="no pilot is left")
