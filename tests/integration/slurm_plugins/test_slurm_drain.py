"""A real Slurm of eight nodes: emptied by the switch, by hand, and shared by two daemons."""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from bftrainer.cli.main import main
from bftrainer.lab.demo.sidecar import DaemonProcess
from bftrainer.model.trainer import TrainerChange
from milp.problem import Curve
from slurm_plugins.adapter import create
from slurm_plugins.testcluster import SlurmTestCluster
from tests.integration.daemon_scripts import light_spec
from tests.integration.slurm_fixtures import fast_cluster_with, set_preempt_mode, whole_look
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slurm

N = 8
# More nodes are worth their while, whatever else runs on the machine.
LINEAR = Curve(sizes=tuple(range(1, N + 1)), samples_per_s=tuple(10.0 * n for n in range(1, N + 1)))
POLICY = """\
poll_interval_s: 0.5
requests_per_minute: 100000
reserve_nodes_per_type: 0
hold_idle_s: 1
"""


cluster = fast_cluster_with(n_nodes=N, message_timeout_s=5)


def sidecar_of(cluster: SlurmTestCluster, state_dir: Path, partition: str = "bf") -> DaemonProcess:
    return DaemonProcess(
        state_dir,
        batch_system="slurm",
        batch_options={**cluster.config.batch_options(), "pilot_partition": partition},
        policy=POLICY,
    )


def holds(sidecar: DaemonProcess, count: int) -> dict[str, str]:
    """Wait until it holds so many nodes; return them with their pilots."""

    found: dict[str, str] = {}

    def reached() -> bool:
        found.clear()
        found.update((n.name, n.pilot_id) for n in sidecar.client.nodes() if n.use == "held")
        return len(found) == count

    wait_for(reached, what=f"{sidecar.state_dir.name} holds {count} nodes")
    return found


@pytest.mark.long
def test_eight_nodes_are_emptied_by_the_switch_and_without_a_daemon(
    cluster: SlurmTestCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sidecar = sidecar_of(cluster, tmp_path / "state")
    try:
        sidecar.start()
        client = sidecar.client
        trainer = client.submit(light_spec(tmp_path / "a", n_max=N)).record.trainer_id
        holds(sidecar, N)
        wait_for(lambda: len(client.trainer(trainer).observed_nodes) == N, what="it trains")
        began_s = time.monotonic()
        argv = ["drain", "--all", "--deadline", "60s", "--socket", str(client.socket_path)]
        assert main(argv) == 0
        took_s = time.monotonic() - began_s
        said = capsys.readouterr().out
        assert said.startswith(f"{N} nodes are given back after ")
        assert cluster.command("squeue", "-h").stdout == ""
        with capsys.disabled():
            sys.stdout.write(f"\ntime to empty, {N} nodes: {took_s:.1f} s\n")

        client.resume()
        holds(sidecar, N)
        # Without a daemon, as docs/howto/operate.md says.
        sidecar.kill()
        began_s = time.monotonic()
        assert cluster.command("scancel", "-p", "bf").is_ok
        wait_for(lambda: cluster.command("squeue", "-h").stdout == "", what="the queue is empty")
        with capsys.disabled():
            sys.stdout.write(f"without the daemon: {time.monotonic() - began_s:.1f} s\n")
        sidecar.start()
        holds(sidecar, N)  # the trainer is still there
        client.cancel(trainer, now=True)
        holds(sidecar, 0)
    finally:
        sidecar.stop()


@pytest.mark.long
@pytest.mark.parametrize("partition", ["bf", "bf2"])
def test_two_daemons_of_one_user_leave_each_others_nodes_alone(
    cluster: SlurmTestCluster, tmp_path: Path, partition: str
) -> None:
    """Both number their pilots p000001 and so on, in one partition or in two."""
    half = N // 2
    if partition != "bf":
        made = ("scontrol", "create", f"PartitionName={partition}", "Nodes=ALL", "PriorityTier=1")
        done = cluster.command(*made, "PreemptMode=CANCEL", "MaxTime=UNLIMITED", "State=UP")
        assert done.is_ok, done.stderr
    first = sidecar_of(cluster, tmp_path / "first")
    second = sidecar_of(cluster, tmp_path / "second", partition)
    try:
        for sidecar in (first, second):
            sidecar.start()
        # Both want the same nodes at once.
        trainers = [
            sidecar.client.submit(
                light_spec(tmp_path / f"of-{sidecar.state_dir.name}", n_max=half, curve=LINEAR)
            ).record.trainer_id
            for sidecar in (first, second)
        ]
        ours = {sidecar: holds(sidecar, half) for sidecar in (first, second)}
        assert not ours[first].keys() & ours[second].keys()
        running = _jobs(cluster)
        assert len(running) == len(set(running.values())) == N
        names = cluster.command("squeue", "-h", "-t", "R", "-o", "%j").stdout.split()
        assert sorted(Counter(name.partition(".")[2] for name in names).values()) == [half, half]

        # The second could use all nodes, but those of the first are not idle to it.
        looks = _looks(second)
        second.client.change(trainers[1], TrainerChange(n_max=N))
        wait_for(lambda: _looks(second) > looks + 10, what="polls")
        assert _jobs(cluster) == running
        assert {s: holds(s, half) for s in (first, second)} == ours

        # One that starts again knows its own.
        first.kill()
        first.start()
        assert holds(first, half) == ours[first]
        looks = _looks(first)
        wait_for(lambda: _looks(first) > looks + 5, what="polls")
        assert _jobs(cluster) == running

        # An ordinary job gets the nodes of both. In one partition nobody is preempted for it.
        set_preempt_mode(cluster, "OFF" if partition == "bf" else "CANCEL")
        job = cluster.submit(n_nodes=N, duration_s=1)
        wait_for(lambda: cluster.started_s(job), what="the job starts")
        for sidecar in (first, second):
            assert partition != "bf" or sidecar.client.status().give_backs >= half
            assert "journal: it" not in sidecar.log.read_text()  # no pilot of unknown number
        for sidecar, trainer in zip((first, second), trainers, strict=True):
            sidecar.client.cancel(trainer, now=True)
        for sidecar in (first, second):
            holds(sidecar, 0)
    finally:
        set_preempt_mode(cluster, "CANCEL")
        first.stop()
        second.stop()


def test_pilots_named_by_an_earlier_release_are_known(
    cluster: SlurmTestCluster, tmp_path: Path
) -> None:
    system = create({**cluster.config.batch_options(), "reservations_interval_s": 0})
    system.pilots_are_in(tmp_path)
    argv = ("sbatch", "--parsable", "-p", "bf", "-N1", "-o", "/dev/null", "--wrap", "sleep 600")
    ids = [
        cluster.command(*argv, f"--job-name={name}").stdout.strip()
        for name in ("p000777", "p000778.0123abcd", "mine.0123abcd")
    ]
    try:
        seen = {job.job_id: job.pilot_id for job in whole_look(system).jobs or ()}
        assert [seen[i] for i in ids] == ["p000777", "p000778.0123abcd", None]
    finally:
        for job_id in ids:
            cluster.cancel(job_id)


def _looks(sidecar: DaemonProcess) -> int:
    view = sidecar.client.status().polling
    return view.looks if view else 0


def _jobs(cluster: SlurmTestCluster) -> dict[str, str]:
    """Return the running jobs with their nodes."""
    lines = cluster.command("squeue", "-h", "-t", "R", "-o", "%i %N").stdout.splitlines()
    return dict(map(str.split, lines))
